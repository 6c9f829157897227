// The two tables: the scores ranked at the setting, and what each does to each kind of input.

import { byId, el, setText, swatch } from "./dom.js";
import { atBeta, auroc, metricParts, mixed, reaching } from "./mixture.js";
import { slopes, twiceError, variances } from "./noise.js";
import { mean, paired, spread } from "./seeds.js";
import { grouped, hundredfold, metricName, neat, noiseInWords, plainNumber, rounded, signed } from "./words.js";

/** The ranked list. `choose(spec)` is called when the name of a score is pressed. */
export function makeRanked(choose) {
  const table = byId("ranked");
  hintAtMore(table);
  const rowsOf = oncePerModel((scene) => buildRanked(table, scene, choose));
  return (scene) => {
    const rows = rowsOf(scene);
    const body = table.tBodies[0];
    const wanted = scene.order.map((score) => rows.get(score));
    // Rows move only when the order changes.
    if (body.children.length !== wanted.length || wanted.some((row, i) => body.children[i] !== row.line)) {
      const focused = body.contains(document.activeElement) ? document.activeElement : null;
      body.replaceChildren(...wanted.map((row) => row.line));
      focused?.focus({ preventScroll: true });
    }
    setText(table.querySelector("th[data-column=risk]"), `${metricName("risk", scene.recall)} %`);
    for (const head of table.querySelectorAll("thead th")) {
      if (head.dataset.column === scene.state.metric) head.setAttribute("aria-sort", "ascending");
      else head.removeAttribute("aria-sort");
    }
    scene.order.forEach((score, place) => fillRow(scene, rows.get(score), score, place));
    setText(byId("ranked-note"), rankedNote(scene));
  };
}

/** A function of the scene whose result is built again only when another model is chosen. */
function oncePerModel(build) {
  let model = null;
  let result = null;
  return (scene) => {
    if (model !== scene.state.model) {
      model = scene.state.model;
      result = build(scene);
    }
    return result;
  };
}

/** Mark a table's box while columns are hidden at its right. */
function hintAtMore(table) {
  const box = table.parentElement;
  const look = () => box.toggleAttribute("data-more", table.getBoundingClientRect().right > box.getBoundingClientRect().right + 1);
  box.addEventListener("scroll", look, { passive: true });
  const sizes = new ResizeObserver(look);
  [box, table].forEach((one) => sizes.observe(one));
}

/** Build a table; return the row of each score, with the parts of `nameOf(score)` and empty cells by column. */
function buildTable(table, scene, caption, columns, nameOf) {
  const heads = columns.map(([column, text]) =>
    el("th", { scope: "col", "data-column": column, title: text, class: column.startsWith("set-") && "kind" }, el("span", { class: "clamp" }, text)));
  const head = el("tr", {}, el("th", { scope: "col", class: "first" }, "Score"), ...heads);
  table.replaceChildren(el("caption", {}, caption), el("thead", {}, head), el("tbody"));
  return new Map(scene.model.scores.map((score) => {
    const name = nameOf(score);
    const cells = new Map(columns.map(([column]) => [column, el("td", { "data-column": column })]));
    const first = el("th", { scope: "row", class: "first" }, ...Object.values(name));
    return [score.index, { ...name, cells, line: el("tr", { "data-score": score.spec }, first, ...cells.values()) }];
  }));
}

function columnsOf(scene) {
  return [
    ["risk", "Risk %"],
    ["aurr", "AURR %"],
    ["aurc", "AURC %"],
    ["difference", "vs baseline"],
    ["coverage", "Coverage %"],
    ["wrong", "ID✗ %"],
    ...(scene.model.sets.length ? [["ood", "OOD %"]] : []),
    ["threshold", "Threshold"],
    ...scene.model.sets.map((name, set) => [`set-${set}`, name]),
  ];
}

function buildRanked(table, scene, choose) {
  return buildTable(table, scene, "Scores, the best at this setting first", columnsOf(scene), (score) => {
    const button = el("button", { type: "button", class: "name", title: score.spec }, swatch(score), el("span", {}, score.name));
    button.addEventListener("click", () => choose(score.spec));
    return { button, mark: el("span", { class: "mark" }) };
  });
}

