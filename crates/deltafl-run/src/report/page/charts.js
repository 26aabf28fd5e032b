// The charts. Each function draws one chart from the state of the page.

const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };

function layout(x, y, more = {}) {
  const ink = cssColour("--ink");
  const rule = cssColour("--rule");
  const axis = (settings) => ({
    gridcolor: rule,
    zeroline: false,
    linecolor: rule,
    automargin: true,
    ...settings,
    title: { text: settings.title, font: { size: 13 }, standoff: 10 },
  });
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: cssColour("--sans"), size: 12, color: ink },
    margin: { l: 48, r: 12, t: 12, b: 44 },
    hoverlabel: { bgcolor: cssColour("--paper"), bordercolor: rule, font: { color: ink, size: 13 }, align: "left" },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal", font: { size: 12 } },
    xaxis: axis({ showgrid: false, ticks: "outside", tickcolor: rule, ...x }),
    yaxis: axis(y),
    ...more,
  };
}

const draw = (id, traces, settings) => Plotly.react(id, traces, settings, CONFIG);

// Returns a vertical line with a label next to its top, shifted down by `row` lines of text.
function mark(x, colour, dash, text, side, row) {
  return {
    shape: { type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: colour, width: 1.5, dash } },
    annotation: {
      x, y: 1, yref: "paper", text, showarrow: false, xanchor: side, yanchor: "top", xshift: side === "left" ? 4 : -4, yshift: -14 * row,
      font: { size: 11, color: colour }, bgcolor: cssColour("--paper"), borderpad: 0,
    },
  };
}

function drawHistogram({ run, measure, track, frame }) {
  const { from, step, bins, open } = measure.histogram;
  const edges = Array.from({ length: bins + 1 }, (_, i) => drawn(measure, from + i * step));
  const centres = edges.slice(0, -1).map((edge, i) => (edge + edges[i + 1]) / 2);
  const baseline = histogramAt(run, measure, frame, run.baseline);
  const chosen = histogramAt(run, measure, frame, track);
  const places = measure.percent ? 1 : measure.decimals;
  const edge = (i) => written(edges[i], places);
  const ranges = centres.map((_, i) => {
    if (open[0] && i === 0) return `below ${edge(1)}`;
    if (open[1] && i === bins - 1) return `${edge(i)} and above`;
    return measure.histogram.from < 0 ? `${edge(i)} to ${edge(i + 1)}` : `${edge(i)}–${edge(i + 1)}`;
  });
  const hover = measure.weighted ? "%{customdata}: %{y:.1f} % of the examples" : "%{customdata}: %{y} devices";
  const look = lookOf(run, track);
  const grey = lookOf(run, run.baseline).colour;
  const traces = [{
    type: "bar", name: asMarkup(run.tracks[track].label), x: centres, y: chosen, customdata: ranges, hovertemplate: hover,
    width: edges[1] - edges[0], marker: { color: faded(look.colour, track === run.baseline ? 0.5 : 0.6), line: { width: 0 } },
  }];
  const marks = [];
  if (track !== run.baseline) {
    traces.push({
      type: "scatter", mode: "lines", name: asMarkup(run.tracks[run.baseline].label), x: centres, y: baseline, customdata: ranges,
      hovertemplate: hover, line: { shape: "hvh", color: grey, width: 2 },
    });
  }
  const addMarks = (t, colour, row) => {
    const { mean, tail } = marksAt(run, measure, frame, t);
    const [left, right] = [edges[0], edges[bins]];
    // The label of the tail percentile is on the worse side of its line, and the label of the mean
    // on the better side, unless it would not fit. Values outside the bars are marked at their
    // edge.
    const put = (value, dash, label, good) => {
      const at = Math.min(Math.max(drawn(measure, value), left), right);
      const toTheLeft = good === measure.lower_is_better;
      const near = toTheLeft ? at < left + 0.15 * (right - left) : at > right - 0.15 * (right - left);
      const side = toTheLeft !== near ? "right" : "left";
      marks.push(mark(at, colour, dash, `${label} ${number(measure, value)}`, side, near ? row + 2 : row));
    };
    put(mean, "dot", "mean", true);
    put(tail, "dash", measure.columns[TAIL], false);
  };
  if (track !== run.baseline) addMarks(run.baseline, grey, 1);
  addMarks(track, look.colour, 0);
  // The same scale for all levels, so that they can be compared, with room for the labels.
  let top = 1;
  run.tracks.forEach((_, t) => { top = Math.max(top, ...histogramAt(run, measure, frame, t)); });
  draw("histogram", traces, layout(
    { title: measure.axis + measure.histogram.note, range: [edges[0], edges[bins]] },
    { title: measure.histogram.axis, range: [0, top * 1.3] },
    { bargap: 0, shapes: marks.map((m) => m.shape), annotations: marks.map((m) => m.annotation) },
  ));
}

