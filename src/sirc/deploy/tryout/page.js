// The page to try a guard: takes an image, asks for the decision about it, and shows the answer.

function make(name, options = {}, ...children) {
  const made = Object.assign(document.createElement(name), options);
  made.append(...children);
  return made;
}

/** The name of a class; its lines may break after a separator, not inside a word. */
function breakable(name) {
  return name.split(/(?<=[_/.,-])/).flatMap((part) => [part, make("wbr")]);
}

const UNMARKED = "The validation images that set the threshold. Yours will be marked among them.";
let about = null; // the answer of /guard
let latest = null; // the answer of /decide for the image that is shown
let asking = null; // aborts the request in progress

async function begin() {
  try {
    about = await (await fetch("/guard")).json();
  } catch {
    fail("The program behind this page does not answer.");
    return;
  }
  byId("about").textContent = `${about.model}, ${about.classes ?? "some"} classes, score ${about.spec}`;
  byId("lines").replaceChildren(...about.lines.map((line) => make("li", { textContent: line.replaceAll("`", "") })));
  byId("near-words").textContent = about.neighbours;
  if (about.histogram) {
    const { right, wrong, outside } = about.histogram;
    const [r, w] = [right, wrong].map((counts) => counts.reduce((sum, count) => sum + count, 0));
    byId("key-wrong").hidden = !w;
    if (!w) byId("key-right-name").textContent = "validation images"; // it may not be known which are right
    byId("outside").textContent = outside ? `${outside} of ${r + w + outside} lie outside of what is drawn.` : "";
    byId("place").hidden = false;
    byId("standing").textContent = UNMARKED;
    new ResizeObserver(drawPlace).observe(byId("histogram"));
  }
  document.documentElement.dataset.ready = "";
}

async function take(file) {
  asking?.abort();
  const mine = (asking = new AbortController());
  latest = null;
  show(file);
  if (about && file.size > about.max_bytes) {
    fail(`The image must have at most ${about.max_bytes / 2 ** 20} MiB; it has ${Math.ceil(file.size / 2 ** 20)}.`);
    return;
  }
  byId("verdict").ariaBusy = "true";
  try {
    const options = { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } };
    const response = await fetch("/decide", { ...options, signal: mine.signal });
    const answer = await response.json();
    if (mine !== asking) return;
    if (response.ok) showDecision(answer, file.name);
    else fail(sentence(answer.error));
  } catch (error) {
    if (mine === asking && error.name !== "AbortError") fail("The program behind this page does not answer.");
  }
}

function show(file) {
  URL.revokeObjectURL(byId("preview").src);
  byId("preview").src = URL.createObjectURL(file);
  byId("preview").alt = `Your image, ${file.name}`;
  byId("preview").hidden = false;
  byId("invitation").hidden = true;
  byId("choose").textContent = "Choose another";
}

function sentence(text) {
  return `${text.slice(0, 1).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

function fail(text) {
  delete byId("verdict").dataset.accepted;
  verdict("No decision", "That did not work", text, "");
  latest = null;
  for (const id of ["seen", "classes", "near"]) byId(id).hidden = true;
  if (about?.histogram) byId("standing").textContent = UNMARKED;
  drawPlace();
}

function verdict(kicker, answer, words, guess) {
  byId("kicker").textContent = kicker;
  byId("answer").replaceChildren(...breakable(answer));
  byId("words").textContent = words;
  byId("guess").textContent = guess;
  byId("guess").hidden = !guess;
  byId("verdict").ariaBusy = "false";
}

function showDecision(decision, name) {
  latest = decision;
  byId("verdict").dataset.accepted = decision.accepted;
  const guess = decision.accepted || !decision.top.length ? "" : `Its guess would be ${decision.class}.`;
  const [kicker, answer] = decision.accepted ? ["✓ Accepted", decision.class] : ["? Rejected", "I don't know"];
  verdict(kicker, answer, decision.words, guess);
  byId("seen-image").src = decision.seen;
  byId("seen-image").alt = `${name} as it is prepared for the network`;
  byId("seen-image").onload = () => byId("seen-image").classList.toggle("few", byId("seen-image").naturalWidth < 96);
  byId("seen-size").textContent = `${decision.size} pixels`;
  byId("seen").hidden = false;
  byId("standing").textContent = decision.standing;
  byId("place").hidden = false;
  drawPlace();
  byId("classes").hidden = !decision.top.length;
  byId("top").replaceChildren(...decision.top.map(classRow));
  byId("near").hidden = false;
  if (decision.nearest.length) {
    const same = decision.nearest.filter((image) => image.class === decision.class).length;
    const most = decision.nearest.length;
    byId("near-words").textContent =
      `By the angle between their features and this image's; 1 is the same direction. ${same} of ${most} are ${decision.class}.`;
  }
  byId("nearest").replaceChildren(...decision.nearest.map(neighbour));
  byId("verdict").scrollIntoView({ block: "nearest" });
}

