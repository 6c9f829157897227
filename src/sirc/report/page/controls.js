// The controls: each shows a part of the setting, and changes it.

import { byId, el, setText, swatch } from "./dom.js";
import { mean, ranked } from "./seeds.js";
import { defaultWeights, fixedMetrics, isShown, nearestLevel, oodShares, scaled, startState, toFragment } from "./state.js";
import { EXPLANATIONS, metricName, neat, percent, rounded } from "./words.js";

/** Make the controls. `change(part)` changes a part of the setting; `scene()` returns the current scene. */
export function makeControls(data, change, scene) {
  dial("alpha", (value) => change({ alpha: value }));
  dial("beta", (value) => change({ beta: value }));
  byId("recall").max = data.levels.length - 1;
  byId("recall").addEventListener("input", (event) => change({ level: Number(event.target.value) }));
  number("recall-number", 100, (value) => change({ level: nearestLevel(data.levels, value / 100) }));

  fill(byId("model"), data.models.map((model, i) => [String(i), model.name || `model ${i + 1}`]));
  byId("model-field").hidden = data.models.length < 2;
  byId("model").addEventListener("change", (event) => {
    const model = Number(event.target.value);
    // The reader's own weights are for the sets of one model.
    const alike = data.models[model].sets.join("\n") === scene().model.sets.join("\n");
    change({ model, ...(alike ? {} : { mix: "all" }) });
  });
  byId("run").addEventListener("change", (event) => change({ run: event.target.value }));
  for (const radio of document.querySelectorAll("input[name=metric]")) {
    radio.addEventListener("change", () => change({ metric: radio.value }));
  }
  byId("pool").addEventListener("change", (event) => {
    const { mix } = scene().state;
    change({ pool: event.target.value, mix: mix === "own" ? "all" : mix });
  });
  byId("baseline").addEventListener("change", (event) => change({ baseline: event.target.value }));
  byId("detail").append(...fixedMetrics(data).map((name) => el("option", { value: name }, `${data.metrics[name].title}, as evaluated`)));
  byId("detail").addEventListener("change", (event) => change({ detail: event.target.value }));
  byId("scores-all").addEventListener("click", () => change({ shown: null }));
  byId("scores-few").addEventListener("click", () => change({ shown: bestFive(scene()) }));
  byId("reset").addEventListener("click", () => change({ ...startState(data), alphaKept: undefined, model: scene().state.model }));
  byId("link").addEventListener("click", () => copyLink(data, scene().state));
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  explain();
  if (matchMedia("(max-width: 62rem)").matches) byId("more").open = false;

  let built = -1;
  return (state) => {
    const model = data.models[state.model];
    if (built !== state.model) {
      built = state.model;
      buildMix(model, change, scene);
      buildScores(model, change, scene);
      fill(byId("run"), [["all", `mean over ${model.runs.length}`], ...model.runs.map((run) => [String(run.seed), `seed ${run.seed}`])]);
      byId("run-field").hidden = model.runs.length < 2;
      for (const part of document.querySelectorAll("[data-needs=ood]")) part.hidden = !model.sets.length;
    }
    showSetting(data, model, state);
  };
}

/** Show the setting in the controls, except in a field in which someone is typing. */
function showSetting(data, model, state) {
  const recall = data.levels[state.level];
  setValue("alpha", state.alpha);
  setValue("beta", state.beta);
  setValue("recall", state.level);
  setValue("alpha-number", rounded(state.alpha));
  setValue("beta-number", rounded(state.beta));
  setValue("recall-number", rounded(100 * recall));
  byId("recall").setAttribute("aria-valuetext", neat(recall));
  setText(byId("risk-name"), metricName("risk", recall));
  setValue("model", String(state.model));
  setValue("run", state.run);
  setValue("pool", state.pool);
  setValue("baseline", state.baseline);
  setValue("detail", state.detail);
  for (const radio of document.querySelectorAll("input[name=metric]")) radio.checked = radio.value === state.metric;
  for (const box of document.querySelectorAll("#score-boxes input")) box.checked = isShown(state, box.dataset.score);
  for (const button of document.querySelectorAll("#mix-buttons button")) {
    button.setAttribute("aria-pressed", String(button.dataset.mix === state.mix));
  }
  if (!model.sets.length) return;
  const shares = oodShares(state.weights);
  const sliders = state.mix === "own" ? state.weights : scaled(state.weights);
  for (const row of document.querySelectorAll("#mix-sets .set")) {
    const set = Number(row.dataset.row);
    row.querySelector("input[type=checkbox]").checked = shares[set] > 0;
    const slider = row.querySelector("input[type=range]");
    slider.value = sliders[set];
    slider.setAttribute("aria-valuetext", `${percent(shares[set])} of OOD input`);
    const whole = percent(shares[set], 0);
    setText(row.querySelector("output"), shares[set] > 0 && whole === "0%" ? "<1%" : whole);
  }
}

