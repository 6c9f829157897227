// The map: the (α, β) square coloured by the best score; pale if its lead is small, dotted if it is within noise.

import { blend, byId, el, setText, swatch } from "./dom.js";
import { axis, colourOf, draw, letters, literally, theme } from "./plots.js";
import { CELLS, CENTRES } from "./scene.js";
import { hundredfold, metricName, percent, rounded } from "./words.js";

const CLEAR = 0.1; // a lead of this part of the second's value gets the full colour

let shownContent = null;

export function drawMap(scene) {
  const look = theme();
  const content = scene.cached("map drawn", `${scene.metricKey};${scene.shown.join()};${look.dark}`, () => contentOf(scene, look));
  const { alpha, beta, metric } = scene.state;
  const ring = (size, colour, width) => ({
    type: "scatter", mode: "markers", x: [alpha], y: [beta], hoverinfo: "skip",
    marker: { symbol: "circle-open", size, color: colour, line: { width, color: colour } },
  });
  const axes = {
    xaxis: axis("α, share of ID input", { range: [0, 1], showgrid: false }),
    yaxis: axis("β, cost of accepting ID✗", { range: [0, 1], showgrid: false }),
    annotations: content.labels.map((label) => clearOfRing(label, alpha, beta)),
  };
  const name = metricName(metric, scene.recall);
  setText(byId("map-name"), `Lowest ${name} for every α and β`);
  setText(byId("map-note"), content.note);
  if (content !== shownContent) {
    shownContent = content;
    byId("map-shares").replaceChildren(...content.shares.map(([index, share]) => shareOf(scene, index, share)));
  }
  return draw("map", [...content.traces, ring(16, look.paper, 5), ring(16, look.ink, 2)], axes, `Map of the best score by ${name}: ${content.words}. ${content.note}`.trim());
}

function contentOf(scene, look) {
  const { map, model, shown } = scene;
  const place = new Map(shown.map((index, i) => [index, i]));
  const strength = (cell) => (cell.second < 0 ? 1 : Math.min(1, cell.margin / (CLEAR * (cell.value + cell.margin) || 1)));
  // Each score has a stretch of the colour scale of its own, from pale to full.
  const z = map.map((row) => row.map((cell) => (place.get(cell.best) + 0.02 + 0.96 * strength(cell)) / shown.length));
  const scale = shown.flatMap((index, i) => {
    const colour = colourOf(model.scores[index], look);
    return [[i / shown.length, blend(colour, look.paper, 0.25)], [(i + 1) / shown.length, colour]];
  });
  const spec = (index) => (index < 0 ? "" : model.scores[index].spec);
  const heat = {
    type: "heatmap", x: CENTRES, y: CENTRES, z, zmin: 0, zmax: 1, colorscale: scale, showscale: false,
    text: map.map((row) => row.map((cell) => hoverText(scene, cell))),
    customdata: map.map((row) => row.map((cell) => [spec(cell.best), cell.value, spec(cell.second), cell.margin, Number(cell.noise)])),
    hovertemplate: "α %{x:.2f}, β %{y:.2f}<br>%{text}<extra></extra>",
  };
  const dots = { type: "scatter", mode: "markers", x: [], y: [], hoverinfo: "skip", meta: "noise", marker: { size: 3.5, color: look.ink, line: { width: 1, color: look.paper } } };
  map.forEach((row, j) => row.forEach((cell, i) => {
    if (cell.noise && i % 2 === 0 && j % 2 === 0) {
      dots.x.push(CENTRES[i]);
      dots.y.push(CENTRES[j]);
    }
  }));
  const { shares, noisy } = wonShares(scene);
  const note = scene.shown.length > 1 ? `In ${percent(noisy, 0)} of the square the lead is within noise.` : "";
  const words = shares.slice(0, 4).map(([index, share]) => `${scene.name(index)} is best in ${percent(share, 0)}`).join(", ");
  return { traces: [heat, bordersOf(scene, look), dots], labels: labelsOf(scene, look), shares: shares.slice(0, 6), note, words };
}

/** How much of the square each score wins, the most first. */
function wonShares(scene) {
  const won = new Map();
  let noisy = 0;
  for (const row of scene.map) {
    for (const cell of row) {
      won.set(cell.best, (won.get(cell.best) ?? 0) + 1);
      noisy += cell.noise;
    }
  }
  const cells = scene.map.length * scene.map[0].length;
  return {
    shares: [...won].map(([score, count]) => [score, count / cells]).sort((one, other) => other[1] - one[1]),
    noisy: noisy / cells,
  };
}

