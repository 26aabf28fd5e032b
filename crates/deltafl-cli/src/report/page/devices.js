// Words and lists about the devices: percentiles, who gained and who lost, the search.

const LISTED = 60;
const ORDERS = [["gained", "most gained"], ["lost", "most lost"], ["worst", "worst off"]];

function tellSpread({ run, split, track, frame }) {
  const body = document.querySelector("#percentiles tbody");
  const named = (id, text) => { document.getElementById(id).textContent = text; };
  const alone = track === run.baseline;
  named("percentiles-baseline", run.tracks[run.baseline].label);
  named("percentiles-track", alone ? "" : run.tracks[track].label);
  body.replaceChildren(...ordinals(split).map((ordinal, figure) => {
    const [from, to] = [run.baseline, track].map((t) => figureAt(run, split, frame, t, figure).mean);
    const row = element("tr", figure === P90 ? { class: "key" } : {}, element("th", { scope: "row" }, ordinal));
    row.append(element("td", { "data-figure": `baseline-${figure}` }, number(split, from)));
    row.append(element("td", { "data-figure": `track-${figure}` }, alone ? "" : number(split, to)));
    // The objectives of two levels are two functions: their difference says nothing.
    const told = !alone && figure !== OBJECTIVE;
    row.append(element("td", { class: told ? changeClass(to - from) : "" }, told ? change(split, to - from) : ""));
    return row;
  }));
  const lead = document.getElementById("spread-lead");
  const kind = split.percent ? "Test devices by their error, in per cent" : "Train devices by their loss, weighted by their points";
  const over = run.seeds > 1 ? `, each averaged over ${run.seeds} seeds before it is counted` : "";
  const marks = run.seeds > 1
    ? " Dotted lines are means and dashed lines 90th percentiles of what the bars show; the table averages the figures of the seeds."
    : " Dotted lines are means, dashed lines 90th percentiles.";
  lead.textContent = alone
    ? `${kind}${over}. Turn the knob to hold a level of θ against ${run.tracks[track].label}.${marks}`
    : `${kind}${over}: bars for ${run.tracks[track].label}, the line for ${run.tracks[run.baseline].label}.${marks}`;
}

// How each device changed against the baseline.
function changes({ run, split, track, frame }) {
  const kept = keptFrame(split, frame);
  const before = valuesAt(run, split, kept, run.baseline);
  const after = valuesAt(run, split, kept, track);
  return { before, after, change: after.map((value, k) => value - before[k]), round: run.rounds[split.devices.frames[kept]] };
}

function tellGains(state, { before, change: moved, round }) {
  const { run, split, track } = state;
  const lead = document.getElementById("gains-lead");
  if (track === run.baseline) {
    lead.textContent = run.tracks.length > 1
      ? `This is ${run.tracks[track].label} held against itself: turn the knob.`
      : "There is one track only, and nothing to hold it against.";
    return;
  }
  const count = (belongs, among) => among.filter((k) => belongs(moved[k])).length;
  const everyone = moved.map((_, k) => k);
  // The tenth that the baseline serves worst: the devices the tail is about.
  const worst = [...everyone].sort((a, b) => before[b] - before[a]).slice(0, Math.max(1, Math.round(moved.length / 10)));
  const mean = worst.reduce((sum, k) => sum + moved[k], 0) / worst.length;
  const gained = count((d) => d < 0, everyone);
  const lost = count((d) => d > 0, everyone);
  const sample = split.devices.ids.length < split.devices.all ? ` (an even sample of ${split.devices.all})` : "";
  lead.replaceChildren(
    `After ${rounds(round)}, of ${moved.length} devices${sample} `,
    element("strong", { class: "gain" }, `${gained} gained`), " and ",
    element("strong", { class: "loss" }, `${lost} lost`),
    `. Of the tenth that ${run.tracks[run.baseline].label} serves worst, ${count((d) => d < 0, worst)} of ${worst.length} gained; their ${split.name} changed by `,
    element("strong", { class: changeClass(mean) }, change(split, mean) + changeUnit(split)), " on average.",
  );
}

function listDevices(state, { before, after, change: moved }, choose) {
  const { split, query, order, device, run, track } = state;
  const { ids, names } = split.devices;
  const wanted = query.trim().toLowerCase();
  const found = ids.map((_, k) => k).filter((k) => names[k].includes(wanted));
  const key = { gained: (k) => moved[k], lost: (k) => -moved[k], worst: (k) => -after[k] }[order];
  found.sort((a, b) => key(a) - key(b) || a - b);
  const count = document.getElementById("found-count");
  const shown = Math.min(found.length, LISTED);
  count.textContent = found.length === 0 ? "No device is called that." : shown < found.length ? `${shown} of ${found.length} devices` : `${shown} ${shown === 1 ? "device" : "devices"}`;
  document.getElementById("found").replaceChildren(...found.slice(0, LISTED).map((k) => {
    const figure = track === run.baseline ? withUnit(split, after[k]) : change(split, moved[k]);
    const button = element("button", { type: "button", "aria-pressed": String(k === device), title: ids[k] },
      element("span", { class: "id" }, ids[k]), element("span", { class: track === run.baseline ? "" : changeClass(moved[k]) }, figure));
    button.addEventListener("click", () => choose(k === device ? null : k));
    return element("li", {}, button);
  }));
  return found;
}

function tellDevice(state) {
  const { run, split, device, frame } = state;
  const panel = document.getElementById("device");
  panel.hidden = device === null;
  if (device === null) return;
  const kept = keptFrame(split, frame);
  const round = run.rounds[split.devices.frames[kept]];
  document.getElementById("device-name").textContent = split.devices.ids[device];
  document.getElementById("device-note").textContent = `${split.devices.examples[device].toLocaleString("en-GB")} points; ${split.name} after ${rounds(round)}`;
  const before = valuesAt(run, split, kept, run.baseline)[device];
  document.querySelector("#device-figures tbody").replaceChildren(...run.knob.map((t) => {
    const value = valuesAt(run, split, kept, t)[device];
    const moved = t === run.baseline ? "" : change(split, value - before);
    return element("tr", t === state.track ? { class: "key" } : {}, element("th", { scope: "row" }, run.tracks[t].label),
      element("td", {}, withUnit(split, value)), element("td", { class: moved ? changeClass(value - before) : "" }, moved));
  }));
}
