// The computing warps: their state, and the functions that `forward.cuh`, `backward.cuh` and
// `descend.cuh` define.

/// The eight computing warps.
struct Computing {
  Cluster& c;
  Memory& m;
  float* kept;
  float4* master;
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t4 = lane & 3, tile = lane >> 3, tile_row = lane & 7;
  const int example = (warp >> 1) * 4 + (lane >> 3), unit = ((warp & 1) * 8 + (lane & 7)) * 2; // gates of units unit, unit+1 (+32 i)
  const int unit_tile = warp % UNIT_TILES, k_part = warp / UNIT_TILES;                        // products of 16 units × UNITS inputs
  float h[PAIRS][2], dh[PAIRS][2], r[PAIRS][2], z[PAIRS][2], n[PAIRS][2], a[PAIRS][2], before[PAIRS][2];
  float gradient[3][N_TILES][4];

  __device__ Computing(Cluster& cluster, float* kept, float4* master) : c(cluster), m(cluster.m), kept(kept), master(master + tid) {}

  __device__ const float* start_of(int j) const {
    return m.start + AT_RECURRENT + (j / N_TILES * HIDDEN + c.rank * UNITS + unit_tile * 16 + g) * HIDDEN + k_part * UNITS + j % N_TILES * 8 + 2 * t4;
  }
  __device__ void load_master() {
    for (int j = 0; j < 3 * N_TILES; j++) {
      const float* w = start_of(j);
      __stcg(master + j * COMPUTING, make_float4(w[0], w[1], w[8 * HIDDEN], w[8 * HIDDEN + 1]));
    }
  }

  /// Returns the address of the gates of time step `t`.
  __device__ float* kept_at(int t, int i) const { return kept + (t * 5 * PAIRS + i) * 512 + tid * 2; }

  __device__ void forward(u32 step, const u8* symbols);
  /// Sends the logits of this block's units to every block, then computes the residuals of the
  /// loss.
  __device__ void output(u32 step, const u8* symbols, int size);
  /// Reads the gates of time step `t` and the previous state.
  __device__ void recall(int t, int i);
  __device__ void backward(u32 step);
  /// Computes ∂h of the previous time step from this block's gates: 16 units per warp, sent to
  /// their owner.
  template <int K>
  __device__ void send_slopes(u32 slopes, int lower, u32 high, u32 low, const u32 (&wh)[K][4], const u32 (&wl)[K][4], int t, u32 barrier);
  /// Computes ∂W_hh += slopes ⊗ states of the previous time step.
  __device__ void add_gradient(u32 slopes, int lower, u32 states);
  /// Computes W_hh ← keep·W_hh + pull·anchor − γ·gradient, and its fp16 parts.
  __device__ void descend();
  __device__ void store();
};
