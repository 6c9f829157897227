// The text of the page: numbers as people read them, sentences about a setting, explanations of terms.

import { CENTRES } from "./scene.js";
import { mean, sum } from "./seeds.js";

export function percent(fraction, digits = 1) {
  return Number.isFinite(fraction) ? `${(100 * fraction).toFixed(digits)}%` : "–";
}

/** A fraction × 100, with a real minus sign. */
export function hundredfold(fraction, digits = 2) {
  return Number.isFinite(fraction) ? minus((100 * fraction).toFixed(digits)) : "–";
}

/** A number without needless zeros: 0.5, 0.3333. */
export function rounded(value, digits = 4) {
  return Number(value.toFixed(digits));
}

/** A percentage without needless zeros: 95%, 99.9%. */
export function neat(fraction, digits = 4) {
  return `${rounded(100 * fraction, digits)}%`;
}

export function signed(fraction, digits = 2) {
  if (!Number.isFinite(fraction)) return "–";
  const text = (100 * Math.abs(fraction)).toFixed(digits);
  return Number(text) === 0 ? text : (fraction < 0 ? "−" : "+") + text;
}

export function plainNumber(value) {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "–";
  return minus(Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3)
    ? value.toExponential(3) : String(Number(value.toPrecision(5))));
}

function minus(text) {
  return text.replace("-", "−");
}

export function grouped(number) {
  return number.toLocaleString("en-US").replaceAll(",", "\u202f");
}

export function metricName(metric, recall) {
  return metric === "risk" ? `Risk@${rounded(100 * recall)}` : metric.toUpperCase();
}

/** Rounded numbers whose sum is the rounded sum. */
function wholeParts(parts) {
  const total = Math.round(sum(parts));
  const whole = parts.map(Math.floor);
  const byRest = parts.map((part, i) => [part - whole[i], i]).sort((one, other) => other[0] - one[0] || one[1] - other[1]);
  byRest.slice(0, total - sum(whole)).forEach(([, i]) => { whole[i] += 1; });
  return whole;
}

/** How many of 1000 inputs are accepted and rejected, each as right, wrong and of no class. */
export function thousand(scene, score) {
  const { alpha } = scene.state;
  const accuracy = mean(scene.runs.map((run) => run.accuracy));
  const point = scene.pointOf(score);
  const all = wholeParts([1000 * alpha * accuracy, 1000 * alpha * (1 - accuracy), 1000 * (1 - alpha)]);
  const accepted = wholeParts([point.right, point.wrong, point.ood].map((share) => 1000 * share))
    .map((part, i) => Math.min(part, all[i]));
  return { accepted, rejected: all.map((part, i) => part - accepted[i]) };
}

/** The sentence about a score, as strings and an object with its name. */
export function sentence(scene) {
  const { accepted } = thousand(scene, scene.focus);
  const [right, wrong, ood] = accepted.map(String);
  const outside = scene.model.sets.length ? `, with ${neat(1 - scene.state.alpha, 2)} OOD` : "";
  const noClass = scene.model.sets.length ? `, ${ood} that belong${ood === "1" ? "s" : ""} to no class` : "";
  return [
    `At recall ${neat(scene.recall)}${outside}, of 1000 inputs `,
    { name: scene.name(scene.focus) },
    ` accepts ${sum(accepted)}: ${right} right, ${wrong} wrong${noClass}.`,
  ];
}

/** Up to three sentences: against the baseline, how sure the lead is, and whether α matters. */
export function advice(scene) {
  return [againstBaseline(scene), leadInWords(scene), alphaInWords(scene)].filter(Boolean);
}

function againstBaseline(scene) {
  if (scene.focus === scene.baseline) return "";
  const mistakes = (score) => sum(thousand(scene, score).accepted.slice(1));
  const saved = mistakes(scene.baseline) - mistakes(scene.focus);
  const name = scene.name(scene.baseline);
  const unsure = scene.lead(scene.focus, scene.baseline).noise ? `; in ${metricName(scene.state.metric, scene.recall)} they differ within noise` : "";
  if (saved === 0) return `That is as many mistakes as with ${name}, the baseline.`;
  return `That is ${Math.abs(saved)} mistake${Math.abs(saved) === 1 ? "" : "s"} ${saved > 0 ? "fewer" : "more"} than with ${name}, the baseline${unsure}.`;
}

function leadInWords(scene) {
  if (scene.order.length < 2) return "";
  const [best, second] = scene.order;
  const metric = metricName(scene.state.metric, scene.recall);
  const lead = scene.lead(second, best);
  if (lead.mean <= 1e-9 * mean(scene.values[second])) {
    const least = scene.order.filter((score) => mean(scene.values[score]) - mean(scene.values[best]) <= 1e-9 * mean(scene.values[best]));
    return `${least.length === scene.order.length ? "All scores" : listed(least.map((score) => scene.name(score)))} have the same ${metric}, the lowest.`;
  }
  const by = `${scene.name(best)} has the lowest ${metric}, ${hundredfold(lead.mean)} points below ${scene.name(second)}`;
  const noise = lead.noise ? "within noise" : "beyond noise";
  return `${by}: ${noise} (± ${noiseInWords(scene)} is ${hundredfold(lead.spread)}).${scene.model.runs.length > 1 ? "" : " One training run says nothing about the spread over runs."}`;
}

