// Several training runs: means, spreads, and differences within noise.

export function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

export function mean(values) {
  return sum(values) / values.length;
}

/** Twice the sample standard deviation; with one run there is none, which is NaN. */
export function spread(values) {
  if (values.length < 2) return NaN;
  const centre = mean(values);
  return 2 * Math.sqrt(sum(values.map((value) => (value - centre) ** 2)) / (values.length - 1));
}

/** The difference of two scores over the same runs, and whether it is noise: where ± 2 std, or of one run `twice`, includes 0. */
export function paired(values, others, twice) {
  const differences = values.map((value, i) => value - others[i]);
  const centre = mean(differences);
  const reach = values.length > 1 ? spread(differences) : twice;
  return { mean: centre, spread: reach, noise: Math.abs(centre) <= reach };
}

/** Order scores by their mean: the best first; equal ones stay in the order they came in. */
export function ranked(indices, valuesOf) {
  return [...indices].sort((one, other) => valuesOf(one) - valuesOf(other) || one - other);
}
