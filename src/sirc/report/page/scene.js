// Everything that follows from a setting, computed on demand and cached until the setting changes.

import { atBeta, metricParts, mixed, pointAt, reaching } from "./mixture.js";
import { slopes, twiceError, variances } from "./noise.js";
import { mean, paired, ranked, spread } from "./seeds.js";
import { isShown, oodShares } from "./state.js";

export const CELLS = 40; // of the map, along α and along β
const MOST = 1000; // entries of a cache
export const CENTRES = Array.from({ length: CELLS }, (_, i) => (i + 0.5) / CELLS);

export class Scene {
  constructor(data) {
    this.data = data;
    this.caches = new Map();
  }

  /** Use a setting from now on. */
  use(state) {
    this.state = state;
    this.model = this.data.models[state.model];
    this.runs = state.run === "all" ? this.model.runs : this.model.runs.filter((run) => String(run.seed) === state.run);
    this.several = this.runs.length > 1;
    this.recall = this.data.levels[state.level];
    this.shares = this.model.sets.length ? oodShares(state.weights) : [];
    this.mixKey = [state.model, state.run, ...this.shares].join();
    this.paths = this.cached("paths", this.mixKey, () =>
      this.model.scores.map((score) => this.runs.map((run) => mixed(run, run.scores[score.index], this.shares))));
    this.points = this.cached("points", `${this.mixKey};${state.level}`, () =>
      this.paths.map((paths) => paths.map((path) => reaching(path, this.recall))));
    this.shown = this.model.scores.filter((score) => isShown(state, score.spec)).map((score) => score.index);
    this.metricKey = `${this.mixKey};${state.metric === "risk" ? state.level : state.metric}`;
    this.parts = this.cached("parts", `${this.metricKey};${state.alpha}`, () => this.partsAt(state.alpha));
    this.values = this.parts.map((runs) => runs.map((parts) => atBeta(parts, state.beta)));
    this.order = ranked(this.shown, (score) => mean(this.values[score]));
    this.best = this.order[0];
    this.baseline = this.model.scores.findIndex((score) => score.spec === state.baseline);
    const focus = this.model.scores.findIndex((score) => score.spec === state.focus);
    this.focus = focus < 0 ? this.best : focus;
  }

  /** A value by name, made again when its key changes. */
  cached(name, key, make) {
    const known = this.caches.get(name);
    if (known?.key === key) return known.value;
    const value = make();
    this.caches.set(name, { key, value });
    return value;
  }

  /** One of several values by name, which are dropped when their key changes, or when they are too many. */
  cachedEntry(name, key, entry, make, most = MOST) {
    const entries = this.cached(name, key, () => new Map());
    if (entries.size >= most) entries.clear(); // α was moved many times
    if (!entries.has(entry)) entries.set(entry, make());
    return entries.get(entry);
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
    return this.paths[score].map((path, run) => atBeta(metricParts(path, metric, alpha, this.points[score][run]), beta));
  }

  /** A score on a mix of OOD sets in every run of the model. */
  pathsOf(score) {
    return this.cachedEntry("all runs", this.mixKey, score, () =>
      this.model.runs.map((run) => mixed(run, run.scores[score], this.shares)));
  }

  /** What each input adds to the chosen metric of the one run's score at α. */
  slopesAt(score, alpha) {
    return this.cachedEntry("slopes", this.metricKey, `${score};${alpha}`, () => {
      const setting = { alpha, at: this.points[score][0], window: this.model.windows[this.state.level] };
      return slopes(this.paths[score][0], this.state.metric, setting);
    });
  }

  /** The difference of two scores in the chosen metric, and whether it is within noise. */
  lead(score, other) {
    return paired(this.values[score], this.values[other], this.twice(score, other, this.state.alpha, this.state.beta));
  }

  /** For one run, ± 2 standard errors of a difference; where the model has other runs, 2 std over all of them. */
  twice(score, other, alpha, beta) {
    if (this.several) return NaN;
    if (this.model.runs.length > 1) {
      const [own, theirs] = [score, other].map((one) => this.pathsOf(one).map((path) =>
        atBeta(metricParts(path, this.state.metric, alpha, reaching(path, this.recall)), beta)));
      return spread(own.map((value, i) => value - theirs[i]));
    }
    const parts = this.cachedEntry("variances", this.metricKey, `${score};${other};${alpha}`, () => {
      const [own, theirs] = [score, other].map((one) => ({ own: this.runs[0].scores[one], slopes: this.slopesAt(one, alpha) }));
      return variances(this.runs[0], own, theirs, this.shares);
    }, 4 * MOST);
    return twiceError(parts, beta);
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

  /** The chosen metric for each α of the map, score and run, as the parts of β·a + (1−β)·b. */
  get sweep() {
    const alphas = this.model.sets.length ? CENTRES : [1];
    return this.cached("sweep", this.metricKey, () => alphas.map((alpha) => this.partsAt(alpha)));
  }

  /** The best shown score in every cell of the map, row by row in β: best, value, second, margin, noise. */
  get map() {
    return this.cached("map", `${this.metricKey};${this.shown.join()}`, () => {
      const averages = this.sweep.map((scores) => scores.map((runs) =>
        [mean(runs.map((parts) => parts[0])), mean(runs.map((parts) => parts[1]))]));
      return CENTRES.map((beta) => averages.map((scores, column) => this.winner(scores, column, beta)));
    });
  }

  winner(scores, column, beta) {
    let [best, second] = [-1, -1];
    let [least, next] = [Infinity, Infinity];
    for (const score of this.shown) {
      const value = atBeta(scores[score], beta);
      if (value < least) [second, next, best, least] = [best, least, score, value];
      else if (value < next) [second, next] = [score, value];
    }
    if (second < 0) return { best, value: least, second, margin: 0, noise: false };
    const of = (score) => this.sweep[column][score].map((parts) => atBeta(parts, beta));
    const alpha = this.model.sets.length ? CENTRES[column] : 1;
    const noise = next === least || paired(of(best), of(second), this.twice(best, second, alpha, beta)).noise;
    return { best, value: least, second, margin: next - least, noise };
  }
}
