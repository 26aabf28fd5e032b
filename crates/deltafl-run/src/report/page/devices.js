// Texts and lists about the devices: percentiles, gains and losses, the search.

const LISTED = 60;
const ORDERS = [["gained", "largest gain"], ["lost", "largest loss"], ["worst", "worst value"]];

const toCompare = (run) => (run.isOneAlgorithm ? "Move the θ slider to compare another level" : "Choose another method to compare");

function showSpread({ run, measure, track, frame }) {
  const body = document.querySelector("#percentiles tbody");
  const named = (id, text) => { document.getElementById(id).textContent = text; };
  const alone = track === run.baseline;
  named("percentiles-baseline", run.tracks[run.baseline].label);
  named("percentiles-track", alone ? "" : run.tracks[track].label);
  body.replaceChildren(...ordinals(measure).map((ordinal, figure) => {
    const [from, to] = [run.baseline, track].map((t) => figureAt(run, measure, frame, t, figure).mean);
    const row = element("tr", figure === TAIL ? { class: "key" } : {}, element("th", { scope: "row" }, ordinal));
    const [before, after] = [run.baseline, track].map((t) => boundsAt(run, measure, frame, t, figure));
    const shown = (bounds, value) => (bounds ? range(bounds, (end) => number(measure, end)) : number(measure, value));
    row.append(element("td", { "data-figure": `baseline-${figure}` }, shown(before, from)));
    row.append(element("td", { "data-figure": `track-${figure}` }, alone ? "" : shown(after, to)));
    if (before) {
      row.append(changeBetween(measure, before, alone ? null : after));
      return row;
    }
    // The objectives of two levels are different functions, so their difference has no meaning.
    const comparable = !alone && figure !== OBJECTIVE;
    row.append(element("td", { class: comparable ? changeClass(measure, to - from) : "" }, comparable ? change(measure, to - from) : ""));
    return row;
  }));
  const lead = document.getElementById("spread-lead");
  const cohort = run.cohorts && "The devices of a cohort, each at the midpoint of its bin,";
  const devices = cohort || `${measure.split[0].toUpperCase()}${measure.split.slice(1)} devices`;
  const kind = `${devices} by their ${measure.axis.slice(measure.split.length + 1)}${measure.weighted ? ", weighted by their examples" : ""}`;
  const over = run.seeds > 1 && !cohort ? `, each averaged over ${run.seeds} seeds` : "";
  const marks = run.seeds > 1
    ? ` Dotted lines are the means and dashed lines the ${measure.statistics[TAIL]}s of the bars. The table shows averages over the seeds.`
    : ` Dotted lines are the means and dashed lines the ${measure.statistics[TAIL]}s.`;
  lead.textContent = alone
    ? `${kind}${over}. ${toCompare(run)} with ${run.tracks[track].label}.${marks}`
    : `${kind}${over}. The bars are ${run.tracks[track].label}, and the line is ${run.tracks[run.baseline].label}.${marks}`;
}

// Returns a cell with the range of the change of a statistic that is known only between bounds.
function changeBetween(measure, before, after) {
  if (!after) return element("td", {}, "");
  const [least, most] = [after.lower - before.upper, after.upper - before.lower];
  if (!Number.isFinite(least) || !Number.isFinite(most)) return element("td", {}, "");
  const sure = least > 0 || most < 0;
  return element("td", { class: sure ? changeClass(measure, least) : "" }, `${change(measure, least)} to ${change(measure, most)}`);
}

// Returns the change of each device relative to the baseline, or null if there are no values per
// device.
function changes({ run, measure, track, frame }) {
  if (run.cohorts) return null;
  const kept = keptFrame(measure, frame);
  const before = valuesAt(run, measure, kept, run.baseline);
  const after = valuesAt(run, measure, kept, track);
  return { before, after, change: after.map((value, k) => value - before[k]), round: run.rounds[measure.devices.frames[kept]] };
}

