// The page: the setting and its views, which are drawn as frames have time.

import { makeControls } from "./controls.js";
import { drawCoverage, drawRecall } from "./curves.js";
import { readData } from "./data.js";
import { byId, el, setText, withCode } from "./dom.js";
import { drawMap, makeMap } from "./map.js";
import { onTheme, watchSizes } from "./plots.js";
import { Scene } from "./scene.js";
import { sum } from "./seeds.js";
import { fromFragment, settled, toFragment } from "./state.js";
import { drawAlpha, drawBeta } from "./sweeps.js";
import { detailKey, makeRanked, makeSets } from "./tables.js";
import { advice, grouped, metricName, neat, rounded, sentence, thousand } from "./words.js";

const BUDGET = 26; // ms: a frame draws a second plot only if it is expected to end within these

const data = readData(byId("data"));
const scene = new Scene(data);
let state = fromFragment(data, location.hash);
scene.use(state);

const showControls = makeControls(data, change, () => scene);
const showRanked = makeRanked((spec) => change({ focus: state.focus === spec ? null : spec }));
const showSets = makeSets();
makeMap(change);

// A view is drawn again when its key changes. Plots out of sight wait until the visible ones are drawn.
const setting = () => [state.alpha, state.beta, ...scene.shown, scene.focus, scene.best, scene.baseline].join();
const curvesOf = () => `${scene.mixKey};${state.level};${setting()}`;
const sweepOf = () => `${scene.metricKey};${state.metric};${setting()}`;
const views = [
  { id: "map", needsOod: true, draw: drawMap, key: () => `${scene.metricKey};${state.alpha};${state.beta};${scene.shown}` },
  { id: "risk-recall", draw: drawRecall, key: curvesOf },
  { id: "risk-coverage", draw: drawCoverage, key: curvesOf },
  { id: "over-alpha", needsOod: true, draw: drawAlpha, key: sweepOf },
  { id: "over-beta", draw: drawBeta, key: sweepOf },
  { id: "sets", draw: showSets, key: () => `${detailKey(scene)};${scene.shown};${scene.baseline}` },
];
const visible = new Set(views.map((view) => view.id));
let onScreen = null; // the setting that the text and the list show
let waiting = false;
let frames = 0;
let turn = 0;

function change(part) {
  state = settled(data, { ...state, ...part });
  askForFrame();
  clearTimeout(change.timer);
  change.timer = setTimeout(() => history.replaceState(null, "", `#${toFragment(data, state)}`), 150);
}

function askForFrame() {
  document.documentElement.dataset.busy = "";
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(frame);
}

/**
 * Draw one frame: as many plots as there is time for, in turn, then the controls, the text and the list.
 *
 * Plots come first because they measure the page, which must not have changed since its layout.
 */
function frame() {
  const began = performance.now();
  waiting = false;
  const moved = state !== onScreen;
  if (moved) scene.use(state);
  const stale = staleViews();
  const urgent = stale.filter((view) => visible.has(view.id));
  for (const [place, view] of (urgent.length ? urgent : stale).entries()) {
    if (place && performance.now() - began + (view.cost ?? 0) > BUDGET) break;
    drawView(view);
  }
  if (moved) {
    onScreen = state;
    showControls(state);
    showRanked(scene);
    showWords();
  }
  if (frames++ % 1000 === 999) performance.clearMeasures("sirc-frame");
  performance.measure("sirc-frame", { start: began, end: performance.now() });
  if (staleViews().length) askForFrame();
  else {
    document.documentElement.dataset.ready = "";
    delete document.documentElement.dataset.busy;
  }
}

/** The views that are out of date, from the one after the last drawn on, so that each gets its turn. */
function staleViews() {
  const ordered = views.map((_, i) => views[(turn + i) % views.length]);
  return ordered.filter((view) => !(view.needsOod && !scene.model.sets.length) && view.drawn !== view.key());
}

function drawView(view) {
  view.drawn = view.key();
  turn = (views.indexOf(view) + 1) % views.length;
  const began = performance.now();
  view.draw(scene);
  view.cost = performance.now() - began;
}

function showWords() {
  const metric = metricName(state.metric, scene.recall);
  for (const element of document.querySelectorAll(".metric-name")) setText(element, metric);
  setText(byId("setting"), settingInWords());
  byId("sentence").replaceChildren(...sentence(scene).map((piece) => (piece.name === undefined ? piece : el("strong", {}, piece.name))));
  const items = advice(scene);
  if (items.join() !== [...byId("advice").children].map((item) => item.textContent).join()) {
    byId("advice").replaceChildren(...items.map((item) => el("li", {}, item)));
  }
  showThousand();
  showUse();
}

