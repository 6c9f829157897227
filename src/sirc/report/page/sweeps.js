// The chosen metric against α, and against β.

import { atBeta } from "./mixture.js";
import { axis, band, banded, draw, fromZero, here, line, markers } from "./plots.js";
import { CENTRES } from "./scene.js";
import { mean } from "./seeds.js";
import { metricName } from "./words.js";

const BETAS = Array.from({ length: 21 }, (_, i) => i / 20);

export function drawAlpha(scene) {
  const { alpha, beta } = scene.state;
  const runs = (index) => scene.sweep.map((scores) => scores[index].map((parts) => atBeta(parts, beta)));
  return sweep(scene, "over-alpha", "α, share of ID input", CENTRES, runs, alpha);
}

export function drawBeta(scene) {
  const runs = (index) => BETAS.map((beta) => scene.parts[index].map((parts) => atBeta(parts, beta)));
  return sweep(scene, "over-beta", "β, cost of accepting ID✗", BETAS, runs, scene.state.beta);
}

function sweep(scene, id, title, x, runsOf, now) {
  const metric = metricName(scene.state.metric, scene.recall);
  const values = new Map(scene.shown.map((index) => [index, runsOf(index)]));
  const lines = scene.shown.map((index) =>
    line(scene, index, x, values.get(index).map(mean), `${metric} %{y:.2%} at %{x:.2f}`));
  const bands = banded(scene).map((index) => band(scene, index, x, values.get(index)));
  const points = markers(scene, () => now, (index) => mean(scene.values[index]), `${metric} %{y:.2%} at the setting`);
  const axes = {
    xaxis: axis(title, { range: [-0.005, 1.015] }),
    yaxis: fromZero(metric, lines),
    shapes: here(now),
  };
  return draw(id, [...bands, ...lines, points], axes, `${metric} of ${scene.shown.length} scores against ${title}.`);
}
