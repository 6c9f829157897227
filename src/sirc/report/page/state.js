// The setting: the values of all controls. The fragment of the URL has it too, so that a link reproduces the view.

import { sum } from "./seeds.js";

const METRICS = ["risk", "aurr", "aurc"];
const DETAILS = ["auroc", "fpr", "risk", "aurr"]; // these are recomputed, `fixedMetrics` are not

/** The metrics that the page cannot recompute; it has their evaluated values for each kind of input. */
export function fixedMetrics(data) {
  return Object.keys(data.metrics).filter((name) => !data.metrics[name].recomputed);
}

/** The setting that a page opens with. */
export function startState(data) {
  return {
    model: 0,
    run: "all",
    alpha: data.start.alpha,
    beta: data.start.beta,
    level: nearestLevel(data.levels, data.start.recall),
    metric: "risk",
    mix: "all", // or the name of a group, or "own": then `weights` holds
    weights: null,
    pool: data.start.pool,
    shown: null, // a set of specs; null is all
    baseline: data.start.baseline,
    focus: null, // a spec; null is the best at the setting
    detail: "auroc",
  };
}

export function nearestLevel(levels, recall) {
  let best = 0;
  levels.forEach((level, i) => {
    if (Math.abs(level - recall) < Math.abs(levels[best] - recall)) best = i;
  });
  return best;
}

/** Fit a setting to its model: values that the model lacks become the default. */
export function settled(data, state) {
  const model = data.models[state.model];
  const specs = model.scores.map((score) => score.spec);
  const next = { ...state };
  // Without OOD data α is 1; its value is kept for models that have OOD data.
  if (!model.sets.length) Object.assign(next, { alphaKept: next.alphaKept ?? next.alpha, alpha: 1 });
  else if (next.alphaKept !== undefined) Object.assign(next, { alpha: next.alphaKept, alphaKept: undefined });
  if (next.run !== "all" && !model.runs.some((run) => String(run.seed) === next.run)) next.run = "all";
  if (next.mix === "own" && next.weights?.length !== model.sets.length) next.mix = "all";
  if (next.mix !== "all" && next.mix !== "own" && !Object.hasOwn(model.groups, next.mix)) next.mix = "all";
  if (next.mix !== "own") next.weights = defaultWeights(model, next.mix, next.pool);
  if (next.shown) {
    const shown = new Set(specs.filter((spec) => next.shown.has(spec)));
    next.shown = shown.size && shown.size < specs.length ? shown : null;
  }
  if (!specs.includes(next.baseline)) next.baseline = specs.includes("msp") ? "msp" : specs[0];
  if (next.focus !== null && !(specs.includes(next.focus) && isShown(next, next.focus))) next.focus = null;
  return next;
}

export function isShown(state, spec) {
  return state.shown === null || state.shown.has(spec);
}

/** The weights of all sets, or of a group's: equal, or by their numbers of samples. */
export function defaultWeights(model, mix, pool) {
  const members = mix === "all" ? model.sets.map((_, set) => set) : model.groups[mix];
  const sizes = model.runs[0].sizes.slice(2);
  return model.sets.map((_, set) => (members.includes(set) ? (pool === "datasets" ? 1 : sizes[set]) : 0));
}

/** The shares of the OOD input, which sum to 1. */
export function oodShares(weights) {
  const total = sum(weights);
  return weights.map((weight) => weight / total);
}

/** Weights for the sliders, the largest 100. */
export function scaled(weights) {
  const most = Math.max(...weights);
  return weights.map((weight) => 100 * (weight / most));
}

/** The fragment of a setting; values that the page opens with are left out. */
export function toFragment(data, state) {
  const start = settled(data, { ...startState(data), model: state.model });
  const out = new URLSearchParams();
  const put = (key, value, usual) => { if (String(value) !== String(usual)) out.append(key, value); };
  put("model", state.model, 0);
  put("run", state.run, "all");
  put("alpha", state.alpha, start.alpha);
  put("beta", state.beta, start.beta);
  put("recall", data.levels[state.level], data.levels[start.level]);
  put("by", state.metric, start.metric);
  put("pool", state.pool, start.pool);
  if (state.mix === "own") out.append("w", state.weights.map((weight) => Number(weight.toPrecision(6))).join(","));
  else put("mix", state.mix, "all");
  for (const spec of state.shown ?? []) out.append("score", spec);
  put("baseline", state.baseline, start.baseline);
  if (state.focus !== null) out.append("focus", state.focus);
  put("detail", state.detail, start.detail);
  return out.toString();
}

/** The setting of a fragment; invalid values are ignored. */
export function fromFragment(data, fragment) {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  const state = startState(data);
  const fraction = (key, use) => {
    const value = given.get(key)?.trim() ? Number(given.get(key)) : NaN;
    if (value >= 0 && value <= 1) use(value);
  };
  const among = (key, values, use) => { if (values.includes(given.get(key))) use(given.get(key)); };
  among("model", data.models.map((_, i) => String(i)), (value) => { state.model = Number(value); });
  if (given.has("run")) state.run = given.get("run");
  fraction("alpha", (value) => { state.alpha = value; });
  fraction("beta", (value) => { state.beta = value; });
  fraction("recall", (value) => { state.level = nearestLevel(data.levels, value); });
  among("by", METRICS, (value) => { state.metric = value; });
  among("pool", ["samples", "datasets"], (value) => { state.pool = value; });
  if (given.has("mix") && given.get("mix") !== "own") state.mix = given.get("mix");
  if (given.has("w")) {
    const weights = given.get("w").split(",").map(Number);
    if (weights.every((w) => Number.isFinite(w) && w >= 0) && weights.some((w) => w > 0)) {
      const most = Math.max(...weights);
      Object.assign(state, { mix: "own", weights: most > 100 || most <= 1 ? scaled(weights) : weights });
    }
  }
  if (given.has("score")) state.shown = new Set(given.getAll("score"));
  if (given.has("baseline")) state.baseline = given.get("baseline");
  if (given.has("focus")) state.focus = given.get("focus");
  among("detail", [...DETAILS, ...fixedMetrics(data)], (value) => { state.detail = value; });
  return settled(data, state);
}