function fillRow(scene, row, score, place) {
  const { alpha, beta, metric } = scene.state;
  const points = scene.pointsOf(score);
  const at = scene.points[score];
  const paths = scene.paths[score];
  const shares = (of) => paths.map((path, run) => of(path)[at[run]]);
  const put = (column, values, text) => {
    const cell = row.cells.get(column);
    const value = String(mean(values));
    if (cell.dataset.value === value && cell.dataset.runs === String(values.length)) return;
    cell.dataset.value = value;
    cell.dataset.runs = values.length;
    setText(cell, text(mean(values)));
    cell.title = values.length > 1 ? `± ${hundredfold(spread(values))} (2 std over ${values.length} runs)` : "";
  };
  put("risk", points.map((point) => point.risk), (value) => hundredfold(value));
  put("coverage", points.map((point) => point.coverage), (value) => hundredfold(value, 1));
  put("wrong", shares((path) => path.wrong), (value) => hundredfold(value, 1));
  if (scene.model.sets.length) put("ood", shares((path) => path.ood), (value) => hundredfold(value, 1));
  scene.model.sets.forEach((_, set) => put(`set-${set}`, shares((path) => path.sets[set]), (value) => hundredfold(value, 1)));
  for (const area of ["aurr", "aurc"]) {
    put(area, metric === area ? scene.values[score] : scene.valuesAt(score, area, alpha, beta), (value) => hundredfold(value));
  }
  fillThreshold(row.cells.get("threshold"), points);
  fillDifference(scene, row, score);
  const toBest = place ? scene.lead(score, scene.best) : null;
  const near = Boolean(toBest?.noise);
  setText(row.mark, near ? "≈" : "");
  row.mark.title = near ? "within noise of the best" : "";
  row.line.classList.toggle("best", place === 0);
  row.line.classList.toggle("focus", score === scene.focus);
  row.button.setAttribute("aria-pressed", String(score === scene.focus));
}

function fillThreshold(cell, points) {
  const thresholds = points.map((point) => point.threshold);
  const [least, most] = [Math.min(...thresholds), Math.max(...thresholds)];
  cell.dataset.value = String(mean(thresholds));
  setText(cell, least === most ? plainNumber(least) : `${plainNumber(least)} … ${plainNumber(most)}`);
  cell.title = thresholds.join(", ");
}

function fillDifference(scene, row, score) {
  const cell = row.cells.get("difference");
  const difference = scene.lead(score, scene.baseline);
  cell.dataset.value = String(difference.mean);
  cell.dataset.noise = String(Number(difference.noise && score !== scene.baseline));
  const own = score === scene.baseline;
  setText(cell, own ? "baseline" : `${signed(difference.mean)}${difference.noise ? " ≈" : ""}`);
  cell.className = own ? "own" : difference.noise || Math.abs(difference.mean) < 5e-7 ? "" : difference.mean < 0 ? "better" : "worse";
  cell.title = own ? "" : `± ${hundredfold(difference.spread)} (${noiseInWords(scene)}${difference.noise ? ": within noise" : ""})`;
}

function rankedNote(scene) {
  const runs = `${scene.several ? `Mean over ${scene.runs.length} training runs; ` : ""}≈ is a difference within ± ${noiseInWords(scene)}. `;
  const size = (group) => {
    const numbers = scene.runs.map((run) => run.sizes[group]);
    const [least, most] = [Math.min(...numbers), Math.max(...numbers)];
    return least === most ? grouped(least) : `${grouped(least)}–${grouped(most)}`;
  };
  const sets = scene.model.sets.map((name, set) => `${name} ${size(set + 2)}`).join(", ");
  const alone = scene.model.sets.length ? "" : " Without OOD data the risk is β times the share of wrong predictions among the accepted.";
  const ofId = Object.entries(scene.data.ofId).map(([name, { title, unit }]) => {
    const value = mean(scene.runs.map((run) => run.ofId[name] ?? NaN));
    return unit === "%" ? `${title} ${hundredfold(value, 1)}%` : `${title} ×10² ${hundredfold(value)}`;
  }).join(", ");
  return `${runs}Difference in ${metricName(scene.state.metric, scene.recall)}, in points. ${sets ? "ID✗, OOD and each set" : "ID✗"}: the share accepted. Measured on ${size(0)} ID✓ and ${size(1)} ID✗ (${ofId})${sets ? `; OOD: ${sets}` : ""}.${alone}`;
}

/** The table of one metric for each kind of input. */
export function makeSets() {
  const table = byId("sets");
  hintAtMore(table);
  const rowsOf = oncePerModel((scene) => buildSets(table, scene));
  return (scene) => {
    const rows = rowsOf(scene);
    table.tBodies[0].replaceChildren(...scene.shown.map((score) => rows.get(score).line));
    const { higher } = scene.data.metrics[scene.state.detail];
    [null, ...scene.model.sets.keys()].forEach((set) => {
      const column = set === null ? "wrong" : `set-${set}`;
      const values = scene.cached(`detail ${column}`, detailKey(scene), () =>
        scene.model.scores.map((score) => detailOf(scene, score.index, set)));
      const twice = scene.cached(`noise ${column}`, `${detailKey(scene)};${scene.baseline}`, () =>
        scene.model.scores.map((score) => detailTwice(scene, score.index, set)));
      scene.shown.forEach((score) => {
        const cell = rows.get(score).cells.get(column);
        const better = scene.shown.filter((other) => (higher ? 1 : -1) * (mean(values[other]) - mean(values[score])) > 0);
        fillDetail(scene, cell, values[score], paired(values[score], values[scene.baseline], twice[score]), better.length, higher);
      });
    });
    setText(byId("sets-note"), setsNote(scene));
  };
}