function drawScatter({ run, measure, track, frame, device }) {
  if (run.cohorts) return;
  const kept = keptFrame(measure, frame);
  const before = valuesAt(run, measure, kept, run.baseline);
  const after = valuesAt(run, measure, kept, track);
  const { ids, examples } = measure.devices;
  const few = ids.length < 200;
  const group = (name, colour, symbol, belongs) => {
    const at = ids.map((_, k) => k).filter((k) => belongs(after[k] - before[k]));
    return {
      type: "scatter", mode: "markers", name: `${name} (${at.length})`,
      x: at.map((k) => drawn(measure, before[k])), y: at.map((k) => drawn(measure, after[k] - before[k])),
      customdata: at.map((k) => [asMarkup(ids[k]), number(measure, before[k]), number(measure, after[k]), change(measure, after[k] - before[k]), examples[k], k]),
      hovertemplate: `<b>%{customdata[0]}</b><br>%{customdata[1]} → %{customdata[2]} (%{customdata[3]})<br>%{customdata[4]} examples<extra></extra>`,
      marker: { color: faded(colour, few ? 0.85 : 0.55), symbol, size: few ? 9 : 7, line: { width: 0 } },
    };
  };
  const hex = isDark() ? ["#56b4e9", "#f08a3c"] : ["#0072b2", "#d55e00"];
  const traces = [
    group("lost", hex[1], measure.lower_is_better ? "triangle-up" : "triangle-down", (d) => cost(measure, d) > 0),
    group("gained", hex[0], measure.lower_is_better ? "triangle-down" : "triangle-up", (d) => cost(measure, d) < 0),
    group("unchanged", "#8a8d90", "circle", (d) => d === 0),
  ];
  if (device !== null) {
    traces.push({
      type: "scatter", mode: "markers", hoverinfo: "skip", showlegend: false,
      x: [drawn(measure, before[device])], y: [drawn(measure, after[device] - before[device])],
      marker: { symbol: "circle-open", size: 18, color: cssColour("--ink"), line: { width: 2.5 } },
    });
  }
  draw("scatter", traces, layout(
    { title: `${measure.axis} under ${asMarkup(run.tracks[run.baseline].label)}`, showgrid: true },
    { title: `change (${measure.percent ? "points; " : ""}${measure.lower_is_better ? "below" : "above"} 0 is better)`, zeroline: true, zerolinecolor: cssColour("--soft"), zerolinewidth: 1.5 },
    { hovermode: "closest", hoverdistance: 12 },
  ));
}

function drawCurves({ run, measure, track, frame, figure, axis }) {
  const xs = (t) => (axis === "calls" ? Array.from(run.calls.subarray(t * run.rounds.length, (t + 1) * run.rounds.length)) : run.rounds);
  const traces = [];
  for (const t of run.levels) {
    // Many methods: those that are not compared are thin lines without a name in the legend.
    const isCompared = run.isOneAlgorithm || t === track || t === run.baseline;
    const look = isCompared ? lookOf(run, t) : { colour: faded(lookOf(run, run.baseline).colour, 0.35), dash: "solid" };
    const name = asMarkup(run.tracks[t].label);
    const at = run.rounds.map((_, f) => figureAt(run, measure, f, t, figure));
    const mean = at.map((a) => drawn(measure, a.mean));
    const known = measure.bounds && run.rounds.map((_, f) => boundsAt(run, measure, f, t, figure));
    if (known) {
      const edge = (end) => known.map((bounds) => drawn(measure, bounds[end]));
      const band = { type: "scatter", mode: "lines", x: xs(t), line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: name };
      traces.push({ ...band, y: edge("lower") }, { ...band, y: edge("upper"), fill: "tonexty", fillcolor: faded(look.colour, 0.14) });
    } else if (run.seeds > 1 && isCompared) {
      const edge = (sign) => at.map((a) => drawn(measure, a.mean + sign * a.std));
      const band = { type: "scatter", mode: "lines", x: xs(t), line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: name };
      traces.push({ ...band, y: edge(-1) }, { ...band, y: edge(1), fill: "tonexty", fillcolor: faded(look.colour, 0.14) });
    }
    traces.push({
      // A single point has no line.
      type: "scatter", mode: run.rounds.length > 1 ? "lines" : "markers", name, legendgroup: name, x: xs(t), y: mean,
      customdata: known ? known.map((bounds) => range(bounds, (value) => number(measure, value))) : run.rounds,
      showlegend: isCompared,
      line: { color: look.colour, dash: look.dash, width: !isCompared ? 1 : t === track ? 3.2 : 1.8 },
      hovertemplate: known ? `%{customdata}<extra>${name}</extra>` : `%{y:.${measure.decimals}f}<extra>${name}</extra>`,
    });
  }
  const here = axis === "calls" ? xs(track)[frame] : run.rounds[frame];
  // The values of the untrained model would compress the rest of the curves.
  const first = run.rounds.length > 3 && run.rounds[0] === 0 ? 1 : 0;
  const reached = traces.flatMap((trace) => trace.y.slice(first)).filter(Number.isFinite);
  const [low, high] = [Math.min(...reached), Math.max(...reached)];
  const room = 0.05 * (high - low) || 0.5;
  draw("curves", traces, layout(
    { title: axis === "calls" ? "calls of secure aggregation" : "rounds", rangemode: "tozero" },
    { title: figure === OBJECTIVE ? "objective F<sub>θ</sub>, each track at its own θ" : `${measure.statistics[figure]} of the ${measure.axis}`, range: [low - room, high + room] },
    {
      hovermode: "x unified",
      shapes: [{ type: "line", x0: here, x1: here, y0: 0, y1: 1, yref: "paper", line: { color: cssColour("--soft"), width: 1, dash: "dot" } }],
    },
  ));
}