function hoverText(scene, cell) {
  const best = `<b>${literally(scene.name(cell.best))}</b> ${hundredfold(cell.value)}`;
  if (cell.second < 0) return best;
  if (cell.margin === 0) return `${best}<br>${literally(scene.name(cell.second))} is equal`;
  return `${best}<br>${hundredfold(cell.margin)} below ${literally(scene.name(cell.second))}${cell.noise ? ", within noise" : ""}`;
}

/** A name in the middle of each region that has room for one. */
function labelsOf(scene, look) {
  const regions = new Map();
  scene.map.forEach((row, j) => row.forEach((cell, i) => {
    if (!regions.has(cell.best)) regions.set(cell.best, []);
    regions.get(cell.best).push([i, j]);
  }));
  return [...regions].filter(([, cells]) => cells.length >= 0.03 * CELLS * CELLS).map(([index, cells]) => {
    const centre = [0, 1].map((k) => cells.reduce((sum, cell) => sum + cell[k], 0) / cells.length);
    const far = (cell) => (cell[0] - centre[0]) ** 2 + (cell[1] - centre[1]) ** 2;
    const [i, j] = cells.reduce((best, cell) => (far(cell) < far(best) ? cell : best));
    const edge = CENTRES[i] < 0.15 ? "left" : CENTRES[i] > 0.85 ? "right" : "center";
    return {
      x: CENTRES[i], y: CENTRES[j], text: literally(shortened(scene.name(index))), showarrow: false, xanchor: edge,
      font: { size: letters(0.8), color: look.ink }, bgcolor: `${look.paper}d9`, borderpad: 2,
    };
  });
}

/** A label moved away from the ring. */
function clearOfRing(label, alpha, beta) {
  if (Math.abs(label.x - alpha) > 0.2 || Math.abs(label.y - beta) > 0.06) return label;
  return { ...label, y: beta + (label.y >= beta && beta < 0.9 ? 0.08 : -0.08) };
}

function shortened(name) {
  return name.length > 28 ? `${name.slice(0, 27)}…` : name;
}

/** Lines between the regions, which show their borders even without colours. */
function bordersOf(scene, look) {
  const x = [];
  const y = [];
  const step = 1 / CELLS;
  scene.map.forEach((row, j) => row.forEach((cell, i) => {
    if (i + 1 < CELLS && row[i + 1].best !== cell.best) {
      x.push((i + 1) * step, (i + 1) * step, null);
      y.push(j * step, (j + 1) * step, null);
    }
    if (j + 1 < CELLS && scene.map[j + 1][i].best !== cell.best) {
      x.push(i * step, (i + 1) * step, null);
      y.push((j + 1) * step, (j + 1) * step, null);
    }
  }));
  return { type: "scatter", mode: "lines", x, y, hoverinfo: "skip", line: { color: look.ink, width: 1.2, simplify: false } };
}

/** How much of the square a score wins. */
function shareOf(scene, index, share) {
  const score = scene.model.scores[index];
  const sign = swatch(score);
  const bar = el("span", { class: "bar", "aria-hidden": "true" });
  bar.style.width = percent(share, 1);
  bar.style.setProperty("--shade", sign.style.getPropertyValue("--shade"));
  const number = share < 0.005 ? "<1%" : percent(share, 0);
  return el("li", {}, sign, el("span", {}, score.name), bar, el("span", { class: "number" }, number));
}

/** Let a press on the map change the setting, or dragging with a mouse. */
export function makeMap(change) {
  const plot = byId("map");
  let dragging = false;
  const move = (event) => {
    const area = plot.querySelector(".nsewdrag")?.getBoundingClientRect();
    if (!area) return;
    const within = (value) => rounded(Math.min(1, Math.max(0, value)), 2);
    change({ alpha: within((event.clientX - area.left) / area.width), beta: within((area.bottom - event.clientY) / area.height) });
  };
  const inside = (event) => event.target.closest?.(".nsewdrag");
  plot.addEventListener("pointerdown", (event) => {
    if (!inside(event) || event.pointerType === "touch" || event.button) return;
    dragging = true;
    move(event);
  }, true);
  addEventListener("pointermove", (event) => { if (dragging) move(event); }, true);
  addEventListener("pointerup", () => { dragging = false; }, true);
  plot.addEventListener("click", (event) => { if (inside(event)) move(event); }, true);
}
