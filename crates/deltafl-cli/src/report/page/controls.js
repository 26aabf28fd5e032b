// The state of the page, its controls, and what is drawn anew when one of them moves.

function controls(page) {
  const byId = (id) => document.getElementById(id);
  const state = { runs: page.runs, run: page.runs[0], split: page.runs[0].splits[0], figure: P90, axis: "calls", query: "", order: "gained", device: null };

  // Charts wait for the next frame of the screen, so that a dragged slider draws once per frame and not per event;
  // one chart per frame, so that none holds up the slider. Those that the slider is about come first.
  const waiting = new Set();
  let scheduled = false;
  const drawOne = () => {
    const [draw] = waiting;
    waiting.delete(draw);
    if (draw) draw(state);
  };
  const next = () => {
    drawOne();
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

  const listed = () => { state.found = listDevices(state, changes(state), choose); };
  const tell = () => {
    const moved = changes(state);
    tellSpread(state);
    tellGains(state, moved);
    state.found = listDevices(state, moved, choose);
    tellDevice(state);
  };
  const everything = () => { tell(); redraw(drawHistogram, drawScatter, drawCurves, drawSizes, drawKept, drawEtaEvery, drawDevice); };
  function choose(device) {
    state.device = device;
    listed();
    tellDevice(state);
    redraw(drawScatter, drawDevice, drawSizes);
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

  // The track on which the headline rests: the lowest 90th percentile.
  const best = (run) => {
    const last = run.rounds.length - 1;
    const p90 = (t) => figureAt(run, run.splits[0], last, t, P90).mean;
    const others = run.knob.filter((t) => t !== run.baseline);
    return others.reduce((a, b) => (p90(b) < p90(a) ? b : a), others[0] ?? run.baseline);
  };

  const openRun = (run) => {
    Object.assign(state, { run, split: run.splits.find((split) => split.key === state.split.key) ?? run.splits[0], device: null });
    theta.max = run.knob.length - 1;
    theta.value = run.knob.indexOf(best(run));
    theta.disabled = run.knob.length < 2;
    byId("theta-ticks").replaceChildren(...run.knob.map((t, i) => element("option", { value: i, label: run.tracks[t].label })));
    byId("theta-first").textContent = run.tracks[run.knob[0]].label;
    byId("theta-last").textContent = run.knob.length > 1 ? run.tracks[run.knob.at(-1)].label : "";
    frame.max = run.rounds.length - 1;
    frame.value = frame.max;
    choices("measure", run.splits.map((split) => [split.key, split.name]), state.split.key, (key) => {
      Object.assign(state, { split: run.splits.find((split) => split.key === key), device: null });
      everything();
    });
    document.querySelectorAll(".headline").forEach((part) => { part.hidden = page.runs[Number(part.dataset.run)] !== run; });
    byId("kept-lead").textContent = `Of ${run.cohort} devices drawn in a round, those with a loss of at least η. The line is the mean, the band runs from the fewest to the most.`;
    turn();
    scrub();
    everything();
  };

  theta.addEventListener("input", () => { turn(); everything(); });
  frame.addEventListener("input", () => { scrub(); tell(); redraw(drawHistogram, drawScatter, drawCurves, drawSizes, drawDevice); });
  choices("figure", ORDINALS.map((text, figure) => [figure, text]), state.figure, (figure) => { state.figure = figure; redraw(drawCurves); });
  choices("axis", [["calls", "secure-aggregation calls"], ["rounds", "rounds"]], state.axis, (axis) => { state.axis = axis; redraw(drawCurves); });
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

  // What the charts answer to; Plotly gives an element its events once it has drawn in it.
  const listen = () => {
    byId("scatter").on("plotly_click", ({ points: [point] }) => { if (point.customdata) choose(point.customdata[5]); });
    byId("curves").on("plotly_click", ({ points: [point] }) => {
      frame.value = point.pointIndex;
      frame.dispatchEvent(new Event("input"));
    });
  };
  waiting.add(listen);
  return { everything, drawNow: () => { while (waiting.size > 0) drawOne(); } };
}