function classRow({ class: name, probability }) {
  const filled = make("span");
  filled.style.width = `${100 * probability}%`;
  const share = make("span", { className: "share", textContent: percent(probability) });
  return make("li", {}, make("span", {}, ...breakable(name)), make("span", { className: "bar" }, filled), share);
}

function neighbour({ number: place, file, class: name, similarity }) {
  const image = make("img", { src: `/train/${place}`, alt: file, title: file });
  const value = make("small", { textContent: similarity.toFixed(3) });
  return make("li", {}, image, make("strong", {}, ...breakable(name)), value);
}

// Draw the calibration's histogram: accepted rows are right of the dashed line, and an arrow marks this image.
function drawPlace() {
  const svg = byId("histogram");
  const given = about?.histogram;
  svg.toggleAttribute("hidden", !given);
  byId("key").hidden = !given;
  if (!given) return;
  const { edges, right, wrong, threshold } = given;
  const [wide, high] = [svg.clientWidth, svg.clientHeight];
  const [top, bottom] = [30, high - 40];
  const here = latest?.confidence ?? null;
  const [low, up] = [edges[0], edges.at(-1)];
  const x = (value) => 4 + ((value - low) / (up - low)) * (wide - 8);
  const most = Math.max(...right.map((count, i) => count + wrong[i]));
  const y = (count) => bottom - (count / most) * (bottom - top);
  const limit = threshold === null ? "" : ` The threshold is at ${rounded(threshold)}.`;
  const title = `Histogram of the validation images' confidences, from ${rounded(low)} to ${rounded(up)}.${limit}`;
  svg.replaceChildren();
  element(svg, "title", { id: "histogram-title" }, title);
  right.forEach((count, i) => {
    const [left, width] = [x(edges[i]) + 0.5, Math.max(x(edges[i + 1]) - x(edges[i]) - 1, 0.5)];
    const below = threshold !== null && edges[i] < threshold ? " below" : "";
    const bar = (kind, from, to) =>
      element(svg, "rect", { class: kind + below, x: left, width, y: y(to), height: y(from) - y(to) });
    if (count) bar("right", 0, count);
    if (wrong[i]) bar("wrong", count, count + wrong[i]);
  });
  element(svg, "line", { class: "axis", x1: 0, x2: wide, y1: bottom, y2: bottom });
  for (const value of ticks(low, up, Math.max(2, Math.floor(wide / 60)))) {
    element(svg, "text", { x: x(value), y: bottom + 16, "text-anchor": "middle" }, rounded(value));
  }
  if (threshold !== null) {
    const at = x(threshold);
    element(svg, "line", { class: "threshold", x1: at, x2: at, y1: top - 6, y2: bottom + 24 });
    const [anchor, text] = at < wide / 2 ? ["start", "accepted from here →"] : ["end", "← rejected up to here"];
    element(svg, "text", { x: at + (at < wide / 2 ? 6 : -6), y: bottom + 34, "text-anchor": anchor }, text);
  }
  if (here !== null) {
    const at = clamp(x(here), 4, wide - 4);
    const anchor = at < 60 ? "start" : at > wide - 60 ? "end" : "middle";
    const text = here < low ? "← this image" : here > up ? "this image →" : "this image";
    element(svg, "text", { class: "here", x: at, y: 11, "text-anchor": anchor }, text);
    element(svg, "line", { class: "here", x1: at, x2: at, y1: 18, y2: bottom });
    element(svg, "path", { class: "here", d: `M${at - 5} 17h10l-5 7z` });
  }
}

function takeFrom(transfer) {
  const file = [...(transfer?.files ?? [])][0];
  if (file) take(file);
  return Boolean(file);
}

byId("file").addEventListener("change", () => takeFrom(byId("file")));
byId("file").addEventListener("click", () => { byId("file").value = ""; }); // the same file may be chosen again
byId("preview").addEventListener("error", () => { byId("preview").hidden = true; }); // a format that browsers cannot show
addEventListener("paste", (event) => { if (takeFrom(event.clipboardData)) event.preventDefault(); });
let inside = 0;
addEventListener("dragenter", () => { inside += 1; document.body.classList.add("dragging"); });
addEventListener("dragleave", () => { inside -= 1; if (inside <= 0) still(); });
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  still();
  if (!takeFrom(event.dataTransfer)) fail("What was dropped is no file. Save the image first, and drop that.");
});
function still() {
  inside = 0;
  document.body.classList.remove("dragging");
}

begin();
