// The page of a service: asks for the monitor's state every few seconds and draws it.

const SECONDS = 3;
const STRETCHES = 24; // most stretches of inputs that are drawn with a rate of their own
const FEW = 20; // fewer inputs than this are too few for a rate
const BOX = { left: 40, right: 352, top: 16, bottom: 166 };
const number = new Intl.NumberFormat("en");

/** A lower bound as percent, never rounded up. */
function atLeast(share) {
  const digits = share < 0.1 ? 2 : 1;
  return share > 0 ? percent(Math.floor(share * 10 ** (2 + digits)) / 10 ** (2 + digits), digits) : "0%";
}

function power(log) {
  if (log >= -2 && log < 4) return String(Number((10 ** log).toPrecision(2)));
  return `10${[...String(Math.round(log))].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("")}`;
}

/** A chart of one quantity over the inputs: its scales, its grid, and a cursor that shows the values of points. */
class Chart {
  constructor(id, history, low, high, label) {
    this.svg = byId(id);
    this.svg.replaceChildren();
    this.history = history;
    [this.low, this.high] = [low, high];
    this.end = Math.max(1, history.inputs.at(-1));
    const steps = ticks(low, high, 4);
    for (const value of steps) {
      const y = this.y(value);
      element(this.svg, "line", { class: "grid", x1: BOX.left, x2: BOX.right, y1: y, y2: y });
      element(this.svg, "text", { x: BOX.left - 5, y: y + 4, "text-anchor": "end" }, label(value, steps[1] - steps[0]));
    }
    const inputs = ticks(0, this.end, 4).filter((x) => x === 0 || x >= 1);
    for (const value of inputs) {
      const anchor = value === 0 ? "start" : this.x(value) > BOX.right - 20 ? "end" : "middle";
      element(this.svg, "text", { x: this.x(value), y: BOX.bottom + 16, "text-anchor": anchor }, value ? number.format(value) : "0 inputs");
    }
  }

  x(inputs) {
    return BOX.left + ((BOX.right - BOX.left) * inputs) / this.end;
  }

  y(value) {
    return BOX.bottom - ((BOX.bottom - BOX.top) * (clamp(value, this.low, this.high) - this.low)) / (this.high - this.low);
  }

  points(values) {
    return values.map((value, i) => `${this.x(this.history.inputs[i]).toFixed(1)},${this.y(value).toFixed(1)}`);
  }

  curve(values, kind = "") {
    element(this.svg, "polyline", { class: `curve ${kind}`, points: this.points(values).join(" ") });
    element(this.svg, "circle", { class: `end ${kind}`, cx: this.x(this.end), cy: this.y(values.at(-1)), r: 3.5 });
  }

  band(lows, highs, kind) {
    element(this.svg, "polygon", { class: kind, points: [...this.points(highs), ...this.points(lows).reverse()].join(" ") });
  }

  alarmAt(input) {
    if (input === null) return;
    const x = this.x(input + 1);
    element(this.svg, "line", { class: "alarm", x1: x, x2: x, y1: BOX.top, y2: BOX.bottom });
    element(this.svg, "text", { class: "alarm-text", x: clamp(x, 60, 330), y: BOX.top - 5, "text-anchor": "middle" }, "alarm");
  }

  /** Show the value of the point under the pointer. */
  cursor(values, inWords) {
    const group = element(this.svg, "g", { visibility: "hidden" });
    const line = element(group, "line", { class: "cursor", y1: BOX.top, y2: BOX.bottom });
    const text = element(group, "text", { class: "value", y: BOX.top - 5 });
    const { inputs, time } = this.history;
    this.svg.onpointermove = (event) => {
      const box = this.svg.getBoundingClientRect();
      const wanted = (((event.clientX - box.left) * 360) / box.width - BOX.left) / (BOX.right - BOX.left) * this.end;
      const i = inputs.reduce((best, at, j) => (Math.abs(at - wanted) < Math.abs(inputs[best] - wanted) ? j : best), 0);
      const x = this.x(inputs[i]);
      for (const side of ["x1", "x2"]) line.setAttribute(side, x);
      text.setAttribute("x", x > 200 ? x - 4 : x + 4);
      text.setAttribute("text-anchor", x > 200 ? "end" : "start");
      text.textContent = `${inWords(values[i])} at ${number.format(inputs[i])}, ${clock(time[i])}`;
      group.setAttribute("visibility", "visible");
    };
    this.svg.onpointerleave = () => group.setAttribute("visibility", "hidden");
  }
}

