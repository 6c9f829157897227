// The page to try a guard on: takes an image, asks for its decision, and shows what comes.

const $ = (id) => document.getElementById(id);
const number = (value) => String(Number(value.toPrecision(3))).replace("-", "−");
const percent = (share) => `${(100 * share).toFixed(1)}%`;

function make(name, options = {}, ...children) {
  const made = Object.assign(document.createElement(name), options);
  made.append(...children);
  return made;
}

/** The name of a class, which may break after a separator rather than inside a word. */
function breakable(name) {
  return name.split(/(?<=[_/.,-])/).flatMap((part) => [part, make("wbr")]);
}

function draw(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const UNMARKED = "The validation images that set the threshold. Yours will be marked among them.";
let about = null; // what /guard tells
let latest = null; // what /decide told of the image that is shown
let asking = null; // the question that is not answered yet

async function begin() {
  try {
    about = await (await fetch("/guard")).json();
  } catch {
    fail("The program behind this page does not answer.");
    return;
  }
  $("about").textContent = `${about.model}, ${about.classes ?? "some"} classes, score ${about.spec}`;
  $("lines").replaceChildren(...about.lines.map((line) => make("li", { textContent: line.replaceAll("`", "") })));
  $("near-words").textContent = about.neighbours;
  if (about.histogram) {
    const { right, wrong, outside } = about.histogram;
    const [r, w] = [right, wrong].map((counts) => counts.reduce((sum, count) => sum + count, 0));
    $("key-wrong").hidden = !w;
    $("outside").textContent = outside ? `${outside} of ${r + w + outside} lie outside of what is drawn.` : "";
    $("place").hidden = false;
    $("standing").textContent = UNMARKED;
    new ResizeObserver(drawPlace).observe($("histogram"));
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
  $("verdict").ariaBusy = "true";
  try {
    const options = { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } };
    const response = await fetch("/decide", { ...options, signal: mine.signal });
    const told = await response.json();
    if (mine !== asking) return;
    if (response.ok) tell(told, file.name);
    else fail(sentence(told.error));
  } catch (error) {
    if (mine === asking && error.name !== "AbortError") fail("The program behind this page does not answer.");
  }
}

function show(file) {
  URL.revokeObjectURL($("preview").src);
  $("preview").src = URL.createObjectURL(file);
  $("preview").alt = `Your image, ${file.name}`;
  $("preview").hidden = false;
  $("invitation").hidden = true;
  $("choose").textContent = "Choose another";
}

function sentence(text) {
  return `${text.slice(0, 1).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

function fail(text) {
  delete $("verdict").dataset.accepted;
  verdict("No decision", "That did not work", text, "");
  latest = null;
  for (const id of ["seen", "classes", "near"]) $(id).hidden = true;
  if (about?.histogram) $("standing").textContent = UNMARKED;
  drawPlace();
}

function verdict(kicker, answer, words, guess) {
  $("kicker").textContent = kicker;
  $("answer").replaceChildren(...breakable(answer));
  $("words").textContent = words;
  $("guess").textContent = guess;
  $("guess").hidden = !guess;
  $("verdict").ariaBusy = "false";
}

function tell(told, name) {
  latest = told;
  $("verdict").dataset.accepted = told.accepted;
  const guess = told.accepted || !told.top.length ? "" : `Its guess would be ${told.class}.`;
  const [kicker, answer] = told.accepted ? ["✓ Accepted", told.class] : ["? Rejected", "I don't know"];
  verdict(kicker, answer, told.words, guess);
  $("seen-image").src = told.seen;
  $("seen-image").alt = `${name} as it is prepared for the network`;
  $("seen-image").onload = () => $("seen-image").classList.toggle("few", $("seen-image").naturalWidth < 96);
  $("seen-size").textContent = `${told.size} pixels`;
  $("seen").hidden = false;
  $("standing").textContent = told.standing;
  $("place").hidden = false;
  drawPlace();
  $("classes").hidden = !told.top.length;
  $("top").replaceChildren(...told.top.map(classRow));
  $("near").hidden = false;
  if (told.nearest.length) {
    const same = told.nearest.filter((image) => image.class === told.class).length;
    const most = told.nearest.length;
    $("near-words").textContent =
      `By the angle between their features and this image's; 1 is the same direction. ${same} of ${most} are ${told.class}.`;
  }
  $("nearest").replaceChildren(...told.nearest.map(neighbour));
  $("verdict").scrollIntoView({ block: "nearest" });
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

// The calibration's histogram: what is accepted lies at the right of the dashed line, and this image at the arrow.
function drawPlace() {
  const svg = $("histogram");
  const given = about?.histogram;
  svg.toggleAttribute("hidden", !given);
  $("key").hidden = !given;
  if (!given) return;
  const { edges, right, wrong, threshold } = given;
  const [wide, high] = [svg.clientWidth, svg.clientHeight];
  const [top, bottom] = [30, high - 40];
  const here = latest?.confidence ?? null;
  const [low, up] = [edges[0], edges.at(-1)];
  const x = (value) => 4 + ((value - low) / (up - low)) * (wide - 8);
  const most = Math.max(...right.map((count, i) => count + wrong[i]));
  const y = (count) => bottom - (count / most) * (bottom - top);
  const parts = [];
  right.forEach((count, i) => {
    const [left, width] = [x(edges[i]) + 0.5, Math.max(x(edges[i + 1]) - x(edges[i]) - 1, 0.5)];
    const below = threshold !== null && edges[i] < threshold ? " below" : "";
    const bar = (kind, from, to) =>
      draw("rect", { class: kind + below, x: left, width, y: y(to), height: y(from) - y(to) });
    if (count) parts.push(bar("right", 0, count));
    if (wrong[i]) parts.push(bar("wrong", count, count + wrong[i]));
  });
  parts.push(draw("line", { class: "axis", x1: 0, x2: wide, y1: bottom, y2: bottom }));
  for (const value of ticks(low, up, Math.max(2, Math.floor(wide / 60)))) {
    parts.push(draw("text", { x: x(value), y: bottom + 16, "text-anchor": "middle" }, number(value)));
  }
  if (threshold !== null) {
    const at = x(threshold);
    parts.push(draw("line", { class: "threshold", x1: at, x2: at, y1: top - 6, y2: bottom + 24 }));
    const [anchor, text] = at < wide / 2 ? ["start", "accepted from here →"] : ["end", "← rejected up to here"];
    parts.push(draw("text", { x: at + (at < wide / 2 ? 6 : -6), y: bottom + 34, "text-anchor": anchor }, text));
  }
  if (here !== null) {
    const at = Math.min(Math.max(x(here), 4), wide - 4);
    const anchor = at < 60 ? "start" : at > wide - 60 ? "end" : "middle";
    const text = here < low ? "← this image" : here > up ? "this image →" : "this image";
    parts.push(draw("text", { class: "here", x: at, y: 11, "text-anchor": anchor }, text));
    parts.push(draw("line", { class: "here", x1: at, x2: at, y1: 18, y2: bottom }));
    parts.push(draw("path", { class: "here", d: `M${at - 5} 17h10l-5 7z` }));
  }
  const limit = threshold === null ? "" : ` The threshold is at ${number(threshold)}.`;
  const title = `Histogram of the validation images' confidences, from ${number(low)} to ${number(up)}.${limit}`;
  svg.replaceChildren(draw("title", { id: "histogram-title" }, title), ...parts);
}

function ticks(low, up, count) {
  const rough = (up - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((times) => times * power >= rough) ?? 10);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= up; i += 1) found.push(i * step);
  return found;
}

function takeFrom(transfer) {
  const file = [...(transfer?.files ?? [])][0];
  if (file) take(file);
  return Boolean(file);
}

$("file").addEventListener("change", () => takeFrom($("file")));
$("file").addEventListener("click", () => { $("file").value = ""; }); // the same file may be chosen again
$("preview").addEventListener("error", () => { $("preview").hidden = true; }); // what browsers cannot show
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