function drawSizes({ run, measure, track, frame, device }) {
  if (run.cohorts) return;
  const kept = keptFrame(measure, frame);
  const { ids, examples } = measure.devices;
  const trace = (t, symbol, opacity) => {
    const values = valuesAt(run, measure, kept, t);
    return {
      type: "scatter", mode: "markers", name: asMarkup(run.tracks[t].label), x: examples, y: values.map((value) => drawn(measure, value)),
      customdata: ids.map((id, k) => [asMarkup(id), number(measure, values[k])]),
      hovertemplate: "<b>%{customdata[0]}</b><br>%{customdata[1]}, %{x} examples<extra></extra>",
      marker: { color: faded(lookOf(run, t).colour, opacity), symbol, size: 6 },
    };
  };
  const traces = [trace(run.baseline, "circle", 0.35)];
  if (track !== run.baseline) traces.push(trace(track, "diamond", 0.5));
  if (device !== null) {
    traces.push({
      type: "scatter", mode: "markers", hoverinfo: "skip", showlegend: false, x: [examples[device]],
      y: [drawn(measure, valuesAt(run, measure, kept, track)[device])],
      marker: { symbol: "circle-open", size: 18, color: cssColour("--ink"), line: { width: 2.5 } },
    });
  }
  const least = examples.reduce((a, b) => Math.min(a, b), Infinity);
  const greatest = examples.reduce((a, b) => Math.max(a, b), 0);
  const wide = greatest > 20 * Math.max(1, least);
  const ticks = [1, 10, 100, 1e3, 1e4, 1e5, 1e6].flatMap((power) => [power, 2 * power, 5 * power]);
  draw("sizes", traces, layout(
    { title: "examples per device" + (wide ? " (logarithmic)" : ""), showgrid: true, ...(wide ? { type: "log", tickvals: ticks } : {}) },
    { title: measure.axis, rangemode: "tozero" },
    { hovermode: "closest" },
  ));
}

function drawTails({ run, track }) {
  const traces = [];
  for (const t of run.levels) {
    const look = lookOf(run, t);
    const name = asMarkup(run.tracks[t].label);
    const column = (i) => Array.from(run.tails[t].filter((_, j) => j % 4 === i));
    const band = { type: "scatter", mode: "lines", x: column(0), line: { width: 0 }, hoverinfo: "skip", showlegend: false };
    if (run.seeds > 1) traces.push({ ...band, y: column(2) }, { ...band, y: column(3), fill: "tonexty", fillcolor: faded(look.colour, 0.14) });
    const [low, high] = [column(2), column(3)];
    const spans = low.map((least, i) => [least.toFixed(1), high[i].toFixed(1)]);
    traces.push({
      type: "scatter", mode: "lines", name, x: column(0), y: column(1), customdata: spans,
      line: { color: look.colour, dash: look.dash, width: t === track ? 2.8 : 1.6 },
      hovertemplate: `%{y:.1f} (%{customdata[0]}–%{customdata[1]})<extra>${name}</extra>`,
    });
  }
  draw("tails", traces, layout({ title: "round" }, { title: "devices in the tail", rangemode: "tozero" }, { hovermode: "x unified" }));
}