function showGains(state, moves) {
  const { run, measure, track } = state;
  // A deployed run contains only sums over cohorts, and no values per device.
  document.getElementById("gains").hidden = document.getElementById("device-sizes").hidden = !moves;
  if (!moves) return;
  const { before, change: moved, round } = moves;
  const lead = document.getElementById("gains-lead");
  if (track === run.baseline) {
    lead.textContent = run.tracks.length > 1
      ? `The selected model is the baseline, ${run.tracks[track].label}. ${toCompare(run)}.`
      : "The run has only one track, so there is nothing to compare.";
    return;
  }
  const count = (belongs, among) => among.filter((k) => belongs(cost(measure, moved[k]))).length;
  const all = moved.map((_, k) => k);
  // The tenth of the devices with the worst values of the baseline.
  const worst = [...all].sort((a, b) => cost(measure, before[b] - before[a])).slice(0, Math.max(1, Math.round(moved.length / 10)));
  const mean = worst.reduce((sum, k) => sum + moved[k], 0) / worst.length;
  const gained = count((d) => d < 0, all);
  const lost = count((d) => d > 0, all);
  const sample = measure.devices.ids.length < measure.devices.all ? ` (a sample of ${measure.devices.all})` : "";
  lead.replaceChildren(
    `After ${rounds(round)}, of ${moved.length} devices${sample} `,
    element("strong", { class: "gain" }, `${gained} gained`), " and ",
    element("strong", { class: "loss" }, `${lost} lost`),
    `. Of the tenth with the worst ${measure.name} of ${run.tracks[run.baseline].label}, ${count((d) => d < 0, worst)} of ${worst.length} gained. Their ${measure.name} changed by `,
    element("strong", { class: changeClass(measure, mean) }, change(measure, mean) + changeUnit(measure)), " on average.",
  );
}

function listDevices(state, moves, choose) {
  if (!moves) return [];
  const { before, after, change: moved } = moves;
  const { measure, query, order, device, run, track } = state;
  const { ids, names } = measure.devices;
  const wanted = query.trim().toLowerCase();
  const found = ids.map((_, k) => k).filter((k) => names[k].includes(wanted));
  const key = { gained: (k) => cost(measure, moved[k]), lost: (k) => -cost(measure, moved[k]), worst: (k) => -cost(measure, after[k]) }[order];
  found.sort((a, b) => key(a) - key(b) || a - b);
  const count = document.getElementById("found-count");
  const shown = Math.min(found.length, LISTED);
  count.textContent = found.length === 0 ? "No device has this name." : shown < found.length ? `${shown} of ${found.length} devices` : `${shown} ${shown === 1 ? "device" : "devices"}`;
  document.getElementById("found").replaceChildren(...found.slice(0, LISTED).map((k) => {
    const figure = track === run.baseline ? withUnit(measure, after[k]) : change(measure, moved[k]);
    const button = element("button", { type: "button", "aria-pressed": String(k === device), title: ids[k] },
      element("span", { class: "id" }, ids[k]), element("span", { class: track === run.baseline ? "" : changeClass(measure, moved[k]) }, figure));
    button.addEventListener("click", () => choose(k === device ? null : k));
    return element("li", {}, button);
  }));
  return found;
}

function showDevice(state) {
  const { run, measure, device, frame } = state;
  const panel = document.getElementById("device");
  panel.hidden = device === null;
  if (device === null) return;
  const kept = keptFrame(measure, frame);
  const round = run.rounds[measure.devices.frames[kept]];
  document.getElementById("device-name").textContent = measure.devices.ids[device];
  document.getElementById("device-note").textContent = `${measure.devices.examples[device].toLocaleString("en-GB")} examples; ${measure.name} after ${rounds(round)}`;
  const before = valuesAt(run, measure, kept, run.baseline)[device];
  document.querySelector("#device-figures tbody").replaceChildren(...run.levels.map((t) => {
    const value = valuesAt(run, measure, kept, t)[device];
    const moved = t === run.baseline ? "" : change(measure, value - before);
    return element("tr", t === state.track ? { class: "key" } : {}, element("th", { scope: "row" }, run.tracks[t].label),
      element("td", {}, withUnit(measure, value)), element("td", { class: moved ? changeClass(measure, value - before) : "" }, moved));
  }));
}
