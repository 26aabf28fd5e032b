// Reads the numbers of the page back from its text.

const KINDS = { f64: Float64Array, f32: Float32Array, u16: Uint16Array };

async function readPage() {
  const page = JSON.parse(document.getElementById("data").textContent);
  const text = atob(document.getElementById("numbers").textContent);
  const deflated = Uint8Array.from(text, (c) => c.charCodeAt(0));
  const stream = new Blob([deflated]).stream().pipeThrough(new DecompressionStream("deflate"));
  const block = await new Response(stream).arrayBuffer();
  const array = ({ kind, offset, length }) => new KINDS[kind](block, offset, length);
  for (const run of page.runs) {
    run.calls = array(run.calls);
    run.tails = run.tails.map(array);
    // From the whole population down to the thinnest tail: what the knob turns through.
    run.knob = run.tracks.map((_, t) => t);
    run.knob.sort((a, b) => (b === run.baseline) - (a === run.baseline) || run.tracks[b].theta - run.tracks[a].theta || a - b);
    for (const measure of run.measures) {
      measure.figures = array(measure.figures);
      measure.bounds = measure.bounds && array(measure.bounds);
      measure.histogram.heights = array(measure.histogram.heights);
      measure.histogram.marks = array(measure.histogram.marks);
      const devices = measure.devices;
      devices.values = array(devices.values);
      const frame = run.tracks.length * devices.ids.length;
      devices.coded = devices.values instanceof Uint16Array;
      // Stored as differences to the frame before, modulo 2^16: a Uint16Array wraps around by itself.
      for (let i = frame; devices.coded && i < devices.values.length; i++) devices.values[i] += devices.values[i - frame];
      devices.names = devices.ids.map((id) => id.toLowerCase());
    }
  }
  return page;
}

// A figure (0: the mean, then the percentiles, then F_θ where the measure has it) of a track in a frame: { mean, std } over seeds; std is NaN for one seed.
function figureAt(run, measure, frame, track, figure) {
  const figures = measure.figures.length / run.rounds.length / run.tracks.length;
  const at = (frame * run.tracks.length + track) * figures + 2 * figure;
  return { mean: measure.figures[at], std: measure.figures[at + 1] };
}

// Between which numbers a figure lies: { lower, upper }, not finite where an end is not known; null where it is exact.
function boundsAt(run, measure, frame, track, figure) {
  if (!measure.bounds) return null;
  const columns = measure.bounds.length / run.rounds.length / run.tracks.length;
  const [lower, upper] = measure.bounds.subarray((frame * run.tracks.length + track) * columns + 2 * figure);
  return { lower, upper };
}

// The height of each bar: devices, or their share of the examples, each device averaged over seeds first.
function histogramAt(run, measure, frame, track) {
  const { bins, heights } = measure.histogram;
  const from = (frame * run.tracks.length + track) * bins;
  return Array.from(heights.subarray(from, from + bins));
}

// Mean and percentile of the tail of what the bars show.
function marksAt(run, measure, frame, track) {
  const [mean, tail] = measure.histogram.marks.subarray(2 * (frame * run.tracks.length + track));
  return { mean, tail };
}

// The frame nearest to `frame` of which the values of devices are kept: its place among the kept.
function keptFrame(measure, frame) {
  const { frames } = measure.devices;
  let best = 0;
  frames.forEach((f, i) => {
    if (Math.abs(f - frame) <= Math.abs(frames[best] - frame)) best = i;
  });
  return best;
}

// The value of each device under a track, in one of the kept frames.
function valuesAt(run, measure, kept, track) {
  const { ids, values } = measure.devices;
  const from = (kept * run.tracks.length + track) * ids.length;
  return Array.from(values.subarray(from, from + ids.length), (value) => decoded(measure.devices, value));
}

// A value of a device as it was, from what is stored of it.
const decoded = ({ coded, low, scale }, value) => (coded ? low + (value / 65535) * scale : value);

// The value of one device under a track, in each of the kept frames.
function deviceOver(run, measure, track, device) {
  const { ids, values, frames } = measure.devices;
  return frames.map((_, kept) => decoded(measure.devices, values[(kept * run.tracks.length + track) * ids.length + device]));
}
