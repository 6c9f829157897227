// The chosen metric against α, and against β.

import { band, banded, axis, draw, here, largest, line, markers, roof } from "./plots.js";
import { CENTRES } from "./scene.js";
import { mean, spread } from "./seeds.js";
import { metricName } from "./words.js";

const BETAS = Array.from({ length: 21 }, (_, i) => i / 20);

export function drawAlpha(scene) {
  const { alpha, beta } = scene.state;
  const runs = (index) => scene.sweep.map((scores) => scores[index].map(([a, b]) => beta * a + (1 - beta) * b));
  return sweep(scene, "over-alpha", "α, share of ID input", CENTRES, runs, alpha);
}

export function drawBeta(scene) {
  const runs = (index) => BETAS.map((beta) => scene.parts[index].map(([a, b]) => beta * a + (1 - beta) * b));
  return sweep(scene, "over-beta", "β, cost of accepting ID✗", BETAS, runs, scene.state.beta);
}

function sweep(scene, id, title, x, runsOf, now) {
  const metric = metricName(scene.state.metric, scene.recall);
  const values = new Map(scene.shown.map((index) => [index, runsOf(index)]));
  const lines = scene.shown.map((index) =>
    line(scene, index, x, values.get(index).map(mean), `${metric} %{y:.2%} at %{x:.2f}`));
  const bands = banded(scene).map((index) => {
    const centre = values.get(index).map(mean);
    const reach = values.get(index).map(spread);
    return band(scene, index, x, centre.map((c, i) => c - reach[i]), centre.map((c, i) => c + reach[i]));
  });
  const points = markers(scene, () => now, (index) => mean(scene.values[index]), `${metric} %{y:.2%} at the setting`);
  const axes = {
    xaxis: axis(title, { range: [-0.005, 1.015] }),
    yaxis: axis(metric, { range: [0, roof(largest(lines.map((one) => one.y)))], tickformat: ".1~%" }),
    shapes: here(now),
  };
  return draw(id, [...bands, ...lines, points], axes, `${metric} of ${scene.shown.length} scores against ${title}.`);
}
