// Shared parts of the plots: theme, axes, literal names, and lines, bands and markers of scores.

import { byId, readable } from "./dom.js";
import { mean, spread } from "./seeds.js";

const darkScheme = matchMedia("(prefers-color-scheme: dark)");
let printing = false;

/** Call `redraw` when the theme changes: dark and light, and always light on paper. */
export function onTheme(redraw) {
  darkScheme.addEventListener("change", () => redraw(false));
  addEventListener("beforeprint", () => { printing = true; redraw(true); });
  addEventListener("afterprint", () => { printing = false; redraw(false); });
}

export function theme() {
  const dark = darkScheme.matches && !printing;
  return dark
    ? { dark, ink: "#e8e8ea", muted: "#a5a7ad", grid: "#34363c", paper: "#1b1c20" }
    : { dark, ink: "#1d1e22", muted: "#5d6068", grid: "#e4e5e8", paper: "#ffffff" };
}

export function colourOf(score, look = theme()) {
  return look.dark ? readable(score.colour) : score.colour;
}

/** Escape a user's text for the plotting library, which interprets tags and entities. */
export function literally(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

let size = 0;
addEventListener("resize", () => { size = 0; });

/** Text in plots grows with that of the page. */
export function letters(share) {
  size ||= parseFloat(getComputedStyle(document.documentElement).fontSize);
  return share * size;
}

export function axis(title, options = {}) {
  const look = theme();
  return {
    title: { text: title, font: { size: letters(0.85) }, standoff: 8 },
    fixedrange: true,
    gridcolor: look.grid,
    linecolor: look.grid,
    zeroline: false,
    tickfont: { size: letters(0.78), color: look.muted },
    automargin: false,
    ...options,
  };
}

const sizes = new Map();
// On paper, plots are as high as the style sets, and fit its width.
const PAPER = { width: 640, height: 302 };
const PAPER_MAP = { width: 480, height: 415 };

/** Observe the sizes of plots, and call `redraw(id)` when one changes: reading them in a frame would cost a layout. */
export function watchSizes(redraw) {
  const observer = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const [width, height] = [Math.floor(contentRect.width), Math.floor(contentRect.height)];
      const known = sizes.get(target.id);
      if (width && (known?.width !== width || known?.height !== height)) {
        sizes.set(target.id, { width, height });
        redraw(target.id);
      }
    }
  });
  for (const plot of document.querySelectorAll(".plot")) {
    sizes.set(plot.id, { width: Math.max(1, plot.clientWidth), height: Math.max(1, plot.clientHeight) });
    observer.observe(plot);
  }
}

/** Draw or update a plot. */
export function draw(id, traces, axes, label) {
  const look = theme();
  const layout = {
    autosize: false,
    ...(printing ? (id === "map" ? PAPER_MAP : PAPER) : sizes.get(id)),
    margin: { l: letters(3.7), r: letters(0.9), t: letters(0.8), b: letters(3) },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: letters(0.85), color: look.ink },
    hoverlabel: { bgcolor: look.paper, bordercolor: look.muted, font: { color: look.ink, size: letters(0.85) }, align: "left", namelength: -1 },
    hovermode: "closest",
    dragmode: false,
    showlegend: false,
    uirevision: "kept",
    ...axes,
  };
  const plot = byId(id);
  if (plot.getAttribute("aria-label") !== label) plot.setAttribute("aria-label", label);
  // The configuration is only given once, because the library measures the whole page for it.
  if (plot.data) return Plotly.react(plot, traces, layout);
  return Plotly.newPlot(plot, traces, layout, { displayModeBar: false, showTips: false, doubleClick: false });
}

/** The line of a score: thick in focus, less so for the baseline, thin for the others. */
export function line(scene, index, x, y, hover) {
  const score = scene.model.scores[index];
  const width = index === scene.focus ? 3.2 : index === scene.baseline ? 2.2 : 1.4;
  return {
    type: "scatter",
    mode: "lines",
    name: literally(score.name),
    x,
    y,
    line: { color: colourOf(score), dash: score.dash, width, simplify: true },
    opacity: index === scene.focus || index === scene.baseline || scene.shown.length < 7 ? 1 : 0.7,
    hovertemplate: `<b>%{fullData.name}</b><br>${hover}<extra></extra>`,
  };
}

/** A band of ± 2 std around a line; `values` has the values of all runs at each x, or null. */
export function band(scene, index, x, values) {
  const colour = colourOf(scene.model.scores[index]);
  const there = x.map((_, i) => i).filter((i) => values[i]);
  const edge = (side) => there.map((i) => mean(values[i]) + side * spread(values[i]));
  const along = there.map((i) => x[i]);
  return {
    type: "scatter",
    mode: "lines",
    x: [...along, ...along.toReversed()],
    y: [...edge(1), ...edge(-1).reverse()],
    fill: "toself",
    fillcolor: `${colour}2b`,
    line: { width: 0, color: colour },
    hoverinfo: "skip",
    meta: "band",
  };
}

/** The scores with bands: the one in focus, the best and the baseline, if they are shown. */
export function banded(scene) {
  if (!scene.several) return [];
  return [...new Set([scene.baseline, scene.best, scene.focus])].filter((index) => scene.shown.includes(index));
}

/** One marker for each shown score. */
export function markers(scene, xOf, yOf, hover) {
  const drawn = scene.shown.toSorted((one, other) => (one === scene.focus) - (other === scene.focus));
  return {
    type: "scatter",
    mode: "markers",
    x: drawn.map(xOf),
    y: drawn.map(yOf),
    text: drawn.map((index) => literally(scene.name(index))),
    marker: {
      symbol: drawn.map((index) => scene.model.scores[index].symbol),
      color: drawn.map((index) => colourOf(scene.model.scores[index])),
      size: drawn.map((index) => (index === scene.focus ? 12 : 8)),
      line: { width: 1, color: theme().paper },
    },
    hovertemplate: `<b>%{text}</b><br>${hover}<extra></extra>`,
  };
}

/** A dotted line at the setting. */
export function here(x) {
  return [{ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: theme().muted, width: 1, dash: "dot" } }];
}

/** A vertical axis from 0 to a little above the lines, rounded up so that it seldom changes while a slider moves. */
export function fromZero(title, lines) {
  return axis(title, { range: [0, roof(largest(lines.map((one) => one.y)))], tickformat: ".1~%" });
}

function roof(most) {
  if (!(most > 0)) return 0.01;
  const unit = 10 ** Math.floor(Math.log10(most));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * unit).find((step) => step >= 1.02 * most) ?? 10 * unit;
}

function largest(lists) {
  let most = 0;
  for (const list of lists) for (const value of list) if (value > most) most = value;
  return most;
}
