// Forward passes that divide items into groups of examples.

/// Adds the scores of the groups of each item, in order.
extern "C" __global__ void add_groups(const u32* first_group, u32 items, const double* group_losses, const u32* group_errors, double* losses, u32* errors) {
  const u32 i = blockIdx.x * 256 + threadIdx.x;
  if (i >= items) return;
  double total = 0;
  u32 wrong = 0;
  for (u32 k = first_group[i]; k < first_group[i + 1]; k++) total += group_losses[k], wrong += group_errors[k];
  losses[i] = total, errors[i] = wrong;
}
