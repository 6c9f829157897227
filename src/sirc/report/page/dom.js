// Building blocks: elements whose text is never parsed as HTML, the swatches of scores, colours.

/** Make an element. Attributes are set as such, children that are strings become text: nothing is parsed as HTML. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

/** The pieces of a text, in which `…` is code. */
export function withCode(text) {
  return text.split(/`([^`]+)`/).map((piece, i) => (i % 2 ? el("code", {}, piece) : piece));
}

/** Set the text of an element if it differs: most cells keep theirs while a slider is dragged. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const SVG = "http://www.w3.org/2000/svg";
const polygon = (corners, turn = -90, radius = 4.6) =>
  Array.from({ length: corners }, (_, i) => {
    const angle = ((turn + (360 / corners) * i) * Math.PI) / 180;
    return `${(14 + radius * Math.cos(angle)).toFixed(2)},${(7 + radius * Math.sin(angle)).toFixed(2)}`;
  }).join(" ");
const star = () => {
  const outer = polygon(5, -90, 5.4).split(" ");
  const inner = polygon(5, -54, 2.2).split(" ");
  return outer.map((point, i) => `${point} ${inner[i]}`).join(" ");
};
const SHAPES = {
  square: polygon(4, -45, 5),
  diamond: polygon(4),
  "diamond-tall": "14,2 17,7 14,12 11,7",
  "triangle-up": polygon(3),
  "triangle-down": polygon(3, 90),
  "triangle-left": polygon(3, 180),
  "triangle-right": polygon(3, 0),
  pentagon: polygon(5),
  hexagon: polygon(6),
  star: star(),
  cross: "12.4,2.4 15.6,2.4 15.6,5.4 18.6,5.4 18.6,8.6 15.6,8.6 15.6,11.6 12.4,11.6 12.4,8.6 9.4,8.6 9.4,5.4 12.4,5.4",
  x: "11.6,2.4 14,4.8 16.4,2.4 18.6,4.6 16.2,7 18.6,9.4 16.4,11.6 14,9.2 11.6,11.6 9.4,9.4 11.8,7 9.4,4.6",
};

/** A piece of a score's line with its marker, as the plots draw it. */
export function swatch(score) {
  const make = (tag, attributes) => {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const svg = make("svg", { class: "swatch", viewBox: "0 0 28 14", width: 28, height: 14, "aria-hidden": "true" });
  const dash = score.dash === "solid" ? "none" : score.dash.replaceAll("px", "");
  svg.append(make("line", { x1: 0, x2: 28, y1: 7, y2: 7, "stroke-width": 2, "stroke-dasharray": dash }));
  const shape = SHAPES[score.symbol];
  svg.append(shape ? make("polygon", { points: shape }) : make("circle", { cx: 14, cy: 7, r: 3.8 }));
  svg.style.setProperty("--shade", `light-dark(${score.colour}, ${readable(score.colour)})`);
  return svg;
}

/** A colour, lightened until it is readable on a dark background. */
export function readable(colour) {
  let rgb = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  while (luminance(rgb) < 0.19) rgb = rgb.map((part) => Math.round(part + (255 - part) * 0.15));
  return toHex(rgb);
}

/** A colour mixed with another. */
export function blend(colour, other, share) {
  const [one, two] = [colour, other].map((text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)));
  return toHex(one.map((part, i) => Math.round(part * share + two[i] * (1 - share))));
}

function toHex(rgb) {
  return `#${rgb.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

/** The relative luminance, from which contrast is computed. */
function luminance(rgb) {
  const [r, g, b] = rgb.map((part) => {
    const x = part / 255;
    return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
