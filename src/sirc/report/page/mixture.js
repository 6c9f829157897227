// The mathematics of a mixture: α of the input is ID, β is the cost of accepting ID✗ and 1 − β that of OOD.

/** A score of one run on a mix of OOD sets: `weights` are the shares of the OOD input, and sum to 1. */
export function mixed(run, score, weights) {
  const ood = new Float64Array(score.length);
  const areaOod = new Float64Array(score.length);
  weights.forEach((weight, set) => {
    if (!(weight > 0)) return;
    const share = score.shares[set + 2];
    const area = score.areas[set + 2];
    for (let i = 0; i < score.length; i++) {
      ood[i] += weight * share[i];
      areaOod[i] += weight * area[i];
    }
  });
  return {
    run,
    length: score.length,
    thresholds: score.thresholds,
    ranks: score.ranks,
    correct: score.shares[0],
    wrong: score.shares[1],
    ood,
    sets: score.shares.slice(2),
    areaCorrect: score.areas[0],
    areaWrong: score.areas[1],
    areaOod,
  };
}

/** The first point, from the strictest on, whose recall is at least the target. */
export function reaching(path, recall) {
  let low = 0;
  let high = path.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (path.correct[middle] < recall) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The accepted share of all input at a point: α·[p·c + (1−p)·x] + (1−α)·o. */
export function coverageAt(path, i, alpha) {
  const p = path.run.accuracy;
  return alpha * (p * path.correct[i] + (1 - p) * path.wrong[i]) + (1 - alpha) * path.ood[i];
}

/** The accepted shares at a point, with its risk and threshold. */
export function pointAt(path, i, alpha, beta) {
  const p = path.run.accuracy;
  const right = alpha * p * path.correct[i];
  const wrong = alpha * (1 - p) * path.wrong[i];
  const ood = (1 - alpha) * path.ood[i];
  const coverage = right + wrong + ood;
  const risk = coverage > 0 ? (beta * wrong + (1 - beta) * ood) / coverage : 0;
  return { right, wrong, ood, coverage, risk, threshold: path.thresholds[i] };
}

/**
 * A metric at α as the parts [a, b] of β·a + (1−β)·b: risk is linear in β, and so is every area under it.
 *
 * `metric` is "risk" (at point `at`), "aurr" or "aurc".
 */
export function metricParts(path, metric, alpha, at) {
  const p = path.run.accuracy;
  const { correct, wrong, ood, areaCorrect, areaWrong, areaOod } = path;
  const inside = alpha * p;
  const mistaken = alpha * (1 - p);
  const outside = 1 - alpha;
  if (metric === "risk") {
    const covered = inside * correct[at] + mistaken * wrong[at] + outside * ood[at];
    return covered > 0 ? [(mistaken * wrong[at]) / covered, (outside * ood[at]) / covered] : [0, 0];
  }
  const overRecall = metric === "aurr";
  let a = 0;
  let b = 0;
  for (let i = 1; i < path.length; i++) {
    const weight = overRecall
      ? areaCorrect[i]
      : inside * areaCorrect[i] + mistaken * areaWrong[i] + outside * areaOod[i];
    if (weight === 0) continue;
    const covered = inside * correct[i] + mistaken * wrong[i] + outside * ood[i];
    if (covered <= 0) continue;
    const share = weight / covered;
    a += share * wrong[i];
    b += share * ood[i];
  }
  return [a * mistaken, b * outside];
}

/** A metric at β from its parts. */
export function atBeta([a, b], beta) {
  return beta * a + (1 - beta) * b;
}

/** P(ID✓ > group) + ½·P(equal), for ID✗ (group 1) or an OOD set (from 2 on). */
export function auroc(score, group) {
  const positive = score.shares[0];
  const negative = score.shares[group];
  let area = 0;
  for (let i = 1; i < score.length; i++) {
    area += ((negative[i] - negative[i - 1]) * (positive[i] + positive[i - 1])) / 2;
  }
  return area;
}

/** The least risk any score could have at each coverage: ID✓ first, then the cheaper mistakes. */
export function oracle(accuracy, alpha, beta) {
  const good = alpha * accuracy;
  const first = beta <= 0.5 ? alpha * (1 - accuracy) : 1 - alpha;
  const cheap = Math.min(beta, 1 - beta);
  const dear = Math.max(beta, 1 - beta);
  const x = Array.from({ length: 160 }, (_, i) => (i + 1) / 160);
  x.push(good, Math.min(1, good + first));
  x.sort((one, other) => one - other);
  const coverage = x.filter((k) => k > 0);
  const risk = coverage.map((k) => {
    const bad = Math.max(0, k - good);
    return (cheap * Math.min(bad, first) + dear * Math.max(0, bad - first)) / k;
  });
  return { coverage, risk };
}
