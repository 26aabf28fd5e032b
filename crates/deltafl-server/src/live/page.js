"use strict";
// The live page of a server. It subscribes to the server's events and redraws on every update.
const at = (id) => document.getElementById(id);
const COLOURS = 6;
const SHOWN = 300;
const colour = (i) => `var(--c${i % COLOURS})`;
// The label and the colour of each purpose. The phases of a purpose have shades of its colour.
const PURPOSES = { keys: ["key set-up", 5], losses: ["losses", 4], updates: ["updates", 0] };
const SHADES = [1, 0.7, 0.45];
const label = (track) => track.name;
const state = { about: null, public: false, now: null, rounds: [], open: new Set(), percentile: 50 };

const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** Creates an element with a class and a text. The text is never parsed as markup. */
function made(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function drawNow() {
  const { about, now, rounds } = state;
  at("done").textContent = `${number(now.committed)} / ${number(about.rounds)}`;
  at("online").textContent = `${number(now.online)} / ${number(now.enrolled)}`;
  at("ready").textContent = number(now.ready);
  const recent = rounds.slice(-10);
  const mean = recent.reduce((sum, round) => sum + round.seconds, 0) / recent.length;
  at("pace").textContent = recent.length ? number(mean, mean < 10 ? 2 : 0) : "–";
  at("progress").max = about.rounds;
  at("progress").value = now.committed;
  const chip = at("role");
  chip.textContent = { leading: "training", standby: "standby", finished: "finished" }[now.role];
  chip.className = `chip ${now.role}`;
  const waiting = now.role === "finished" ? "All rounds are finished." : "Waiting for the next round.";
  at("phase").textContent = now.phase
    ? `Round ${number(now.round + 1)}, ${PURPOSES[now.purpose][0]}: ${now.phase}, ${number(now.answered)} of ${number(now.asked)} devices have answered.`
    : waiting;
  const over = now.phases.map((phase) => {
    const item = made("li", phase.failed ? "failed" : "", `${phase.name} ${seconds(phase.seconds)}`);
    const gone = phase.asked - phase.answered;
    if (gone > 0) item.append(made("span", "dropped", ` −${number(gone)}`));
    return item;
  });
  if (now.phase) over.push(made("li", "now", now.phase));
  at("phases").replaceChildren(...over);
}

const seconds = (time) => (time < 0.1 ? `${number(1000 * time)} ms` : `${number(time, time < 10 ? 2 : 0)} s`);

/** Formats a number with three significant digits. */
const short = (value) => String(Number(value.toPrecision(3)));

/** Formats a percentile that is known exactly or between two bounds. */
function rangeText({ lower, upper }) {
  if (lower === null && upper === null) return "unknown";
  if (lower === null) return `below ${short(upper)}`;
  if (upper === null) return `at least ${short(lower)}`;
  return short(lower) === short(upper) ? short(lower) : `${short(lower)}–${short(upper)}`;
}

/** Returns the bounds of a percentile. An unknown bound is replaced by the other one. */
const ends = ({ lower, upper }) => (lower === null && upper === null ? null : [lower ?? upper, upper ?? lower]);

/** Returns a percentile of a track's losses in a round, or null if it is unknown. */
function percentile(round, track, percent) {
  const known = round.losses[track];
  const found = known ? known.percentiles.find(([p]) => p === percent) : undefined;
  return found ? found[1] : null;
}

/** Returns the last round in which a track's losses are known. */
const latest = (track) => state.rounds.findLast((round) => round.losses[track]);

function svgNode(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

/** Draws one line per track over the rounds, or as many as given. The values are numbers, pairs of bounds, or null. */
function chart(id, values, description, lines = state.about.tracks) {
  const rounds = state.rounds;
  const pair = (value) => (typeof value === "number" ? [value, value] : value ?? null);
  const known = rounds.flatMap((round) => values(round).map(pair).filter((value) => value !== null)).flat();
  const box = at(id);
  if (known.length === 0) {
    box.replaceChildren(made("p", "note", "No data yet."));
    return;
  }
  // As wide as its container, so that the text has the same size on all screens.
  const [width, height, left, bottom] = [Math.max(280, box.clientWidth), 240, 56, 24];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const span = high - low || Math.abs(high) || 1;
  const first = rounds[0].round;
  const last = Math.max(rounds[rounds.length - 1].round, first + 1);
  const x = (round) => left + ((round - first) / (last - first)) * (width - left - 8);
  const y = (value) => 8 + (1 - (value - low) / span) * (height - bottom - 16);
  const svg = svgNode("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": description });
  const add = (name, attributes, text) => svg.appendChild(svgNode(name, attributes, text));
  for (const share of [0, 0.5, 1]) {
    const value = low + share * span;
    add("line", { class: "grid", x1: left, x2: width - 8, y1: y(value), y2: y(value) });
    add("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value.toPrecision(3));
  }
  add("text", { x: left, y: height - 6 }, `round ${first + 1}`);
  add("text", { x: width - 8, y: height - 6, "text-anchor": "end" }, `${last + 1}`);
  lines.forEach((_, track) => {
    const points = rounds.flatMap((round) => {
      const value = pair(values(round)[track]);
      return value === null ? [] : [[x(round.round), y(value[0]), y(value[1])]];
    });
    if (points.length === 0) return;
    const at = ([px, low, high]) => `${px.toFixed(1)} ${((low + high) / 2).toFixed(1)}`;
    const there = points.map(([px, low]) => `${px.toFixed(1)} ${low.toFixed(1)}`);
    const back = points.map(([px, , high]) => `${px.toFixed(1)} ${high.toFixed(1)}`).reverse();
    add("path", { class: "band", d: `M${there.concat(back).join("L")}Z` }).style.fill = colour(track);
    add("path", { class: "line", d: `M${points.map(at).join("L")}` }).style.stroke = colour(track);
    if (points.length < 12) {
      for (const point of points) {
        const [cx, cy] = at(point).split(" ");
        add("circle", { cx, cy, r: 3 }).style.fill = colour(track);
      }
    }
  });
  box.replaceChildren(svg);
}

function mark(name, background) {
  const item = made("span");
  const square = made("i");
  square.style.background = background;
  item.append(square, name);
  return item;
}

/** Draws the legend of the tracks that have a line in a chart. */
function legend(id, values) {
  const drawn = (i) => state.rounds.some((round) => (values(round)[i] ?? null) !== null);
  const marks = state.about.tracks.map((track, i) => (drawn(i) ? [mark(label(track), colour(i))] : []));
  at(id).replaceChildren(...marks.flat());
}

/** Draws the latest known percentiles of every level on one scale. */
function drawSpread() {
  const tracks = state.about.tracks.map((track, i) => ({ track, i, round: latest(i) })).filter(({ round }) => round);
  const all = tracks.flatMap(({ i, round }) => round.losses[i].percentiles.map(([, bounds]) => ends(bounds)).filter(Boolean)).flat();
  if (all.length === 0) {
    const note = state.rounds.length === 0
      ? "No cohort has reported its losses yet."
      : "No percentiles: they need the losses of at least 5 devices of a round, in exact sums.";
    at("spread").replaceChildren(made("p", "note", note));
    return;
  }
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const x = (value) => `${(2 + (96 * (value - low)) / (high - low || 1)).toFixed(2)}%`;
  const rows = tracks.map(({ track, i, round }) => {
    const row = made("div", "level");
    const name = made("span", "", label(track));
    const of = (percent) => percentile(round, i, percent);
    const median = rangeText(of(50));
    const value = made("span", "value", `median ${median}`);
    const description = `${label(track)}, round ${round.round + 1}, ${round.losses[i].devices} devices: ` +
      [10, 25, 50, 75, 90].map((p) => `p${p} ${rangeText(of(p))}`).join(", ");
    const svg = svgNode("svg", { role: "img", "aria-label": description });
    svg.append(svgNode("title", {}, description));
    const bar = (from, to, top, height, opacity) => {
      const [a, b] = [ends(of(from)), ends(of(to))];
      if (!a || !b) return;
      const [x1, x2] = [x(a[0]), x(b[1])];
      const width = `${Math.max(0.6, parseFloat(x2) - parseFloat(x1))}%`;
      const rect = svg.appendChild(svgNode("rect", { x: x1, width, y: top, height, rx: 2 }));
      rect.style.fill = colour(i);
      rect.style.opacity = opacity;
    };
    bar(10, 90, "42%", "16%", 0.35);
    bar(25, 75, "25%", "50%", 0.45);
    bar(50, 50, "8%", "84%", 1);
    row.append(name, svg, value);
    return row;
  });
  const axis = made("div", "level axis");
  const scale = made("div");
  scale.append(made("span", "", short(low)), made("span", "", "loss"), made("span", "", short(high)));
  axis.append(made("span"), scale, made("span"));
  at("spread").replaceChildren(...rows, axis);
}

// The reasons why a round does not change the model.
const CAUSES = {
  "empty-tail": "the tail was empty",
  unserved: "no device trained the track",
  refused: "no update was finite",
  "no-sum": "too few devices answered",
};

/** Lists the number of rounds that did not change the model and the reasons, one line per level. */
function drawIdle() {
  const lines = state.about.tracks.flatMap((track, i) => {
    const idle = state.rounds.map((round) => round.idle[i]).filter((cause) => cause !== null);
    if (idle.length === 0) return [];
    const why = Object.entries(CAUSES)
      .map(([cause, text]) => [text, idle.filter((known) => known === cause).length])
      .filter(([, count]) => count > 0)
      .map(([text, count]) => `${text} in ${number(count)}`);
    const most = 2 * idle.length > state.rounds.length;
    return [made("li", most ? "dropped" : "", `${label(track)}: ${number(idle.length)} of the last ${number(state.rounds.length)} rounds did not change the model: ${why.join(", ")}.`)];
  });
  at("idle").replaceChildren(...lines);
}

function drawTimeline() {
  const recent = state.rounds.slice(-12).reverse();
  const longest = Math.max(...recent.map((round) => round.seconds), 1e-9);
  at("timeline").replaceChildren(...recent.map((round) => {
    const box = made("details", "round");
    const key = `${round.seed}/${round.round}`;
    box.open = state.open.has(key);
    box.addEventListener("toggle", () => (box.open ? state.open.add(key) : state.open.delete(key)));
    const row = made("summary", "row");
    const bar = made("div", "bar");
    // The time between the phases is work of the server.
    const whole = Math.max(round.seconds, round.phases.reduce((sum, phase) => sum + phase.seconds, 0));
    const scale = (100 * round.seconds) / longest / (whole || 1);
    bar.append(...shaded(round.phases).map(([phase, shade]) => part(phase, shade, scale)));
    const rest = made("i", "rest");
    rest.style.width = `${(whole - round.phases.reduce((sum, phase) => sum + phase.seconds, 0)) * scale}%`;
    bar.append(rest);
    const devices = made("span", "", `${number(round.cohort - round.dropped)} of ${number(round.cohort)}`);
    if (round.dropped > 0) devices.append(made("span", "dropped", ` −${number(round.dropped)}`));
    row.append(made("span", "", number(round.round + 1)), bar, made("span", "time", seconds(round.seconds)), devices);
    box.append(row, phaseTable(round));
    return box;
  }));
  const between = mark("between phases", "");
  between.firstChild.className = "rest";
  at("phase-legend").replaceChildren(...Object.values(PURPOSES).map(([name, i]) => mark(name, colour(i))), between);
}

/** Returns the phases with their shades. The first phase of a purpose has the full colour. */
function shaded(phases) {
  let shade = -1;
  return phases.map((phase, i) => {
    shade = i > 0 && phases[i - 1].purpose === phase.purpose ? shade + 1 : 0;
    return [phase, SHADES[shade % SHADES.length]];
  });
}

function paint(element, phase, shade) {
  element.style.background = phase.failed ? "var(--bad)" : colour(PURPOSES[phase.purpose][1]);
  element.style.opacity = shade;
  return element;
}

function part(phase, shade, scale) {
  const piece = paint(made("i"), phase, shade);
  piece.style.width = `${phase.seconds * scale}%`;
  piece.title = `${phase.name}: ${seconds(phase.seconds)}`;
  return piece;
}

function phaseTable(round) {
  if (round.phases.length === 0) return made("p", "note", "The phases of this round were not recorded.");
  const table = made("table");
  const head = made("tr");
  head.append(...["phase", "time", "answered", "dropped out"].map((name) => made("th", "", name)));
  table.append(head, ...shaded(round.phases).map(([phase, shade]) => {
    const row = made("tr");
    const name = made("td");
    name.append(paint(made("i"), phase, shade), phase.name + (phase.failed ? " (restarted)" : ""));
    const gone = phase.asked - phase.answered;
    row.append(
      name,
      made("td", "", seconds(phase.seconds)),
      made("td", "", `${number(phase.answered)} of ${number(phase.asked)}`),
      made("td", gone > 0 ? "dropped" : "", gone > 0 ? number(gone) : "–"),
    );
    return row;
  }));
  return table;
}

function drawLosses() {
  chart(
    "losses",
    (round) => state.about.tracks.map((_, i) => {
      const bounds = percentile(round, i, state.percentile);
      return bounds ? ends(bounds) : null;
    }),
    `percentile ${state.percentile} of the losses by round, one line per level`,
  );
}

/** Draws ε of a device after each round, for each observer. */
function drawPrivacy() {
  const last = state.rounds.findLast((round) => round.privacy)?.privacy;
  at("privacy-section").hidden = !last;
  if (!last) return;
  const observers = ["server", "readers"];
  const names = ["the server, which knows the cohorts", "readers of the models, who do not"];
  const values = (round) => observers.map((observer) => round.privacy?.[`epsilon_${observer}`] ?? null);
  const drawn = observers.map((_, i) => i).filter((i) => state.rounds.some((round) => values(round)[i] !== null));
  const spent = drawn.map((i) => `${last[`epsilon_${observers[i]}`].toPrecision(3)} against ${names[i]}`);
  at("privacy-note").textContent =
    `ε bounds what the sums so far reveal about a device that answered as often as it could. It is ${spent.join(", and ")}, at δ = ${last.delta}.`;
  chart("privacy", values, "ε by round, one line per observer", observers);
  at("privacy-legend").replaceChildren(...drawn.map((i) => mark(names[i], colour(i))));
}

/** Draws the 90th percentile of the metric on held-out examples, between its bounds. */
function drawError() {
  const last = (round, i) => (round.held_out[i] ?? []).at(-1);
  const newest = state.rounds.flatMap((round) => state.about.tracks.map((_, i) => last(round, i)).filter(Boolean)).at(-1);
  at("error-section").hidden = !newest;
  if (!newest) return;
  const values = (round) => state.about.tracks.map((_, i) => (last(round, i) ? ends(last(round, i).p90) : null));
  at("error-note").textContent =
    `The 90th percentile of the ${newest.measure} over a cohort, computed from secure sums of histograms. The width of a line is the uncertainty due to the bins. These examples are not used for training. The server does not learn the ${newest.measure} of a device.`;
  chart("error", values, `90th percentile of the ${newest.measure} on held-out examples, one line per level`);
  legend("error-legend", values);
}

function drawRounds() {
  drawSpread();
  drawLosses();
  drawError();
  drawPrivacy();
  chart("eta", (round) => round.eta, "threshold η by round, one line per level");
  legend("legend", (round) => round.eta);
  legend("losses-legend", (round) => round.losses);
  chart("loss", (round) => round.loss, "mean loss by round, one line per level");
  drawIdle();
  drawTimeline();
}

/** Draws the buttons that select the percentile of the chart. */
function drawChoices() {
  for (const [percent, name] of [[10, "10th percentile"], [50, "median"], [90, "90th percentile"]]) {
    const choice = made("label");
    const input = made("input");
    Object.assign(input, { type: "radio", name: "percentile", checked: percent === state.percentile });
    input.addEventListener("change", () => {
      state.percentile = percent;
      drawLosses();
    });
    choice.append(input, name);
    at("which").append(choice);
  }
}

/** Shows the level that a device would receive: the nearest, and the lower one of two equally near. */
function drawKnob() {
  const theta = Number(at("knob").value);
  at("level").textContent = theta.toFixed(2);
  const levels = [...new Set(state.about.tracks.map((track) => track.theta))].sort((a, b) => a - b);
  const nearest = levels.reduce((best, level) => (Math.abs(level - theta) < Math.abs(best - theta) ? level : best));
  const track = state.about.tracks.findIndex((candidate) => candidate.theta === nearest);
  // Tracks may take turns: the last round in which this one trained.
  const last = state.rounds.findLast((round) => (round.tail[track] ?? null) !== null);
  let text = `${label(state.about.tracks[track])}: for every mixture of devices with conformity ${nearest} or higher.`;
  if (last) {
    // With noise, the count can be larger than the cohort.
    const tail = number(Math.min(last.tail[track], last.cohort));
    const trained = `${last.privacy ? "about " : ""}${tail} of ${number(last.cohort)} devices`;
    text += ` In its last round ${trained} trained this model.`;
  }
  const known = latest(track);
  if (known) {
    const of = (percent) => rangeText(percentile(known, track, percent));
    text += ` Over ${number(known.losses[track].devices)} devices the median loss was ${of(50)} and the 90th percentile was ${of(90)}.`;
  }
  at("choice").textContent = text;
  // The command works in the folder in which `deltafl enrol device` wrote the identity. A public
  // server requires no identity.
  const who = state.public ? `--federation ${state.about.federation}` : "--identity identity";
  at("command").textContent =
    `deltafl model pull --theta ${theta.toFixed(2)} --server ${location.origin} ${who} --out model.safetensors`;
}

function drawAll() {
  const { about } = state;
  document.title = `${about.federation} · Δ-FL`;
  at("federation").textContent = about.federation;
  const mode = about.open ? "open mode: devices report their losses" : "private mode: the server learns only sums";
  at("about").textContent = `${about.experiment} · ${about.model} · cohorts of ${number(about.cohort)} · ${mode}`;
  at("eta-note").textContent =
    "Devices with a loss of at least η belong to the tail. η is the (1−θ)-quantile of the cohort's losses. In private mode the server computes it from sums of histograms.";
  at("losses-note").textContent = about.open
    ? "The 10th to the 90th percentile of the reported losses, with the weights of the experiment."
    : "The 10th to the 90th percentile of the losses, with the weights of the experiment, computed from secure sums of histograms. The width of a percentile is the uncertainty due to the bins. The server does not learn the loss of a device.";
  at("loss-section").hidden = !about.open;
  drawNow();
  drawRounds();
  drawKnob();
  document.documentElement.dataset.drawn = "true";
}

/** Returns the rounds of the current seed. */
const ofRun = (rounds) => rounds.filter((round) => round.seed === rounds[rounds.length - 1].seed);

function listen(path) {
  const source = new EventSource(`${path}/events`);
  source.onmessage = (message) => {
    const change = JSON.parse(message.data);
    state.now = change.now;
    const known = new Set(change.rounds.map((round) => round.round));
    if (change.rounds.length > 0) {
      state.rounds = ofRun(state.rounds.filter((round) => !known.has(round.round)).concat(change.rounds)).slice(-SHOWN);
      drawRounds();
      drawKnob();
    }
    drawNow();
  };
  source.onerror = () => {
    at("role").textContent = "no connection";
    at("role").className = "chip lost";
  };
}

async function start() {
  const [federation] = await (await fetch("/v1/federations")).json();
  const path = `/v1/federations/${encodeURIComponent(federation.federation)}`;
  const snapshot = await (await fetch(path)).json();
  Object.assign(state, snapshot, { rounds: ofRun(snapshot.rounds) });
  at("knob").addEventListener("input", drawKnob);
  window.addEventListener("resize", drawRounds);
  drawChoices();
  drawAll();
  listen(path);
}
start();