// Draws ε after each round for each observer, if the sums have noise.
function drawEpsilon({ run }) {
  const { privacy } = run;
  document.getElementById("privacy").hidden = !privacy;
  if (!privacy) return;
  const column = (i) => Array.from(privacy.spent.filter((_, j) => j % 3 === i));
  const observers = [["against the server", 1, "solid", "--accent"], ["against readers of the models", 2, "dash", "--ink"]]
    .filter(([, i]) => !Number.isNaN(column(i)[0]));
  const last = observers.map(([name, i]) => `${column(i).at(-1).toPrecision(3)} ${name}`).join(" and ");
  document.getElementById("privacy-lead").textContent =
    `ε of a device that answered as often as it could, at δ = ${privacy.delta}. After the last round it is ${last}. The numbers of devices in the tail are noisy.`;
  const traces = observers.map(([name, i, dash, colour]) => ({
    type: "scatter", mode: "lines", name, x: column(0), y: column(i), line: { color: cssColour(colour), dash, width: 2 },
    hovertemplate: `ε = %{y:.3g}<extra>${name}</extra>`,
  }));
  draw("epsilon", traces, layout({ title: "round" }, { title: "ε", rangemode: "tozero" }, { hovermode: "x unified" }));
}

// Draws the error of each class after the last round, for the baseline and the selected track.
function drawClasses({ run, track }) {
  const { classes } = run;
  document.getElementById("classes").hidden = !classes;
  if (!classes) return;
  document.getElementById("classes-lead").textContent = `The share of the ${classes.split} examples of each class that is misclassified after the last round.`;
  const trace = (t) => ({
    type: "bar", name: asMarkup(run.tracks[t].label), x: classes.classes.map((c) => asMarkup(c.name)), y: classes.classes.map((c) => 100 * c.errors[t].mean),
    customdata: classes.classes.map((c) => c.examples), hovertemplate: "%{x}: %{y:.2f} % of %{customdata} examples",
    error_y: { type: "data", array: classes.classes.map((c) => 100 * c.errors[t].std), thickness: 1.2, width: 4, visible: run.seeds > 1 },
    marker: { color: faded(lookOf(run, t).colour, 0.7) },
  });
  const traces = track === run.baseline ? [trace(track)] : [trace(run.baseline), trace(track)];
  draw("by-class", traces, layout({ title: "class", type: "category" }, { title: "misclassified (%)", rangemode: "tozero" }, { barmode: "group" }));
}

// Groups the tracks by level, and returns the levels that have several values of T_η.
function etaGroups(runs, key) {
  const groups = new Map();
  for (const run of runs) {
    const measure = run.measures.find((s) => s.key === key);
    if (!measure) continue;
    run.tracks.forEach((track, t) => {
      if (t === run.baseline) return;
      const group = groups.get(track.theta) ?? [];
      group.push({ every: track.eta_every, run, measure, t });
      groups.set(track.theta, group);
    });
  }
  return [...groups].filter(([, group]) => new Set(group.map((g) => g.every)).size > 1).sort((a, b) => b[0] - a[0]);
}

function drawEtaEvery({ runs, measure }) {
  const groups = etaGroups(runs, measure.key);
  document.getElementById("eta").hidden = groups.length === 0;
  if (groups.length === 0) return;
  const hues = isDark() ? HUES_ON_DARK : HUES;
  const traces = groups.flatMap(([theta, group], i) => [[0, "mean", "dot"], [TAIL, measure.statistics[TAIL], "solid"]].map(([figure, name, dash]) => {
    const at = [...group].sort((a, b) => a.every - b.every);
    const figures = at.map((g) => figureAt(g.run, g.measure, g.run.rounds.length - 1, g.t, figure));
    return {
      type: "scatter", mode: "lines+markers", name: `θ=${theta}, ${name}`, x: at.map((g) => g.every), y: figures.map((f) => drawn(measure, f.mean)),
      error_y: { type: "data", array: figures.map((f) => drawn(measure, f.std)), thickness: 1.2, width: 4, visible: figures.every((f) => Number.isFinite(f.std)) },
      line: { color: hues[i % hues.length], dash, width: 2 },
    };
  }));
  draw("eta-every", traces, layout({ title: "T<sub>η</sub>, rounds between two updates of η" }, { title: measure.axis }, { hovermode: "closest" }));
}

function drawDevice({ run, measure, device, frame }) {
  if (device === null) return;
  const { frames } = measure.devices;
  const traces = run.levels.map((t) => {
    const look = lookOf(run, t);
    return {
      type: "scatter", mode: "lines", name: asMarkup(run.tracks[t].label), x: frames.map((f) => run.rounds[f]),
      y: deviceOver(run, measure, t, device).map((value) => drawn(measure, value)),
      line: { color: look.colour, dash: look.dash, width: 1.8 }, hovertemplate: `%{y:.${measure.decimals}f}<extra>${asMarkup(run.tracks[t].label)}</extra>`,
    };
  });
  const here = run.rounds[frame];
  draw("device-curve", traces, layout({ title: "rounds" }, { title: measure.axis, rangemode: "tozero" }, {
    hovermode: "x unified", showlegend: false,
    shapes: [{ type: "line", x0: here, x1: here, y0: 0, y1: 1, yref: "paper", line: { color: cssColour("--soft"), width: 1, dash: "dot" } }],
  }));
}
