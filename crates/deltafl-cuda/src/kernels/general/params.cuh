// Parameters in flat order and in working form, in which every tensor starts at a multiple of four.
// The program defines `flat_index`, from the working form to the flat order (−1: padding).

extern "C" __global__ void to_working(const float* params, float* starts) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= WORKING) return;
  const int at = flat_index(i);
  starts[(size_t)blockIdx.y * WORKING + i] = at < 0 ? 0.f : params[(size_t)blockIdx.y * PARAMS + at];
}

/// Starts each device from the vector of its task.
extern "C" __global__ void spread(const Task* tasks, const float* starts, float* weights) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < WORKING) weights[(size_t)blockIdx.y * WORKING + i] = starts[(size_t)tasks[blockIdx.y].params * WORKING + i];
}

/// Writes w_k in flat order.
extern "C" __global__ void collect(const Task* tasks, const float* weights, float* local) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= WORKING) return;
  const int at = flat_index(i);
  if (at >= 0) local[(size_t)tasks[blockIdx.y].slot * PARAMS + at] = weights[(size_t)blockIdx.y * WORKING + i];
}
