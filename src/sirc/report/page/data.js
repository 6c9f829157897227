// The unpacked data of the page: for each run and score, the accepted share of each group at its thresholds.

/** Read the page's data. At point 0 of every array nothing is accepted. */
export function readData(element) {
  const data = JSON.parse(element.textContent);
  for (const model of data.models) {
    for (const run of model.runs) {
      run.accuracy = run.sizes[0] / (run.sizes[0] + run.sizes[1]);
      run.scores = run.scores.map((packed) => unpack(packed, run.sizes, data.inputs));
    }
    model.scores.forEach((score, index) => { score.index = index; });
  }
  return data;
}

function unpack(packed, sizes, most) {
  const length = packed.size + 1;
  const thresholds = new Float64Array(length);
  thresholds.set(new Float64Array(bytes(packed.thresholds).buffer), 1);
  thresholds[0] = Infinity;
  const [ranks, ...counts] = varints(bytes(packed.counts), sizes.length + 1, length);
  const shares = counts.map((count, group) => Float64Array.from(count, (n) => (sizes[group] ? n / sizes[group] : 0)));
  const areas = shares.map((share, group) => nodeWeights(share, counts[group], ranks));
  return { length, thresholds, ranks, shares, areas, places: packed.firsts ? placesOf(packed.firsts, sizes, most) : [] };
}

/** The points at which some inputs of each group are first accepted. */
function placesOf(firsts, sizes, most) {
  const points = new Uint16Array(bytes(firsts).buffer);
  let begin = 0;
  return sizes.map((size) => {
    const end = begin + Math.min(size, most);
    const places = points.subarray(begin, end);
    begin = end;
    return places;
  });
}

/**
 * The weight of each point in ∫ f d(share), so that the area is Σ weight·f.
 *
 * Between two points, f rises in equal steps, one for each sample that makes the share grow, and each step has its last
 * value. With one such sample this is the step rule, with many the trapezoid.
 */
function nodeWeights(share, count, ranks) {
  const weights = new Float64Array(share.length);
  for (let i = 1; i < share.length; i++) {
    const grown = share[i] - share[i - 1];
    if (grown <= 0) continue;
    const steps = Math.max(1, Math.min(ranks[i] - ranks[i - 1], count[i] - count[i - 1]));
    weights[i] += grown * (0.5 + 0.5 / steps);
    weights[i - 1] += grown * (0.5 - 0.5 / steps);
  }
  return weights;
}

function bytes(text) {
  const binary = atob(text);
  const array = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) array[i] = binary.charCodeAt(i);
  return array;
}

/** Rows of counts from their increments, which have seven bits in each byte, the lowest first. */
function varints(source, rows, length) {
  let at = 0;
  const next = () => {
    let value = 0;
    let scale = 1;
    for (;;) {
      const byte = source[at++];
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) return value;
      scale *= 128;
    }
  };
  return Array.from({ length: rows }, () => {
    const row = new Float64Array(length);
    for (let i = 1; i < length; i++) row[i] = row[i - 1] + next();
    return row;
  });
}
