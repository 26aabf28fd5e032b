// A table with a row per symbol: an embedding, or the weights of one-hot inputs. A layer L defines
//   LEN, SYMBOLS       time steps, and the place of the symbols, [time][example], in the arena
//   ROWS, COLUMNS      of the table
//   TABLE, BIAS        places in the parameters; TABLE = −1: the frozen vectors; BIAS = −1: none
//   Z, DZ              a row per time step and example, and their slopes
//   PADDED             word 0 is padding: its row is zero and is not trained
//   NEXT               the next entry with the same symbol, for each time step and example

template <class L>
__device__ void table_forward(const Wave& wave) {
  const Device device(wave);
  if (device.now.size == 0) return;
  const u32* symbols = (const u32*)(device.arena + L::SYMBOLS);
  const float* table = L::TABLE < 0 ? wave.vectors : device.w + (L::TABLE < 0 ? 0 : L::TABLE);
  float* z = device.arena + L::Z;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < L::LEN * BATCH * L::COLUMNS; i += gridDim.x * blockDim.x) {
    const int c = i % L::COLUMNS;
    const u32 symbol = symbols[i / L::COLUMNS];
    const float v = L::PADDED && symbol == 0 ? 0.f : table[(size_t)symbol * L::COLUMNS + c];
    z[i] = L::BIAS < 0 ? v : v + device.w[L::BIAS + c];
  }
}

/// Decays the table, and links the entries of each symbol in their order. An entry that is not the
/// first of its symbol is marked by its highest bit.
template <class L>
__device__ void table_links(const Wave& wave) {
  constexpr int COUNT = L::LEN * BATCH;
  const Device device(wave);
  if (device.now.size == 0) return;
  if (device.now.keep != 1.f || device.now.pull != 0.f)
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < L::ROWS * L::COLUMNS; i += gridDim.x * blockDim.x) device.descend(L::TABLE + i, 0.f);
  const u32* symbols = (const u32*)(device.arena + L::SYMBOLS);
  u32* next = (u32*)(device.arena + L::NEXT);
  const int lane = threadIdx.x & 31, e = (blockIdx.x * blockDim.x + threadIdx.x) / 32; // a warp per entry
  if (e >= COUNT) return;
  const u32 symbol = symbols[e];
  const auto matches = [&](int k) { return __ballot_sync(ALL, k + lane < COUNT && symbols[min(k + lane, COUNT - 1)] == symbol); };
  u32 found = COUNT;
  for (int k = e + 1; k < COUNT && found == COUNT; k += 32)
    if (const u32 bits = matches(k)) found = k + __ffs(bits) - 1;
  for (int k = 0; k < e; k += 32) {
    u32 bits = matches(k);
    if (e - k < 32) bits &= (1u << (e - k)) - 1;
    if (bits) {
      found |= 0x80000000u;
      break;
    }
  }
  if (lane == 0) next[e] = found;
}

/// Adds the slopes of each row, in the order of the entries: a warp per symbol and 128 columns.
template <class L>
__device__ void table_descend(const Wave& wave) {
  constexpr int COUNT = L::LEN * BATCH, PARTS = (L::COLUMNS + 127) / 128;
  const Device device(wave);
  if (device.now.size == 0) return;
  const int lane = threadIdx.x & 31, unit = (blockIdx.x * blockDim.x + threadIdx.x) / 32, column = unit % PARTS * 128 + lane;
  u32 e = unit / PARTS;
  const u32* next = (const u32*)(device.arena + L::NEXT);
  if (e >= COUNT || next[e] >> 31) return;
  const u32 symbol = ((const u32*)(device.arena + L::SYMBOLS))[e];
  if (L::PADDED && symbol == 0) return;
  float* row = device.w + L::TABLE + (size_t)symbol * L::COLUMNS;
  const float* dz = device.arena + L::DZ;
  float sums[4] = {0.f, 0.f, 0.f, 0.f};
  while (e < COUNT) {
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (column + 32 * k < L::COLUMNS) sums[k] += dz[(size_t)e * L::COLUMNS + column + 32 * k];
    e = next[e] & 0x7fffffffu;
  }
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (column + 32 * k < L::COLUMNS) row[column + 32 * k] -= device.now.rate * sums[k];
}