function clock(seconds) {
  const when = new Date(1000 * seconds);
  const isToday = when.toDateString() === new Date().toDateString();
  return isToday ? when.toLocaleTimeString() : when.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

/** The acceptance rate of each stretch of inputs by itself, which shows when it changed. */
function stretches({ inputs, rate }) {
  const found = [];
  let [start, accepted] = [0, 0];
  inputs.forEach((at, i) => {
    if (at - start < inputs.at(-1) / STRETCHES || at - start < FEW) return;
    found.push({ middle: (start + at) / 2, rate: clamp((rate[i] * at - accepted) / (at - start), 0, 1) });
    [start, accepted] = [at, rate[i] * at];
  });
  return found;
}

function drawRate(history, report) {
  const [low, high] = report.promised_interval;
  const single = stretches(history);
  const settled = history.rate.filter((_, i) => history.inputs[i] >= Math.min(FEW, history.inputs.at(-1)));
  const shown = [...settled, ...single.map((one) => one.rate), low, high, history.low.at(-1), history.high.at(-1)];
  const room = 0.08 * Math.max(0.05, Math.max(...shown) - Math.min(...shown));
  const chart = new Chart(
    "rate-chart", history, Math.max(0, Math.min(...shown) - room), Math.min(1, Math.max(...shown) + room),
    (value, step) => percent(value, step < 0.01 ? 1 : 0),
  );
  const { svg } = chart;
  element(svg, "rect", { class: "promised", x: BOX.left, width: BOX.right - BOX.left, y: chart.y(high), height: Math.max(1, chart.y(low) - chart.y(high)) });
  const y = chart.y(report.promised);
  chart.band(history.low, history.high, "limits");
  element(svg, "line", { class: "promised-line", x1: BOX.left, x2: BOX.right, y1: y, y2: y });
  chart.curve(history.rate);
  for (const one of single) element(svg, "circle", { class: "stretch", cx: chart.x(one.middle), cy: chart.y(one.rate), r: 2.6 });
  chart.alarmAt(report.first_alarm);
  chart.cursor(history.rate, percent);
}

function drawEvidence(history, report) {
  const logs = history.e_value.map((value) => Math.log10(Math.max(value, 1e-300)));
  const alarm = Math.log10(2 / report.delta);
  const chart = new Chart("evidence-chart", history, clamp(Math.min(...logs), -3, -0.5), Math.max(alarm, ...logs) * 1.1, power);
  const y = chart.y(alarm);
  element(chart.svg, "line", { class: "alarm", x1: BOX.left, x2: BOX.right, y1: y, y2: y });
  element(chart.svg, "text", { class: "alarm-text", x: BOX.left + 4, y: y - 5 }, `alarm at ${power(alarm)}`);
  chart.curve(logs);
  chart.cursor(logs, (log) => `e = ${power(log)}`);
}

function drawShare(history) {
  const shares = history.ood_share;
  const chart = new Chart("ood-chart", history, 0, clamp(1.2 * Math.max(...shares), 0.1, 1), (value) => percent(value, 0));
  chart.band(shares.map(() => 0), shares, "area");
  chart.curve(shares, "ood");
  chart.cursor(shares, atLeast);
}

/** Set a text. An unchanged text is left alone, so that screen readers do not repeat it. */
function setText(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

function show({ running, title, words, report, history }) {
  const seen = running ? report.sizes.production : 0;
  setText("title", title);
  byId("status").className = `card ${!seen ? "" : report.alarm ? "bad" : report.ood_share > 0 ? "some" : "good"}`;
  document.title = report?.alarm ? "ALARM · sirc" : "sirc";
  setText("seen", running ? words.rows ?? "The charts begin with the first image." : words.why);
  byId("charts").hidden = !seen;
  if (!seen) return;
  setText("rate", percent(report.rate));
  setText("rate-words", `promised ${words.promised}`);
  setText("evidence", `e = ${report.e_value < 1e4 ? rounded(report.e_value) : power(Math.log10(report.e_value))}`);
  setText("evidence-words", `p = ${rounded(report.p_value)}; the alarm is at p ≤ ${report.delta / 2}, e ≥ ${rounded(2 / report.delta)}`);
  setText("ood", atLeast(report.ood_share));
  setText("ood-words", words["OOD share"]);
  drawRate(history, report);
  drawEvidence(history, report);
  drawShare(history);
}

async function get(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" }, cache: "no-store" });
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}`);
  return answer.json();
}

async function describe() {
  const about = await get("./");
  const classes = about.num_classes ? `${about.num_classes} classes, ` : "";
  const limit = typeof about.threshold === "number" ? rounded(about.threshold, 5) : about.threshold.replace("-", "−");
  setText("about", `${about.service}: ${classes}score ${about.spec}, threshold ${limit}`);
  setText("guarantee", about.guarantee);
}

let described = false;
let answered = "this page was opened";

async function ask() {
  try {
    if (!document.hidden) {
      if (!described) await describe();
      described = true;
      show(await get("monitor"));
      answered = new Date().toLocaleTimeString();
      setText("asked", `asked at ${answered}`);
    }
    document.documentElement.dataset.ready = "";
  } catch (error) {
    setText("asked", `no answer since ${answered}: ${error.message}`);
  }
  setTimeout(ask, 1000 * SECONDS);
}

document.addEventListener("DOMContentLoaded", ask);
