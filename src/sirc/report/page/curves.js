// Risk against recall and against coverage, with the operating points and the oracle.

import { coverageAt, oracle, pointAt, reaching } from "./mixture.js";
import { axis, band, banded, draw, fromZero, here, line, markers, theme } from "./plots.js";
import { mean } from "./seeds.js";
import { neat } from "./words.js";

const STEPS = Array.from({ length: 161 }, (_, i) => i / 160);

export function drawRecall(scene) {
  const { levels } = scene.data;
  const { alpha, beta } = scene.state;
  const reached = scene.cached("reached", scene.mixKey, () =>
    scene.paths.map((paths) => paths.map((path) => levels.map((level) => reaching(path, level)))));
  const risks = new Map(scene.shown.map((index) => [index, together(scene.paths[index].map((path, run) =>
    reached[index][run].map((at) => pointAt(path, at, alpha, beta).risk)))]));
  const lines = scene.shown.map((index) =>
    line(scene, index, levels, risks.get(index).map(mean), "recall %{x:.1%}<br>risk %{y:.2%}"));
  const bands = banded(scene).map((index) => band(scene, index, levels, risks.get(index)));
  const points = markers(scene, () => scene.recall, (index) => scene.pointOf(index).risk, "risk %{y:.2%} at the chosen recall");
  const axes = {
    xaxis: axis("recall of ID✓", { range: [0, 1.015], tickformat: ".0%" }),
    yaxis: fromZero("risk", lines),
    shapes: here(scene.recall),
  };
  return draw("risk-recall", [...bands, ideal([0, 1], [0, 0], "oracle: risk 0"), ...lines, points], axes,
    `Risk against recall for ${scene.shown.length} scores; the list gives the values at recall ${neat(scene.recall)}.`);
}

export function drawCoverage(scene) {
  const { alpha, beta } = scene.state;
  const curves = new Map(scene.shown.map((index) => [index, scene.paths[index].map((path) => curveOf(path, alpha, beta))]));
  const common = new Map(scene.several ? scene.shown.map((index) => [index, together(curves.get(index).map(resampled))]) : []);
  const lines = scene.shown.map((index) => {
    const [x, y] = scene.several ? [STEPS, common.get(index).map((risks) => risks && mean(risks))] : [curves.get(index)[0].x, curves.get(index)[0].y];
    return line(scene, index, x, y, "coverage %{x:.1%}<br>risk %{y:.2%}");
  });
  const bands = banded(scene).map((index) => band(scene, index, STEPS, common.get(index)));
  const best = oracle(mean(scene.runs.map((run) => run.accuracy)), alpha, beta);
  const points = markers(scene, (index) => scene.pointOf(index).coverage, (index) => scene.pointOf(index).risk,
    "coverage %{x:.1%}<br>risk %{y:.2%} at the chosen recall");
  const axes = {
    xaxis: axis("coverage", { range: [0, 1.015], tickformat: ".0%" }),
    yaxis: fromZero("risk", lines),
    shapes: [],
  };
  return draw("risk-coverage", [...bands, ideal(best.coverage, best.risk, "oracle"), ...lines, points], axes,
    `Risk against coverage for ${scene.shown.length} scores and the oracle.`);
}

function ideal(x, y, name) {
  return {
    type: "scatter", mode: "lines", x, y, name, line: { color: theme().muted, width: 1.5, dash: "2px,3px" },
    hovertemplate: `${name}<br>risk %{y:.2%}<extra></extra>`,
  };
}

function curveOf(path, alpha, beta) {
  const x = [];
  const y = [];
  for (let i = 1; i < path.length; i++) {
    const covered = coverageAt(path, i, alpha);
    if (!(covered > 0)) continue;
    x.push(covered);
    y.push(pointAt(path, i, alpha, beta).risk);
  }
  return { x, y };
}

/** The risk at even coverages, to average runs; null below the first. */
function resampled({ x, y }) {
  let at = 0;
  return STEPS.map((step) => {
    while (at < x.length - 1 && x[at + 1] <= step) at++;
    if (!x.length || step < x[0]) return null;
    if (at === x.length - 1 || x[at + 1] === x[at]) return y[at];
    return y[at] + ((y[at + 1] - y[at]) * (step - x[at])) / (x[at + 1] - x[at]);
  });
}

/** The values of all runs at each place; null if a run has none. */
function together(runs) {
  return runs[0].map((_, i) => (runs.some((run) => run[i] === null) ? null : runs.map((run) => run[i])));
}