/** The measure of a difference's noise. */
export function noiseInWords(scene) {
  const { length } = scene.model.runs;
  return length > 1 ? `2 std over ${length} runs` : "2 standard errors";
}

/** Which score is best for which α, at the current β. */
function alphaInWords(scene) {
  if (!scene.model.sets.length || scene.shown.length < 2) return "";
  const row = scene.map[Math.min(CENTRES.length - 1, Math.floor(scene.state.beta * CENTRES.length))];
  const stretches = [];
  row.forEach((cell, i) => {
    const last = stretches[stretches.length - 1];
    if (last?.best === cell.best) last.end = i;
    else stretches.push({ best: cell.best, begin: i, end: i });
  });
  const beta = `By ${metricName(scene.state.metric, scene.recall)} with β near ${rounded(scene.state.beta, 2)}`;
  const unsure = row.every((cell) => cell.noise) ? ", but nowhere beyond noise" : "";
  if (stretches.length === 1) return `${beta}, ${scene.name(row[0].best)} is best whatever α is${unsure}.`;
  if (stretches.length > 5) return `${beta}, the best score changes ${stretches.length - 1} times as α grows${unsure}.`;
  const border = (i) => rounded((CENTRES[i] + CENTRES[i - 1]) / 2, 3);
  const pieces = stretches.map(({ best, begin }, i) =>
    i === 0 ? `${scene.name(best)} up to α = ${border(stretches[1].begin)}` : `${scene.name(best)} from ${border(begin)}`);
  return `${beta}, the best is ${pieces.join(", ")}${unsure}.`;
}

function listed(names) {
  return names.length < 2 ? names.join() : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`;
}

export const EXPLANATIONS = {
  alpha: ["α, the share of ID input", "Of all inputs that will arrive, the share that belongs to one of the classifier's classes. The rest, 1 − α, is OOD. Few people know their α: the map shows whether it matters."],
  beta: ["β, the cost of accepting ID✗", "Accepting an input that the classifier gets wrong costs β, accepting an OOD input costs 1 − β. At 0.5 both mistakes are equally bad; at 1 only wrong predictions count, at 0 only OOD input."],
  recall: ["Recall", "The share of ID✓, the inputs that the classifier gets right, that is accepted. Each score gets the highest threshold that accepts at least this share. The slider moves over recalls for which all numbers are exact; they are closest together near 100%."],
  metric: ["Compare by", "Risk at the recall: the mean cost of what is accepted at the chosen recall. AURR: that risk averaged over all recalls. AURC: the risk averaged over all coverages. Lower is better. The list, the lines against α and β, and the map follow this choice."],
  mix: ["Mix of OOD sets", "What OOD input will look like: the share of each set in it. The buttons take all sets, or one group of them; boxes and sliders make a mix of your own."],
  overbeta: ["Against β", "How the chosen metric changes with the cost of the two mistakes: at fixed α a straight line, from only OOD input counting (0) to only ID✗ counting (1)."],
  baseline: ["Baseline", "The score that the others are compared with. Differences are to this one; negative is better where lower is better."],
  list: ["The list", "Each score at its own threshold for the chosen recall. Risk: mean cost of an accepted input, β for ID✗, 1 − β for OOD. Coverage: accepted share of all input. ID✗, OOD and each set: the share of these that is accepted. Difference: to the baseline, in the metric that orders the list. ≈ marks a difference within noise: ± 2 std over training runs, run by run, includes 0; with one run, ± 2 standard errors, from the influence of each input. Threshold: accept an input whose score is at least this. Press the name of a score to see what it would do."],
  map: ["The map", "For every α and β, which score has the lowest value of the chosen metric. The paler the colour, the smaller its lead; it is full from a lead of 10% of the second's value. Dots: the lead over the second is within noise. The ring is the current setting; press anywhere on the map to move it. If one colour fills the whole row at your β, α does not matter."],
  riskrecall: ["Risk and recall", "The risk at each recall of ID✓. Markers: the chosen recall. The oracle accepts ID✓ alone, with risk 0 at every recall. Bands: ± 2 std over training runs."],
  riskcoverage: ["Risk and coverage", "The risk against the share of all input that is accepted. The oracle accepts ID✓ first and then the cheaper mistakes: no score can be below it. Markers: the chosen recall. Bands: ± 2 std over training runs."],
  overalpha: ["Against α", "How the chosen metric changes with the share of ID input, all else the same."],
  sets: ["Each kind of input", "AUROC: the chance that an ID✓ scores above an input of this kind, 50% is a coin toss. Share accepted: at the chosen recall. Risk and AURR: with this set alone as the OOD input (for ID✗: without OOD input). Best bold, second and third underlined. Blue is better than the baseline, orange worse."],
};
