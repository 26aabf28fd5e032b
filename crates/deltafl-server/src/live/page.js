"use strict";
// The page listens; whenever the server says something new, it draws.
const at = (id) => document.getElementById(id);
const COLOURS = 6;
const SHOWN = 300;
const colour = (i) => `var(--c${i % COLOURS})`;
// What a phase is for has a colour; its phases have shades of it.
const PURPOSES = { keys: ["set up keys", 5], losses: ["losses", 4], updates: ["updates", 0] };
const SHADES = [1, 0.7, 0.45];
const label = (track) => track.name;
const state = { about: null, public: false, now: null, rounds: [], open: new Set(), percentile: 50 };

const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** An element with text and classes; numbers and names never become markup. */
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
  chip.textContent = { leading: "training", standby: "standing by", finished: "finished" }[now.role];
  chip.className = `chip ${now.role}`;
  const waiting = now.role === "finished" ? "All rounds are done." : "Between rounds.";
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

/** Numbers as a person writes them: three digits that count. */
const short = (value) => String(Number(value.toPrecision(3)));

/** Where a percentile lies: exactly, or between two bounds. */
function told({ lower, upper }) {
  if (lower === null && upper === null) return "not known";
  if (lower === null) return `below ${short(upper)}`;
  if (upper === null) return `${short(lower)} or more`;
  return short(lower) === short(upper) ? short(lower) : `${short(lower)}–${short(upper)}`;
}

/** The ends of a percentile as numbers; one that is not known is the other. */
const ends = ({ lower, upper }) => (lower === null && upper === null ? null : [lower ?? upper, upper ?? lower]);

/** A percentile of a track's losses in a round, if it is known. */
function percentile(round, track, percent) {
  const known = round.losses[track];
  const found = known ? known.percentiles.find(([p]) => p === percent) : undefined;
  return found ? found[1] : null;
}

/** The last round in which a track's losses are known. */
const latest = (track) => state.rounds.findLast((round) => round.losses[track]);

