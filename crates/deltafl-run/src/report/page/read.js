// Decodes the numbers and the charting library of the page.

const KINDS = { f64: Float64Array, f32: Float32Array, u16: Uint16Array };

// Returns the decompressed contents of an element.
function inflated(id, format) {
  const text = atob(document.getElementById(id).textContent);
  const deflated = Uint8Array.from(text, (c) => c.charCodeAt(0));
  return new Response(new Blob([deflated]).stream().pipeThrough(new DecompressionStream(format)));
}

async function readPage() {
  const page = JSON.parse(document.getElementById("data").textContent);
  const [block, plotly] = await Promise.all([inflated("numbers", "deflate").arrayBuffer(), inflated("plotly", "gzip").text()]);
  page.plotly = plotly;
  const array = ({ kind, offset, length }) => new KINDS[kind](block, offset, length);
  for (const run of page.runs) {
    run.calls = array(run.calls);
    run.tails = run.tails.map(array);
    if (run.privacy) run.privacy.spent = array(run.privacy.spent);
    const others = run.tracks.filter((_, t) => t !== run.baseline);
    // Tracks of several algorithms have no common scale for a slider.
    run.isOneAlgorithm = new Set(others.map(({ algorithm }) => algorithm)).size < 2;
    setBaseline(run, run.baseline);
    for (const measure of run.measures) {
      measure.figures = array(measure.figures);
      measure.bounds = measure.bounds && array(measure.bounds);
      measure.histogram.heights = array(measure.histogram.heights);
      measure.histogram.marks = array(measure.histogram.marks);
      const devices = measure.devices;
      devices.values = array(devices.values);
      const frame = run.tracks.length * devices.ids.length;
      devices.coded = devices.values instanceof Uint16Array;
      // Stored as differences to the previous frame modulo 2^16. A Uint16Array wraps around.
      for (let i = frame; devices.coded && i < devices.values.length; i++) devices.values[i] += devices.values[i - frame];
      devices.names = devices.ids.map((id) => id.toLowerCase());
    }
  }
  return page;
}

// Selects the track with which the others are compared, and sorts the tracks for the θ slider: the
// baseline, then by decreasing θ.
function setBaseline(run, baseline) {
  run.baseline = baseline;
  run.levels = run.tracks.map((_, t) => t);
  run.levels.sort((a, b) => (b === baseline) - (a === baseline) || run.tracks[b].theta - run.tracks[a].theta || a - b);
}

// Returns a statistic of a track in a frame as { mean, std } over seeds. std is NaN for one seed.
// The index 0 is the mean, followed by the percentiles and, if the measure has it, F_θ.
function figureAt(run, measure, frame, track, figure) {
  const figures = measure.figures.length / run.rounds.length / run.tracks.length;
  const at = (frame * run.tracks.length + track) * figures + 2 * figure;
  return { mean: measure.figures[at], std: measure.figures[at + 1] };
}

// Returns the bounds of a statistic as { lower, upper }, or null if it is exact. Unknown bounds are
// not finite.
function boundsAt(run, measure, frame, track, figure) {
  if (!measure.bounds) return null;
  const columns = measure.bounds.length / run.rounds.length / run.tracks.length;
  const [lower, upper] = measure.bounds.subarray((frame * run.tracks.length + track) * columns + 2 * figure);
  return { lower, upper };
}

// Returns the height of each bar: the devices, or their share of the examples. Each device is
// averaged over seeds first.
function histogramAt(run, measure, frame, track) {
  const { bins, heights } = measure.histogram;
  const from = (frame * run.tracks.length + track) * bins;
  return Array.from(heights.subarray(from, from + bins));
}

// Returns the mean and the tail percentile of the histogram.
function marksAt(run, measure, frame, track) {
  const [mean, tail] = measure.histogram.marks.subarray(2 * (frame * run.tracks.length + track));
  return { mean, tail };
}

// Returns the index of the stored frame nearest to `frame`. Device values are stored only for some
// frames.
function keptFrame(measure, frame) {
  const { frames } = measure.devices;
  let best = 0;
  frames.forEach((f, i) => {
    if (Math.abs(f - frame) <= Math.abs(frames[best] - frame)) best = i;
  });
  return best;
}

// Returns the value of each device for a track in a stored frame.
function valuesAt(run, measure, kept, track) {
  const { ids, values } = measure.devices;
  const from = (kept * run.tracks.length + track) * ids.length;
  return Array.from(values.subarray(from, from + ids.length), (value) => decoded(measure.devices, value));
}

// Decodes the stored value of a device.
const decoded = ({ coded, low, scale }, value) => (coded ? low + (value / 65535) * scale : value);

// Returns the value of one device for a track in each stored frame.
function deviceOver(run, measure, track, device) {
  const { ids, values, frames } = measure.devices;
  return frames.map((_, kept) => decoded(measure.devices, values[(kept * run.tracks.length + track) * ids.length + device]));
}
