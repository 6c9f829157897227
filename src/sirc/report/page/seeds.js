// Values over training runs: means, spreads, and differences within noise.

export function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

export function mean(values) {
  return sum(values) / values.length;
}

/** Twice the sample standard deviation; NaN with one run. */
export function spread(values) {
  if (values.length < 2) return NaN;
  const centre = mean(values);
  return 2 * Math.sqrt(sum(values.map((value) => (value - centre) ** 2)) / (values.length - 1));
}

/** The mean difference of two scores, its ± 2 std over the runs or for one run `twice`, and whether that includes 0: noise. */
export function paired(values, others, twice) {
  const differences = values.map((value, i) => value - others[i]);
  const centre = mean(differences);
  const reach = values.length > 1 ? spread(differences) : twice;
  return { mean: centre, spread: reach, noise: Math.abs(centre) <= reach };
}

/** Order scores by their mean, the best first; ties keep the order of the scores. */
export function ranked(indices, valuesOf) {
  return [...indices].sort((one, other) => valuesOf(one) - valuesOf(other) || one - other);
}
