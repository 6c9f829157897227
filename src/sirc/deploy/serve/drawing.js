// The beginning of every page's script: helpers for elements, numbers and charts.
"use strict";

const byId = (id) => document.getElementById(id);
const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}%`;
const rounded = (value, digits = 3) => String(Number(value.toPrecision(digits))).replace("-", "−");
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

/** Append an SVG element to its parent. */
function element(parent, name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

/** Round steps of an axis, about `count` of them. */
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((times) => times * unit >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
}