function settingInWords() {
  const model = scene.model.name ? `${scene.model.name}, ` : "";
  const run = state.run !== "all" ? `seed ${state.run}, ` : scene.several ? `mean over ${scene.runs.length} runs, ` : "";
  const mix = scene.model.sets.length ? `, OOD: ${state.mix === "own" ? "own mix" : state.mix === "all" ? "all sets" : state.mix}` : "";
  return `${model}${run}α = ${rounded(state.alpha)}, β = ${rounded(state.beta)}, recall ${neat(scene.recall)}${mix}`;
}

const KINDS = ["right", "wrong", "of no class"];

/** A strip of 1000 inputs: what is accepted and what is rejected. */
function showThousand() {
  const { accepted, rejected } = thousand(scene, scene.focus);
  const strip = byId("thousand");
  if (!strip.children.length) {
    for (const fate of ["accepted", "rejected"]) {
      for (const kind of ["correct", "wrong", "ood"]) strip.append(el("span", { class: `${fate} ${kind}` }));
    }
    const key = ["accepted right", "accepted wrong", "accepted, of no class", "rejected"];
    byId("key").append(...["correct", "wrong", "ood", "rejected"].map((kind, i) =>
      el("li", {}, el("span", { class: kind === "rejected" ? "rejected" : `accepted ${kind}` }), key[i])));
  }
  for (const item of byId("key").children) item.hidden = !scene.model.sets.length && item.textContent.includes("no class");
  [...accepted, ...rejected].forEach((count, i) => { strip.children[i].style.flexGrow = count; });
  const inWords = (counts) => counts.map((count, i) => `${count} ${KINDS[i]}`).join(", ");
  strip.setAttribute("aria-label", `Of 1000 inputs, accepted: ${inWords(accepted)}; rejected: ${inWords(rejected)}.`);
  strip.title = `accepted ${sum(accepted)}: ${inWords(accepted)}; rejected ${sum(rejected)}: ${inWords(rejected)}`;
}

/** Python code for the choice, with all digits of each run's threshold. */
function showUse() {
  const spec = scene.model.scores[scene.focus].spec;
  const code = scene.pointsOf(scene.focus).map((point, run) => {
    const threshold = Number.isFinite(point.threshold) ? String(point.threshold) : `float("${point.threshold > 0 ? "inf" : "-inf"}")`;
    return `accept = scorer(outputs)[${JSON.stringify(spec)}] >= ${threshold}${scene.several ? `  # seed ${scene.runs[run].seed}` : ""}`;
  });
  const use = byId("use");
  if (!use.children.length) use.append(el("p", { class: "note" }, "In Python:"), el("pre", { tabindex: 0, "aria-label": "Python code" }, el("code")));
  setText(use.querySelector("code"), code.join("\n"));
}

function showHeader() {
  setText(byId("title"), data.title);
  byId("notes").append(...data.notes.map((note) => el("p", {}, ...withCode(note))));
  const sets = new Set(data.models.flatMap((model) => model.sets)).size;
  const scores = Math.max(...data.models.map((model) => model.scores.length));
  const runs = sum(data.models.map((model) => model.runs.length));
  const count = (number, word) => `${grouped(number)} ${word}${number === 1 ? "" : "s"}`;
  const parts = [count(scores, "score"), ...(sets ? [count(sets, "OOD set")] : []), count(runs, "training run")].join(", ");
  const [kind, dials] = sets ? ["Selective classification with OOD data", "α, β"] : ["Selective classification", "β"];
  setText(byId("about"), `${kind}: ${parts}. Drag ${dials} and the recall to see what a choice does.`);
  setText(byId("footer"), `Made by sirc ${data.version}. Shares, risk and coverage are exact at every recall of the slider; ${data.points < 512 ? `areas are computed from ${data.points} thresholds` : "areas are within 0.5% of the exact ones"}. This page loads nothing and sends nothing.`);
}

function redraw(now) {
  for (const view of views) view.drawn = null;
  if (now) for (const view of staleViews()) drawView(view);
  else askForFrame();
}

// The fragment of the address holds the setting: the skip link must not replace it.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
addEventListener("hashchange", () => {
  if (location.hash.replace(/^#/, "") === toFragment(data, state)) return;
  state = fromFragment(data, location.hash);
  askForFrame();
});
// A number field shows what is typed, and the setting again when it is left.
byId("controls").addEventListener("settle", () => showControls(state));
onTheme(redraw);
watchSizes((id) => {
  views.find((view) => view.id === id).drawn = null;
  askForFrame();
});
const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) visible.add(entry.target.id);
    else visible.delete(entry.target.id);
  }
}, { rootMargin: "100px" });
for (const view of views) sight.observe(byId(view.id));

showHeader();
askForFrame();
