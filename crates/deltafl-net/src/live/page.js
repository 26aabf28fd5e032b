"use strict";
// The page listens; whenever the server says something new, it draws.
const at = (id) => document.getElementById(id);
const COLOURS = 6;
const SHOWN = 300;
const colour = (i) => `var(--c${i % COLOURS})`;
const label = (track) => (track.algorithm === "fedavg" ? "FedAvg" : `Δ-FL θ=${track.theta}`);
const state = { about: null, now: null, rounds: [], models: null, phases: [] };

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
    ? `Round ${number(now.round + 1)}: ${now.phase}, ${number(now.answered)} of ${number(now.invited)} devices have answered.`
    : waiting;
  if (state.phases.round !== now.round) state.phases = Object.assign([], { round: now.round });
  if (now.phase && !state.phases.includes(now.phase)) state.phases.push(now.phase);
  at("phases").replaceChildren(...state.phases.map((name) => made("li", name === now.phase ? "now" : "", name)));
}

/** Lines over rounds, a path per track; gaps where a value is not known. */
function chart(id, values, what) {
  const rounds = state.rounds;
  const known = rounds.flatMap((round) => values(round).filter((value) => value !== null));
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
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", what);
  const add = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    svg.append(node);
    return node;
  };
  for (const share of [0, 0.5, 1]) {
    const value = low + share * span;
    add("line", { class: "grid", x1: left, x2: width - 8, y1: y(value), y2: y(value) });
    add("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value.toPrecision(3));
  }
  add("text", { x: left, y: height - 6 }, `round ${first + 1}`);
  add("text", { x: width - 8, y: height - 6, "text-anchor": "end" }, `${last + 1}`);
  state.about.tracks.forEach((_, track) => {
    let path = "";
    let pen = "M";
    for (const round of rounds) {
      const value = values(round)[track] ?? null;
      if (value !== null) path += `${pen}${x(round.round).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = value === null ? "M" : "L";
    }
    if (path) add("path", { d: path }).style.stroke = colour(track);
  });
  box.replaceChildren(svg);
}

function legend(id, names) {
  at(id).replaceChildren(...names.map((name, i) => {
    const item = made("span");
    const mark = made("i");
    mark.style.background = colour(i);
    item.append(mark, name);
    return item;
  }));
}

function drawTimeline() {
  const recent = state.rounds.slice(-12).reverse();
  const longest = Math.max(...recent.map((round) => round.seconds), 1e-9);
  const names = [...new Set(recent.flatMap((round) => round.phases.map((phase) => phase.name)))];
  at("timeline").replaceChildren(...recent.map((round) => {
    const row = made("div", "row");
    const bar = made("div", "bar");
    bar.title = `${round.seconds.toFixed(2)} s`;
    const phases = round.phases.length ? round.phases : [{ name: "", seconds: round.seconds }];
    // Phases as parts of the round: what lies between them is the server's own work.
    const total = phases.reduce((sum, phase) => sum + phase.seconds, 0) || 1;
    for (const phase of phases) {
      const part = made("i");
      part.style.width = `${((100 * phase.seconds) / total) * (round.seconds / longest)}%`;
      part.style.background = colour(Math.max(0, names.indexOf(phase.name)));
      part.title = phase.name;
      bar.append(part);
    }
    const devices = made("span", "", `${number(round.cohort - round.dropped)} of ${number(round.cohort)}`);
    if (round.dropped > 0) devices.append(made("span", "dropped", ` −${number(round.dropped)}`));
    row.append(made("span", "", number(round.round + 1)), bar, devices);
    return row;
  }));
  legend("phase-legend", names);
}

function drawRounds() {
  chart("eta", (round) => round.eta, "threshold η by round, a line per level");
  chart("loss", (round) => round.loss, "mean loss by round, a line per level");
  drawTimeline();
}

/** Which level a device would get: the nearest, and the lower of two. */
function drawKnob() {
  const theta = Number(at("knob").value);
  at("level").textContent = theta.toFixed(2);
  const levels = [...new Set(state.about.tracks.map((track) => track.theta))].sort((a, b) => a - b);
  const nearest = levels.reduce((best, level) => (Math.abs(level - theta) < Math.abs(best - theta) ? level : best));
  const track = state.about.tracks.findIndex((candidate) => candidate.theta === nearest);
  const latest = state.rounds[state.rounds.length - 1];
  let text = `${label(state.about.tracks[track])}: for every mixture of devices of conformity ${nearest} or more.`;
  if (latest) text += ` In the last round ${number(latest.tail[track])} of ${number(latest.cohort)} devices trained it.`;
  at("choice").textContent = text;
  at("command").textContent =
    `deltafl model pull --theta ${theta.toFixed(2)} --server ${location.origin} --identity DEVICE --out model.safetensors`;
}

function drawAll() {
  const { about } = state;
  document.title = `${about.federation} · Δ-FL`;
  at("federation").textContent = about.federation;
  const mode = about.open ? "open mode: devices tell their losses" : "private mode: the server sees sums only";
  at("about").textContent = `${about.experiment} · ${about.model} · cohorts of ${number(about.cohort)} · ${mode}`;
  at("eta-note").textContent =
    "η admits a device to the tail: the (1−θ)-quantile of the cohort's losses, which the server learns from sums of histograms.";
  at("loss-section").hidden = !about.open;
  legend("legend", about.tracks.map(label));
  drawNow();
  drawRounds();
  drawKnob();
  document.documentElement.dataset.drawn = "true";
}

function listen(path) {
  const source = new EventSource(`${path}/events`);
  source.onmessage = (message) => {
    const change = JSON.parse(message.data);
    state.now = change.now;
    const known = new Set(change.rounds.map((round) => round.round));
    if (change.rounds.length > 0) {
      state.rounds = state.rounds.filter((round) => !known.has(round.round)).concat(change.rounds).slice(-SHOWN);
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
  Object.assign(state, snapshot);
  at("knob").addEventListener("input", drawKnob);
  window.addEventListener("resize", drawRounds);
  drawAll();
  listen(path);
}
start();
