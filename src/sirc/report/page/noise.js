// The sampling error of one run: the influence of each input on a metric, and the error of a difference of scores.

import { coverageAt } from "./mixture.js";

/**
 * The derivatives of a metric by the mass of an input that is first accepted at each point: for both parts of
 * β·a + (1−β)·b those of an ID✓, an ID✗ and an OOD input.
 *
 * `metric` is "aurr", "aurc", "risk" (at point `at`), or "auroc" and "fpr" of ID✗ or, with `ofOod`, of the OOD input.
 * `window` is how far around the recall the slope of the curve is taken.
 */
export function slopes(path, metric, { alpha, at, window, ofOod }) {
  if (metric === "auroc") return samePartsTwice(aurocSlopes(path, ofOod));
  if (metric === "fpr" || metric === "risk") return recallSlopes(path, metric, { alpha, at, window, ofOod });
  return areaSlopes(path, metric, alpha);
}

/** The variance of the difference of two scores' metrics on the same inputs, as [a·a, a·b, b·b] of its parts. */
export function variances(run, score, other, weights) {
  const total = [0, 0, 0];
  score.own.places.forEach((places, group) => {
    const weight = group < 2 ? 1 : weights[group - 2];
    const theirs = other.own.places[group];
    const count = places.length;
    if (count < 2 || !(weight > 0)) return;
    const [a, b] = score.slopes.map((part) => part[Math.min(group, 2)]);
    const [c, d] = other.slopes.map((part) => part[Math.min(group, 2)]);
    let [one, two, oneOne, oneTwo, twoTwo] = [0, 0, 0, 0, 0];
    for (let i = 0; i < count; i++) {
      const first = a[places[i]] - c[theirs[i]];
      const second = b[places[i]] - d[theirs[i]];
      one += first;
      two += second;
      oneOne += first * first;
      oneTwo += first * second;
      twoTwo += second * second;
    }
    const scale = (weight * weight) / (count - 1) / run.sizes[group];
    total[0] += scale * (oneOne - (one * one) / count);
    total[1] += scale * (oneTwo - (one * two) / count);
    total[2] += scale * (twoTwo - (two * two) / count);
  });
  return total;
}

/** Two standard errors at β. */
export function twiceError([first, both, second], beta) {
  const variance = beta * beta * first + 2 * beta * (1 - beta) * both + (1 - beta) * (1 - beta) * second;
  return 2 * Math.sqrt(Math.max(0, variance));
}

/** A metric that does not depend on β has two equal parts. */
function samePartsTwice(parts) {
  return [parts, parts];
}

function areaSlopes(path, metric, alpha) {
  const p = path.run.accuracy;
  const masses = [alpha * p, alpha * (1 - p), 1 - alpha];
  const along = metric === "aurr" ? [1, 0, 0] : masses;
  const made = [0, 1].map(() => masses.map(() => new Float64Array(path.length)));
  const risks = [0, 1].map(() => new Float64Array(path.length));
  for (let i = 1; i < path.length; i++) {
    const covered = coverageAt(path, i, alpha);
    risks[0][i] = covered > 0 ? (masses[1] * path.wrong[i]) / covered : 0;
    risks[1][i] = covered > 0 ? (masses[2] * path.ood[i]) / covered : 0;
  }
  let grown = 0; // the growth of the area from here on, over the coverage
  const lost = [0, 0];
  for (let i = path.length - 1; i > 0; i--) {
    const covered = coverageAt(path, i, alpha);
    const step = along[0] * path.areaCorrect[i] + along[1] * path.areaWrong[i] + along[2] * path.areaOod[i];
    if (covered > 0) {
      grown += step / covered;
      lost[0] += (step * risks[0][i]) / covered;
      lost[1] += (step * risks[1][i]) / covered;
    }
    made.forEach((groups, part) => {
      // Inputs between two points have on average the risk between theirs.
      const own = path.ranks[i] - path.ranks[i - 1] > 1 ? (risks[part][i] + risks[part][i - 1]) / 2 : risks[part][i];
      groups.forEach((slope, group) => {
        slope[i] = along[group] * own + masses[group] * ((group === part + 1 ? grown : 0) - lost[part]);
      });
    });
  }
  return made;
}

function recallSlopes(path, metric, { alpha, at, window, ofOod }) {
  const { correct, wrong, ood } = path;
  const [sizeRight, sizeWrong] = path.run.sizes;
  let [low, high] = [at, at];
  while (low > 1 && correct[low - 1] >= correct[at] - window) low -= 1;
  while (high < path.length - 1 && correct[high + 1] <= correct[at] + window) high += 1;
  if (correct[high] <= correct[low]) [low, high] = [Math.max(0, low - 1), Math.min(path.length - 1, high + 1)];
  const least = path.run.sizes.slice(2).reduce((one, size) => Math.min(one, size), Infinity);
  const byRecall = (share, size) => {
    const [before, here, after] = [low, at, high].map((i) => within(share[i], size));
    const [first, now, last] = [low, at, high].map((i) => within(correct[i], sizeRight));
    const rise = (logit(last) - logit(first)) * now * (1 - now);
    return rise > 0 ? ((logit(after) - logit(before)) * here * (1 - here)) / rise : 0;
  };
  const [wrongSlope, oodSlope] = [byRecall(wrong, sizeWrong), Number.isFinite(least) ? byRecall(ood, least) : 0];
  const step = (size) => Float64Array.from(correct, (_, i) => (i <= at ? size : 0));
  if (metric === "fpr") return samePartsTwice([step(ofOod ? -oodSlope : -wrongSlope), step(ofOod ? 0 : 1), step(ofOod ? 1 : 0)]);
  const p = path.run.accuracy;
  const [mistaken, outside] = [alpha * (1 - p), 1 - alpha];
  const covered = coverageAt(path, at, alpha);
  if (!(covered > 0)) return samePartsTwice([step(0), step(0), step(0)]);
  const risks = [(mistaken * wrong[at]) / covered, (outside * ood[at]) / covered];
  return risks.map((risk, part) => {
    const ofWrong = (mistaken * ((part === 0 ? 1 : 0) - risk)) / covered;
    const ofOodInput = (outside * ((part === 1 ? 1 : 0) - risk)) / covered;
    return [step(-ofWrong * wrongSlope - ofOodInput * oodSlope), step(ofWrong), step(ofOodInput)];
  });
}

/** DeLong's placements: the share of the other group that is ranked below, or above; ties count half. */
function aurocSlopes(path, ofOod) {
  const halves = (share) => Float64Array.from(share, (value, i) => (i ? (value + share[i - 1]) / 2 : 0));
  const nothing = new Float64Array(path.length);
  const right = halves(path.correct);
  const below = halves(ofOod ? path.ood : path.wrong).map((value) => 1 - value);
  return ofOod ? [below, nothing, right] : [below, right, nothing];
}

function within(share, size) {
  return Math.min(1 - 0.5 / size, Math.max(0.5 / size, share));
}

function logit(share) {
  return Math.log(share / (1 - share));
}
