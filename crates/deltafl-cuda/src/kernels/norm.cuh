// The norm of an update.

/// Returns Σ change(i)² over i = 0 … len − 1 in every lane of a warp. Like `kernel::fixed_point`,
/// sixteen lanes add the squares of every sixteenth entry, then the lanes in their order, then the
/// entries after the last whole row.
template <class Change>
__device__ __forceinline__ double squared_norm(u32 len, Change change) {
  const u32 lane = threadIdx.x & 15, whole = len / 16 * 16;
  const auto square = [&](u32 i) {
    const double by = change(i);
    return __dmul_rn(by, by);
  };
  double sum = 0.;
#pragma unroll 16 // loads of many rows on their way at once
  for (u32 i = lane; i < whole; i += 16) sum = __dadd_rn(sum, square(i));
  double total = 0.;
  for (int k = 0; k < 16; k++) total = __dadd_rn(total, __shfl_sync(ALL, sum, k));
  for (u32 i = whole; i < len; i++) total = __dadd_rn(total, square(i));
  return total;
}
