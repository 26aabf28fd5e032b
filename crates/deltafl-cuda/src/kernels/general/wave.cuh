// The general engine: a program of layers over all devices of a wave, one kernel per operation.
//
// The program that includes this file defines
//   BATCH     examples of a device and step        TRAINS   false in a forward pass
//   PARAMS    parameters of the model              WORKING  the same in working form (`params.cuh`)
//   ARENA     floats of a device's activations and slopes
//   LABELS    place of the labels in the arena
//   TEXT      length of the windows of a text, 0 for other inputs
//   CLUSTERS  whether the GPU has clusters of blocks
// and a struct of sizes and places per layer. blockIdx.y is the device. Every sum has an order that
// depends on the sizes of the layer only, so the bits depend neither on the cohort nor on the wave.

/// The batch of a device in the current step.
struct Now {
  u64 first;  // the first entry in the order
  u32 size;   // examples; 0 if the device has finished
  u32 anchor; // the vector that `pull` multiplies
  float rate, keep, pull;
  u32 unused;
};

static_assert(sizeof(Now) == 32, "the layout of the host");

/// The arguments of all kernels.
struct Wave {
  const Task* tasks;
  const u32* order;    // null: examples are contiguous
  const void* inputs;  // pixels, words or text
  const u16* labels;
  const float *scale, *shift, *vectors;
  const float* starts; // starting vectors and pulls in working form
  float* weights;      // the parameters of each device, or those of all in a forward pass
  float* arena;
  Now* now;
  u32* step;           // its number, and the number of devices
  double* losses;
  u32* errors;
};
static_assert(sizeof(Wave) == 112, "the layout of the host");

/// A device of the wave.
struct Device {
  Now now;
  float *w, *arena;
  const float* anchor;

  __device__ Device(const Wave& wave, const Now& n) : now(n) {
    const size_t k = blockIdx.y;
    w = wave.weights + (TRAINS ? k * WORKING : 0);
    arena = wave.arena + k * ARENA;
    anchor = wave.starts + (size_t)now.anchor * WORKING;
  }
  __device__ Device(const Wave& wave) : Device(wave, wave.now[blockIdx.y]) {}

  /// keep·w + pull·anchor − γ·slope.
  __device__ float moved(int at, float slope) const {
    const float moved = fmaf(w[at], now.keep, -now.rate * slope);
    return now.pull != 0.f ? fmaf(now.pull, anchor[at], moved) : moved;
  }
  __device__ void descend(int at, float slope) const { w[at] = moved(at, slope); }
};

/// The first kernel of a step determines the batch of each device, and writes its labels.
__device__ __forceinline__ Now begin(const Wave& wave) {
  Now now = {};
  if (blockIdx.y >= wave.step[1]) { // a grid may have more rows than there are devices
    if (blockIdx.x == 0 && threadIdx.x == 0) wave.now[blockIdx.y] = now;
    return now;
  }
  const Task task = wave.tasks[blockIdx.y];
  const Batches batches(task);
  const u32 s = TRAINS ? wave.step[0] : 0;
  now.first = task.order + batches.first(s);
  now.size = s < batches.count ? batches.size(s) : 0;
  now.anchor = task.anchor;
  now.rate = task.rate, now.keep = task.keep, now.pull = task.pull;
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) wave.now[blockIdx.y] = now;
    u32* labels = (u32*)(wave.arena + (size_t)blockIdx.y * ARENA + LABELS);
    for (int b = threadIdx.x; b < BATCH; b += blockDim.x)
      if (b < now.size) {
        const size_t at = wave.order ? wave.order[now.first + b] : now.first + b;
        labels[b] = TEXT ? ((const u8*)wave.inputs)[at + TEXT] : wave.labels[at];
      }
  }
  return now;
}

/// Normalised features of the batch, zeros after its last example.
template <class Feature, class L>
__device__ void gather_features(const Wave& wave) {
  const Now now = begin(wave);
  const Device device(wave, now);
  if (now.size == 0) return;
  float* x = device.arena + L::Z;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < BATCH * L::DIM; i += gridDim.x * blockDim.x) {
    const int b = i / L::DIM, j = i % L::DIM;
    float v = 0.f;
    if (b < now.size) {
      const size_t at = wave.order ? wave.order[now.first + b] : now.first + b;
      v = fmaf((float)((const Feature*)wave.inputs)[at * L::DIM + j], wave.scale[j], wave.shift[j]);
    }
    x[i] = v;
  }
}

/// Symbols of the batch, [time][example].
template <class L>
__device__ void gather_symbols(const Wave& wave) {
  const Now now = begin(wave);
  const Device device(wave, now);
  if (now.size == 0) return;
  u32* symbols = (u32*)(device.arena + L::SYMBOLS);
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < BATCH * L::LEN; i += gridDim.x * blockDim.x) {
    const int b = i % BATCH, t = i / BATCH;
    u32 symbol = 0;
    if (b < now.size) {
      const size_t at = wave.order ? wave.order[now.first + b] : now.first + b;
      symbol = TEXT ? ((const u8*)wave.inputs)[at + t] : ((const u32*)wave.inputs)[at * L::LEN + t];
    }
    symbols[i] = symbol;
  }
}