function svgNode(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

/** Lines over rounds, a path per track through what is known: pairs of bounds, or numbers. */
function chart(id, values, what) {
  const rounds = state.rounds;
  const pair = (value) => (typeof value === "number" ? [value, value] : value ?? null);
  const known = rounds.flatMap((round) => values(round).map(pair).filter((value) => value !== null)).flat();
  const box = at(id);
  if (known.length === 0) {
    box.replaceChildren(made("p", "note", "Nothing to show yet."));
    return;
  }
  // As wide as its place, so that its letters are as large on a phone as on a desk.
  const [width, height, left, bottom] = [Math.max(280, box.clientWidth), 240, 56, 24];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const span = high - low || Math.abs(high) || 1;
  const first = rounds[0].round;
  const last = Math.max(rounds[rounds.length - 1].round, first + 1);
  const x = (round) => left + ((round - first) / (last - first)) * (width - left - 8);
  const y = (value) => 8 + (1 - (value - low) / span) * (height - bottom - 16);
  const svg = svgNode("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": what });
  const add = (name, attributes, text) => svg.appendChild(svgNode(name, attributes, text));
  for (const share of [0, 0.5, 1]) {
    const value = low + share * span;
    add("line", { class: "grid", x1: left, x2: width - 8, y1: y(value), y2: y(value) });
    add("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value.toPrecision(3));
  }
  add("text", { x: left, y: height - 6 }, `round ${first + 1}`);
  add("text", { x: width - 8, y: height - 6, "text-anchor": "end" }, `${last + 1}`);
  state.about.tracks.forEach((_, track) => {
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

/** The tracks that a chart has lines of. */
function legend(id, values) {
  const drawn = (i) => state.rounds.some((round) => (values(round)[i] ?? null) !== null);
  const marks = state.about.tracks.map((track, i) => (drawn(i) ? [mark(label(track), colour(i))] : []));
  at(id).replaceChildren(...marks.flat());
}

/** The percentiles of every level, where they were last asked for, on one scale. */
function drawSpread() {
  const tracks = state.about.tracks.map((track, i) => ({ track, i, round: latest(i) })).filter(({ round }) => round);
  const all = tracks.flatMap(({ i, round }) => round.losses[i].percentiles.map(([, bounds]) => ends(bounds)).filter(Boolean)).flat();
  if (all.length === 0) {
    at("spread").replaceChildren(made("p", "note", "No cohort has been asked for its losses yet."));
    return;
  }
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const x = (value) => `${(2 + (96 * (value - low)) / (high - low || 1)).toFixed(2)}%`;
  const rows = tracks.map(({ track, i, round }) => {
    const row = made("div", "level");
    const name = made("span", "", label(track));
    const of = (percent) => percentile(round, i, percent);
    const median = told(of(50));
    const value = made("span", "value", `median ${median}`);
    const what = `${label(track)}, round ${round.round + 1}, ${round.losses[i].devices} devices: ` +
      [10, 25, 50, 75, 90].map((p) => `p${p} ${told(of(p))}`).join(", ");
    const svg = svgNode("svg", { role: "img", "aria-label": what });
    svg.append(svgNode("title", {}, what));
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

// Why a round moves nothing.
const CAUSES = { "empty-tail": "the tail was empty", refused: "no update was finite", "no-sum": "too few devices answered" };

/** How many of the rounds that are shown moved nothing, and why: a line per level. */
function drawIdle() {
  const lines = state.about.tracks.flatMap((track, i) => {
    const idle = state.rounds.map((round) => round.idle[i]).filter((cause) => cause !== null);
    if (idle.length === 0) return [];
    const why = Object.entries(CAUSES)
      .map(([cause, words]) => [words, idle.filter((known) => known === cause).length])
      .filter(([, count]) => count > 0)
      .map(([words, count]) => `${words} in ${number(count)}`);
    const most = 2 * idle.length > state.rounds.length;
    return [made("li", most ? "dropped" : "", `${label(track)}: ${number(idle.length)} of the last ${number(state.rounds.length)} rounds moved nothing: ${why.join(", ")}.`)];
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
    // What lies between the phases is the server's own work.
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

/** Phases with their shades: the first of a purpose has the full colour. */
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
  if (round.phases.length === 0) return made("p", "note", "The phases of this round were not kept.");
  const table = made("table");
  const head = made("tr");
  head.append(...["phase", "time", "answered", "dropped out"].map((name) => made("th", "", name)));
  table.append(head, ...shaded(round.phases).map(([phase, shade]) => {
    const row = made("tr");
    const name = made("td");
    name.append(paint(made("i"), phase, shade), phase.name + (phase.failed ? " (begun anew)" : ""));
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
    `percentile ${state.percentile} of the losses by round, a line per level`,
  );
}

/** How models serve the examples that the cohorts hold out: the 90th percentile of the metric, between its bounds. */
function drawError() {
  const last = (round, i) => (round.held_out[i] ?? []).at(-1);
  const newest = state.rounds.flatMap((round) => state.about.tracks.map((_, i) => last(round, i)).filter(Boolean)).at(-1);
  at("error-section").hidden = !newest;
  if (!newest) return;
  const values = (round) => state.about.tracks.map((_, i) => (last(round, i) ? ends(last(round, i).p90) : null));
  at("error-note").textContent =
    `The 90th percentile of the ${newest.measure} over a cohort, from secure sums of histograms, as wide as its bins leave it uncertain. These examples never train, and no device's ${newest.measure} is known.`;
  chart("error", values, `90th percentile of the ${newest.measure} on examples that devices hold out, a line per level`);
  legend("error-legend", values);
}

function drawRounds() {
  drawSpread();
  drawLosses();
  drawError();
  chart("eta", (round) => round.eta, "threshold η by round, a line per level");
  legend("legend", (round) => round.eta);
  legend("losses-legend", (round) => round.losses);
  chart("loss", (round) => round.loss, "mean loss by round, a line per level");
  drawIdle();
  drawTimeline();
}

/** A choice of percentile for the chart. */
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

/** Which level a device would get: the nearest, and the lower of two. */
function drawKnob() {
  const theta = Number(at("knob").value);
  at("level").textContent = theta.toFixed(2);
  const levels = [...new Set(state.about.tracks.map((track) => track.theta))].sort((a, b) => a - b);
  const nearest = levels.reduce((best, level) => (Math.abs(level - theta) < Math.abs(best - theta) ? level : best));
  const track = state.about.tracks.findIndex((candidate) => candidate.theta === nearest);
  // Tracks may take turns: the last round in which this one trained.
  const last = state.rounds.findLast((round) => (round.tail[track] ?? null) !== null);
  let text = `${label(state.about.tracks[track])}: for every mixture of devices of conformity ${nearest} or more.`;
  if (last) text += ` In its last round ${number(last.tail[track])} of ${number(last.cohort)} devices trained it.`;
  const known = latest(track);
  if (known) {
    const of = (percent) => told(percentile(known, track, percent));
    text += ` Among ${number(known.losses[track].devices)} devices the median loss was ${of(50)}, the 90th percentile ${of(90)}.`;
  }
  at("choice").textContent = text;
  // As it stands, where `deltafl enrol device` wrote its folder; whoever may pull without one needs none.
  const who = state.public ? `--federation ${state.about.federation}` : "--identity identity";
  at("command").textContent =
    `deltafl model pull --theta ${theta.toFixed(2)} --server ${location.origin} ${who} --out model.safetensors`;
}

function drawAll() {
  const { about } = state;
  document.title = `${about.federation} · Δ-FL`;
  at("federation").textContent = about.federation;
  const mode = about.open ? "open mode: devices tell their losses" : "private mode: the server sees sums only";
  at("about").textContent = `${about.experiment} · ${about.model} · cohorts of ${number(about.cohort)} · ${mode}`;
  at("eta-note").textContent =
    "η admits a device to the tail: the (1−θ)-quantile of the cohort's losses, which the server learns from sums of histograms.";
  at("losses-note").textContent = about.open
    ? "From the losses that devices told: from the 10th to the 90th percentile, weighted by examples."
    : "From secure sums of histograms: from the 10th to the 90th percentile, weighted by examples, each as wide as its bin leaves it uncertain. No device's loss is known.";
  at("loss-section").hidden = !about.open;
  drawNow();
  drawRounds();
  drawKnob();
  document.documentElement.dataset.drawn = "true";
}

/** The rounds of the run under way: another seed starts from the beginning. */
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
