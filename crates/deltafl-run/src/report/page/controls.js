// The state of the page, its controls, and what is drawn anew when one of them moves.

const CHARTS = {
  histogram: drawHistogram, scatter: drawScatter, curves: drawCurves, sizes: drawSizes, tails: drawTails,
  "by-class": drawClasses, "eta-every": drawEtaEvery, "device-curve": drawDevice,
};
// Milliseconds without a touch after which the hand rests.
const RESTING = 150;

function controls(page) {
  const byId = (id) => document.getElementById(id);
  const state = { runs: page.runs, run: page.runs[0], measure: page.runs[0].measures[0], figure: TAIL, axis: "calls", query: "", order: "gained", device: null };

  // Charts wait for the next frame of the screen, one chart per frame, so that a dragged slider draws once per frame
  // and not per event. Those in view come first; the others wait until the hand rests.
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
    // Plotly gives an element its events once it has drawn in it.
    if (clicked[id] && byId(id).on) {
      byId(id).on("plotly_click", clicked[id]);
      delete clicked[id];
    }
  };
  const next = () => {
    if (!window.Plotly) return void requestAnimationFrame(next);
    const seen = [...waiting].find(inView);
    const resting = performance.now() - touched > RESTING;
    if (seen) drawOne(seen);
    else if (resting && waiting.size > 0) drawOne([...waiting][0]);
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

  // What a click on a point does; once per chart.
  const clicked = {
    scatter: ({ points: [point] }) => { if (point.customdata) choose(point.customdata[5]); },
    curves: ({ points: [point] }) => {
      frame.value = point.pointIndex;
      frame.dispatchEvent(new Event("input"));
    },
  };

  const listed = () => { state.found = listDevices(state, changes(state), choose); };
  const tell = () => {
    const moved = changes(state);
    tellSpread(state);
    tellGains(state, moved);
    state.found = listDevices(state, moved, choose);
    tellDevice(state);
  };
  const everything = () => { tell(); redraw(...Object.keys(CHARTS)); };
  function choose(device) {
    state.device = device;
    listed();
    tellDevice(state);
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
    state.track = state.run.knob[Number(theta.value)];
    const { label } = state.run.tracks[state.track];
    byId("theta-out").textContent = label;
    theta.setAttribute("aria-valuetext", label);
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
    theta.max = run.knob.length - 1;
    theta.value = run.knob.indexOf(run.best);
    theta.disabled = run.knob.length < 2;
    byId("theta-ticks").replaceChildren(...run.knob.map((t, i) => element("option", { value: i, label: run.tracks[t].label })));
    byId("theta-first").textContent = run.tracks[run.knob[0]].label;
    byId("theta-last").textContent = run.knob.length > 1 ? run.tracks[run.knob.at(-1)].label : "";
    frame.max = run.rounds.length - 1;
    frame.value = frame.max;
    choices("measure", run.measures.map((measure) => [measure.key, measure.name]), state.measure.key, (key) => {
      Object.assign(state, { measure: run.measures.find((measure) => measure.key === key), device: null });
      figures();
      everything();
    });
    figures();
    document.querySelectorAll(".headline").forEach((part) => { part.hidden = page.runs[Number(part.dataset.run)] !== run; });
    const band = run.seeds > 1 ? `The line is the mean over ${run.seeds} seeds, the band one standard deviation. ` : "One seed: its line as it is. ";
    const between = "The line stands in the middle of what is known, the band between its bounds. ";
    byId("curves-lead").textContent = `${run.cohorts ? between : band}Click in the chart to move to a round.`;
    const over = run.seeds > 1 ? ` The line is the mean over ${run.seeds} seeds, the band runs from the fewest to the most.` : "";
    const windows = run.tail_width > 1 ? ` Every point averages ${run.tail_width} rounds.` : "";
    byId("tail-lead").textContent = `Of ${run.cohort} devices drawn in a round, those with a loss of at least η.${over}${windows}`;
    turn();
    scrub();
    everything();
  };

  theta.addEventListener("input", () => { touched = performance.now(); turn(); everything(); });
  frame.addEventListener("input", () => { touched = performance.now(); scrub(); tell(); redraw("histogram", "scatter", "curves", "sizes", "device-curve"); });
  choices("axis", [["calls", "secure-aggregation calls"], ["rounds", "rounds"]], state.axis, (axis) => { state.axis = axis; redraw("curves"); });
  choices("order", ORDERS, state.order, (order) => { state.order = order; listed(); });
  byId("search").addEventListener("input", (event) => { state.query = event.target.value; listed(); });
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