function setValue(id, value) {
  const control = byId(id);
  const typing = control.type === "number" && control === document.activeElement;
  if (!typing && control.value !== String(value)) control.value = value;
}

/** A slider and the number beside it. */
function dial(id, use) {
  byId(id).addEventListener("input", (event) => use(Number(event.target.value)));
  number(`${id}-number`, 1, use);
}

function number(id, most, use) {
  const field = byId(id);
  field.addEventListener("input", () => {
    const value = field.value.trim() === "" ? NaN : Number(field.value);
    if (value >= 0 && value <= most) use(value);
  });
  // A field that is left shows the setting again: what was typed may be out of range, or between two recalls.
  field.addEventListener("blur", () => requestAnimationFrame(() => field.dispatchEvent(new CustomEvent("settle", { bubbles: true }))));
}

function fill(select, options) {
  select.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
}

function buildMix(model, change, scene) {
  const buttons = [["all", "All"], ...Object.keys(model.groups).map((name) => [name, name])];
  byId("mix-buttons").replaceChildren(...buttons.map(([mix, text]) => {
    const button = el("button", { type: "button", "data-mix": mix }, text);
    button.addEventListener("click", () => change({ mix }));
    return button;
  }));
  byId("mix-sets").replaceChildren(...model.sets.map((name, set) => {
    const box = el("input", { type: "checkbox", "data-set": set, id: `set-${set}` });
    const slider = el("input", { type: "range", "data-weight": set, min: 0, max: 100, step: 1, "aria-label": `weight of ${name}` });
    const weigh = (weight) => {
      const { mix, weights: before } = scene().state;
      const weights = mix === "own" ? [...before] : scaled(before);
      weights[set] = weight;
      if (weights.some((w) => w > 0)) change({ mix: "own", weights });
      else change({});
    };
    box.addEventListener("change", () => {
      const usual = scaled(defaultWeights(model, "all", scene().state.pool));
      weigh(box.checked ? usual[set] : 0);
    });
    slider.addEventListener("input", () => weigh(Number(slider.value)));
    const label = el("label", { for: `set-${set}`, title: name }, box, el("span", {}, name));
    return el("div", { class: "set", "data-row": set }, label, slider, el("output", { for: `set-${set}` }));
  }));
}

function buildScores(model, change, scene) {
  byId("score-boxes").replaceChildren(...model.scores.map((score, i) => {
    const box = el("input", { type: "checkbox", "data-score": score.spec, id: `score-${i}` });
    box.addEventListener("change", () => {
      const { state } = scene();
      const shown = new Set(model.scores.map((other) => other.spec).filter((spec) => isShown(state, spec)));
      if (box.checked) shown.add(score.spec);
      else shown.delete(score.spec);
      if (shown.size) change({ shown });
      else change({}); // one stays
    });
    return el("label", { class: "score", title: score.spec }, box, swatch(score), el("span", {}, score.name));
  }));
  fill(byId("baseline"), model.scores.map((score) => [score.spec, score.name]));
}

function bestFive(scene) {
  const order = ranked(scene.model.scores.keys(), (score) => mean(scene.values[score]));
  return new Set(order.slice(0, 5).map((score) => scene.model.scores[score].spec));
}

async function copyLink(data, state) {
  const link = `${location.href.split("#")[0]}#${toFragment(data, state)}`;
  try {
    await navigator.clipboard.writeText(link);
    setText(byId("link-note"), "copied");
  } catch {
    setText(byId("link-note"), "the link is in the address bar");
  }
  setTimeout(() => setText(byId("link-note"), ""), 3000);
}

/** Show an explanation for each question mark. */
function explain() {
  const note = byId("explanation");
  for (const button of document.querySelectorAll("button.why")) {
    const [title, text] = EXPLANATIONS[button.dataset.why];
    button.textContent = "?";
    button.setAttribute("aria-label", `What is this: ${title}?`);
    button.setAttribute("popovertarget", "explanation");
    button.addEventListener("click", () => {
      note.replaceChildren(el("strong", {}, title), el("p", {}, text));
      const at = button.getBoundingClientRect();
      const width = Math.min(352, innerWidth - 24);
      note.style.width = `${width}px`;
      note.style.left = `${Math.max(12, Math.min(at.left, innerWidth - width - 12))}px`;
      const below = at.bottom < innerHeight / 2;
      note.style.top = below ? `${at.bottom + 6}px` : "auto";
      note.style.bottom = below ? "auto" : `${innerHeight - at.top + 6}px`;
    });
  }
}
