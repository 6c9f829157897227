// What follows from a setting: each is computed when asked for, and kept until the setting it rests on changes.

import { metricParts, mixed, pointAt, reaching, stopped } from "./mixture.js";
import { mean, paired, ranked } from "./seeds.js";
import { isShown, oodShares } from "./state.js";

export const CELLS = 40; // the map has as many in α and in β
const MOST = 2000; // scores at some α whose replicas are kept
export const CENTRES = Array.from({ length: CELLS }, (_, i) => (i + 0.5) / CELLS);

export class Scene {
  constructor(data) {
    this.data = data;
    this.kept = new Map();
  }

  /** Take up a setting. */
  look(state) {
    this.state = state;
    this.model = this.data.models[state.model];
    this.runs = state.run === "all" ? this.model.runs : this.model.runs.filter((run) => String(run.seed) === state.run);
    this.several = this.runs.length > 1;
    this.recall = this.data.levels[state.level];
    this.shares = this.model.sets.length ? oodShares(state.weights) : [];
    this.mixKey = [state.model, state.run, ...this.shares].join();
    this.paths = this.keep("paths", this.mixKey, () =>
      this.model.scores.map((score) => this.runs.map((run) => mixed(run, run.scores[score.index], this.shares))));
    this.points = this.keep("points", `${this.mixKey};${state.level}`, () =>
      this.paths.map((paths) => paths.map((path) => reaching(path, this.recall))));
    this.shown = this.model.scores.filter((score) => isShown(state, score.spec)).map((score) => score.index);
    this.metricKey = `${this.mixKey};${state.metric === "risk" ? state.level : state.metric}`;
    this.parts = this.keep("parts", `${this.metricKey};${state.alpha}`, () => this.partsAt(state.alpha));
    this.values = this.parts.map((runs) => runs.map(([a, b]) => state.beta * a + (1 - state.beta) * b));
    this.order = ranked(this.shown, (score) => mean(this.values[score]));
    this.best = this.order[0];
    this.baseline = this.model.scores.findIndex((score) => score.spec === state.baseline);
    const focus = this.model.scores.findIndex((score) => score.spec === state.focus);
    this.focus = focus < 0 ? this.best : focus;
  }

  keep(name, key, make) {
    const known = this.kept.get(name);
    if (known?.key === key) return known.value;
    const value = make();
    this.kept.set(name, { key, value });
    return value;
  }

  name(score) {
    return this.model.scores[score].name;
  }

  /** The chosen metric of each score and run at α, as the parts of β·a + (1−β)·b. */
  partsAt(alpha) {
    return this.paths.map((paths, score) =>
      paths.map((path, run) => metricParts(path, this.state.metric, alpha, this.points[score][run])));
  }

  /** A metric of a score in each run. */
  valuesAt(score, metric, alpha, beta) {
    return this.paths[score].map((path, run) => {
      const [a, b] = metricParts(path, metric, alpha, this.points[score][run]);
      return beta * a + (1 - beta) * b;
    });
  }

  /** The scores of a run as they might have come out otherwise: in resamples of its inputs, or in other runs. */
  replicas(run, score) {
    return this.model.runs.length > 1
      ? this.model.runs.map((other) => [other, other.scores[score]])
      : run.scores[score].draws.map((draw) => [run, draw]);
  }

  /** The parts of the chosen metric of one run's score at α in each of its replicas. */
  strayParts(score, alpha) {
    const kept = this.keep("strays", this.metricKey, () => new Map());
    const paths = this.keep("replicas", this.mixKey, () => new Map());
    const key = `${score};${alpha}`;
    if (!paths.has(score)) paths.set(score, this.replicas(this.runs[0], score).map(([run, own]) => mixed(run, own, this.shares)));
    if (!kept.has(key)) {
      const { metric } = this.state;
      if (kept.size >= MOST) kept.clear(); // α was moved many times
      kept.set(key, paths.get(score).map((path) =>
        metricParts(metric === "risk" ? stopped(path, this.recall) : path, metric, alpha, 0)));
    }
    return kept.get(key);
  }

  /** The difference of two scores in the chosen metric, at the setting, and whether it is noise. */
  lead(score, other) {
    return paired(this.values[score], this.values[other], this.strays(score, other, this.state.alpha, this.state.beta));
  }

  strays(score, other, alpha, beta) {
    if (this.several) return [];
    const others = this.strayParts(other, alpha);
    return this.strayParts(score, alpha).map(([a, b], i) => beta * (a - others[i][0]) + (1 - beta) * (b - others[i][1]));
  }

  /** What a score accepts at the setting, in each run. */
  pointsOf(score) {
    const { alpha, beta } = this.state;
    return this.paths[score].map((path, run) => pointAt(path, this.points[score][run], alpha, beta));
  }

  /** What a score accepts at the setting, on average over the runs. */
  pointOf(score) {
    const points = this.pointsOf(score);
    const average = (key) => mean(points.map((point) => point[key]));
    return Object.fromEntries(["right", "wrong", "ood", "coverage", "risk"].map((key) => [key, average(key)]));
  }

  /** The parts of the chosen metric for each α of the map, score and run: β·a + (1−β)·b. */
  get sweep() {
    const alphas = this.model.sets.length ? CENTRES : [1];
    return this.keep("sweep", this.metricKey, () => alphas.map((alpha) => this.partsAt(alpha)));
  }

  /** The best shown score of every cell of the map, row by row in β: winner, value, runner-up, margin, noise. */
  get map() {
    return this.keep("map", `${this.metricKey};${this.shown.join()}`, () => {
      const averages = this.sweep.map((scores) => scores.map((runs) =>
        [mean(runs.map((parts) => parts[0])), mean(runs.map((parts) => parts[1]))]));
      return CENTRES.map((beta) => averages.map((scores, column) => this.winner(scores, column, beta)));
    });
  }

  winner(scores, column, beta) {
    let [best, second] = [-1, -1];
    let [least, next] = [Infinity, Infinity];
    for (const score of this.shown) {
      const value = beta * scores[score][0] + (1 - beta) * scores[score][1];
      if (value < least) [second, next, best, least] = [best, least, score, value];
      else if (value < next) [second, next] = [score, value];
    }
    if (second < 0) return { best, value: least, second, margin: 0, noise: false };
    const of = (score) => this.sweep[column][score].map(([a, b]) => beta * a + (1 - beta) * b);
    const alpha = this.model.sets.length ? CENTRES[column] : 1;
    const noise = next === least || paired(of(best), of(second), this.strays(best, second, alpha, beta)).noise;
    return { best, value: least, second, margin: next - least, noise };
  }
}