function buildSets(table, scene) {
  const columns = [["wrong", "ID✗"], ...scene.model.sets.map((name, set) => [`set-${set}`, name])];
  return buildTable(table, scene, "One metric for each kind of input", columns,
    (score) => ({ sign: swatch(score), name: el("span", {}, score.name) }));
}

/** The part of the setting that the second table depends on. */
export function detailKey(scene) {
  const { model, run, detail, level, alpha, beta } = scene.state;
  return [model, run, detail, detail === "auroc" ? "" : level, ...(["risk", "aurr"].includes(detail) ? [alpha, beta] : [])].join();
}

/** A metric in each run, with one set as the OOD input; `set` null is ID✗, without OOD input. */
function detailOf(scene, score, set, runs = scene.runs) {
  return runs.map((run) => {
    const fixed = run.values[scene.state.detail];
    return fixed ? fixed[score][set === null ? 0 : set + 1] ?? NaN : detailIn(scene, run, run.scores[score], set);
  });
}

/** Two standard errors of one run's difference to the baseline; NaN for a metric that the page cannot recompute. */
function detailTwice(scene, score, set) {
  const { detail, alpha, beta } = scene.state;
  if (scene.several) return NaN;
  const [run] = scene.runs;
  if (scene.model.runs.length > 1) {
    const others = detailOf(scene, scene.baseline, set, scene.model.runs);
    return spread(detailOf(scene, score, set, scene.model.runs).map((value, i) => value - others[i]));
  }
  if (run.values[detail] || !run.sizes[set === null ? 1 : set + 2]) return NaN;
  const [own, theirs] = [score, scene.baseline].map((one) => {
    const path = aloneOf(scene, run, run.scores[one], set);
    const setting = {
      alpha: set === null ? 1 : alpha, at: reaching(path, scene.recall), window: scene.model.windows[scene.state.level], ofOod: set !== null,
    };
    return { own: run.scores[one], slopes: slopes(path, detail, setting) };
  });
  return twiceError(variances(run, own, theirs, onlySet(scene, set)), beta);
}

function detailIn(scene, run, own, set) {
  const { detail, alpha, beta } = scene.state;
  const group = set === null ? 1 : set + 2;
  if (!run.sizes[group]) return NaN;
  if (detail === "auroc") return auroc(own, group);
  const alone = aloneOf(scene, run, own, set);
  const at = reaching(alone, scene.recall);
  if (detail === "fpr") return (set === null ? alone.wrong : alone.ood)[at];
  return atBeta(metricParts(alone, detail, set === null ? 1 : alpha, at), beta);
}

/** A score on one set as the OOD input. */
function aloneOf(scene, run, own, set) {
  own.alone ??= new Map();
  if (!own.alone.has(set)) own.alone.set(set, mixed(run, own, onlySet(scene, set)));
  return own.alone.get(set);
}

/** The shares of the OOD input where it is all of one set. */
function onlySet(scene, set) {
  return scene.model.sets.map((_, other) => Number(other === set));
}

function fillDetail(scene, cell, values, { mean: difference, spread: reach, noise }, place, higher) {
  const value = mean(values);
  cell.dataset.value = String(value);
  setText(cell, hundredfold(value, scene.data.metrics[scene.state.detail].unit === "%" ? 1 : 2));
  const tint = noise || Number.isNaN(reach) || !Number.isFinite(difference) || Math.abs(difference) < 5e-4 ? "" : difference > 0 === higher ? "better" : "worse";
  const mark = !Number.isFinite(value) || scene.shown.length < 2 ? "" : place === 0 ? "first-place" : place < 3 ? "next-place" : "";
  cell.className = [tint, mark].filter(Boolean).join(" ");
  cell.title = values.length > 1 ? `± ${hundredfold(spread(values))} (2 std over ${values.length} runs)` : "";
}

/** A note about a metric that does not follow the controls. */
function fixedNote(scene) {
  const { title, higher } = scene.data.metrics[scene.state.detail];
  const { alpha, beta } = scene.data.start;
  return `${title} × 100 as evaluated; the controls do not change it. Where α and β matter, it is at α = ${alpha}, β = ${beta} (ID✗: α = 1). ${higher ? "Higher" : "Lower"} is better.${scene.model.runs.length > 1 ? "" : " The noise of one run is not known, so nothing is coloured."}`;
}

function setsNote(scene) {
  const { detail, alpha, beta } = scene.state;
  const setting = `α = ${rounded(alpha)}, β = ${rounded(beta)}`;
  const what = {
    auroc: "%AUROC against ID✓; higher is better.",
    fpr: `Share accepted at recall ${neat(scene.recall)}, in percent; lower is better.`,
    risk: `Risk at recall ${neat(scene.recall)} × 100 at ${setting} (ID✗: α = 1); lower is better.`,
    aurr: `AURR × 100 at ${setting} (ID✗: α = 1); lower is better.`,
  }[detail] ?? fixedNote(scene);
  return `${what} Best bold, second and third underlined; blue is better than the baseline, orange worse.`;
}
