// The state of the page, its controls, and the updates that each control triggers.

const CHARTS = {
  histogram: drawHistogram, scatter: drawScatter, curves: drawCurves, sizes: drawSizes, tails: drawTails, epsilon: drawEpsilon,
  "by-class": drawClasses, "eta-every": drawEtaEvery, "device-curve": drawDevice,
};
// The milliseconds without input after which charts out of view are drawn.
const IDLE_MS = 150;

function controls(page) {
  const byId = (id) => document.getElementById(id);
  const state = { runs: page.runs, run: page.runs[0], measure: page.runs[0].measures[0], figure: TAIL, axis: "calls", query: "", order: "gained", device: null };

  // One chart is drawn per animation frame, so that dragging a slider draws once per frame and not
  // once per event. Charts in view are drawn first. The others wait until there is no input.
  const waiting = new Set();
  let scheduled = false;
  let touched = -Infinity;
  const inView = (id) => {
    const box = byId(id).getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  };
  const drawOne = (id) => {
    waiting.delete(id);
    CHARTS[id](state);
    // Plotly adds the method `on` to an element when it first draws in it.
    if (clicked[id] && byId(id).on) {
      byId(id).on("plotly_click", clicked[id]);
      delete clicked[id];
    }
  };
  const next = () => {
    if (!window.Plotly) return void requestAnimationFrame(next);
    const seen = [...waiting].find(inView);
    const idle = performance.now() - touched > IDLE_MS;
    if (seen) drawOne(seen);
    else if (idle && waiting.size > 0) drawOne([...waiting][0]);
    scheduled = waiting.size > 0;
    if (scheduled) requestAnimationFrame(next);
    else document.documentElement.dataset.drawn = "true";
  };
  const redraw = (...charts) => {
    charts.forEach((chart) => waiting.add(chart));
    document.documentElement.dataset.drawn = "false";
    if (!scheduled) requestAnimationFrame(next);
    scheduled = true;
  };

  // The click handlers of the charts, each registered once.
  const clicked = {
    scatter: ({ points: [point] }) => { if (point.customdata) choose(point.customdata[5]); },
    curves: ({ points: [point] }) => {
      frame.value = point.pointIndex;
      frame.dispatchEvent(new Event("input"));
    },
  };

  const updateList = () => { state.found = listDevices(state, changes(state), choose); };
  const updateText = () => {
    const moved = changes(state);
    showSpread(state);
    showGains(state, moved);
    state.found = listDevices(state, moved, choose);
    showDevice(state);
  };
  const everything = () => { updateText(); redraw(...Object.keys(CHARTS)); };
  function choose(device) {
    state.device = device;
    updateList();
    showDevice(state);
    redraw("scatter", "device-curve", "sizes");
  }

  const choices = (id, options, chosen, act) => {
    const box = byId(id).querySelector(".choices") ?? byId(id);
    box.replaceChildren(...options.map(([value, text]) => {
      const input = element("input", { type: "radio", name: id, value });
      input.checked = value === chosen;
      input.addEventListener("change", () => act(value));
      return element("label", {}, input, element("span", {}, text));
    }));
  };

  const theta = byId("theta");
  const frame = byId("frame");
  const turn = () => {
    state.track = state.run.levels[Number(theta.value)];
    const { label } = state.run.tracks[state.track];
    state.label = label;
    byId("theta-out").textContent = label;
    theta.setAttribute("aria-valuetext", label);
  };
  const [method, against] = [byId("method"), byId("against")];
  // Shows the selected pair in all controls.
  const pair = () => {
    const { run } = state;
    const options = () => run.tracks.map(({ label }, t) => element("option", { value: t }, label));
    for (const [select, chosen] of [[method, state.track], [against, run.baseline]]) {
      select.replaceChildren(...options());
      select.value = chosen;
    }
    theta.value = run.levels.indexOf(state.track);
    byId("theta-ticks").replaceChildren(...run.levels.map((t, i) => element("option", { value: i, label: run.tracks[t].label })));
    byId("theta-first").textContent = run.tracks[run.levels[0]].label;
    byId("theta-last").textContent = run.levels.length > 1 ? run.tracks[run.levels.at(-1)].label : "";
    state.against = run.tracks[run.baseline].label;
    turn();
    method.value = state.track;
  };
  const scrub = () => {
    state.frame = Number(frame.value);
    const text = rounds(state.run.rounds[state.frame]);
    byId("frame-out").textContent = text;
    frame.setAttribute("aria-valuetext", text);
  };

  const figures = () => {
    if (state.figure === OBJECTIVE && !state.measure.objective) state.figure = TAIL;
    const options = ordinals(state.measure).map((text, figure) => [figure, text]);
    choices("figure", options, state.figure, (figure) => { state.figure = figure; redraw("curves"); });
  };

  const openRun = (run) => {
    Object.assign(state, { run, measure: run.measures.find((measure) => measure.key === state.measure.key) ?? run.measures[0], device: null });
    theta.max = run.levels.length - 1;
    theta.disabled = run.levels.length < 2;
    byId("pair").hidden = run.levels.length < 2;
    byId("method-field").hidden = run.isOneAlgorithm;
    byId("theta-field").hidden = !run.isOneAlgorithm;
    // The pair of methods stays selected when another split of a field is opened.
    const known = (label) => (run.isOneAlgorithm ? -1 : run.tracks.findIndex((track) => track.label === label));
    if (known(state.against) >= 0) setBaseline(run, known(state.against));
    state.track = known(state.label) >= 0 ? known(state.label) : run.best;
    pair();
    frame.max = run.rounds.length - 1;
    frame.value = frame.max;
    choices("measure", run.measures.map((measure) => [measure.key, measure.name]), state.measure.key, (key) => {
      Object.assign(state, { measure: run.measures.find((measure) => measure.key === key), device: null });
      figures();
      everything();
    });
    figures();
    document.querySelectorAll(".headline").forEach((part) => { part.hidden = page.runs[Number(part.dataset.run)] !== run; });
    const band = run.seeds > 1 ? `The line is the mean over ${run.seeds} seeds, and the band is one standard deviation. ` : "One seed. ";
    const between = "The band shows the bounds of the statistic, and the line is their midpoint. ";
    byId("curves-lead").textContent = `${run.cohorts ? between : band}Click in the chart to select a round.`;
    const over = run.seeds > 1 ? ` The line is the mean over ${run.seeds} seeds, and the band is the range.` : "";
    const windows = run.tail_width > 1 ? ` Each point is the average of ${run.tail_width} rounds.` : "";
    byId("tail-lead").textContent = `The devices with a loss of at least η, out of ${run.cohort} devices per round.${over}${windows}`;
    scrub();
    everything();
  };

  theta.addEventListener("input", () => { touched = performance.now(); turn(); method.value = state.track; everything(); });
  method.addEventListener("change", () => { state.track = Number(method.value); pair(); everything(); });
  against.addEventListener("change", () => { setBaseline(state.run, Number(against.value)); pair(); everything(); });
  frame.addEventListener("input", () => { touched = performance.now(); scrub(); updateText(); redraw("histogram", "scatter", "curves", "sizes", "device-curve"); });
  choices("axis", [["calls", "secure-aggregation calls"], ["rounds", "rounds"]], state.axis, (axis) => { state.axis = axis; redraw("curves"); });
  choices("order", ORDERS, state.order, (order) => { state.order = order; updateList(); });
  byId("search").addEventListener("input", (event) => { state.query = event.target.value; updateList(); });
  byId("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && state.found.length > 0) choose(state.found[0]);
  });
  byId("controls").addEventListener("submit", (event) => event.preventDefault());

  const run = byId("run");
  run.replaceChildren(...page.runs.map(({ name }, i) => element("option", { value: i }, name)));
  byId("run-field").hidden = page.runs.length < 2;
  run.addEventListener("change", () => openRun(page.runs[Number(run.value)]));
  openRun(state.run);
  return { everything, drawNow: () => { if (window.Plotly) [...waiting].forEach(drawOne); } };
}
