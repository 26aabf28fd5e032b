// Products in near fp32 on tensor cores. A number is the sum of two fp16 numbers. Of the four
// products of two such numbers, the smallest is omitted. Power-of-two scales keep both parts in the
// range of fp16, and are exact.
//
//   x·s = hi + lo,   Σ x y ≈ (Σ hi hi' + Σ hi lo' + Σ lo hi') / (s s')

/// Splits two numbers. `h` and `l` contain a pair of fp16 each, the first number in the low half.
__device__ __forceinline__ void split(float x, float y, u32& h, u32& l) {
  asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(h) : "f"(y), "f"(x));
  float a, b;
  asm("{.reg .f16 p,q;\nmov.b32 {p,q},%2;\ncvt.f32.f16 %0,p;\ncvt.f32.f16 %1,q;}" : "=f"(a), "=f"(b) : "r"(h));
  asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(l) : "f"(y - b), "f"(x - a));
}

/// Returns the sum of the parts.
__device__ __forceinline__ float2 join(u32 h, u32 l) {
  float a, b, c, d;
  asm("{.reg .f16 p,q;\nmov.b32 {p,q},%2;\ncvt.f32.f16 %0,p;\ncvt.f32.f16 %1,q;}" : "=f"(a), "=f"(b) : "r"(h));
  asm("{.reg .f16 p,q;\nmov.b32 {p,q},%2;\ncvt.f32.f16 %0,p;\ncvt.f32.f16 %1,q;}" : "=f"(c), "=f"(d) : "r"(l));
  return make_float2(a + c, b + d);
}

/// Computes c += a b for a 16×16 tile a and a 16×8 tile b, in the fragments of mma.sync.
__device__ __forceinline__ void multiply_add(float* c, const u32* a, const u32* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Computes c = a b, without registers for zeros.
__device__ __forceinline__ void multiply(float* c, const u32* a, const u32* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.f));
}

/// Loads four 8×8 tiles from shared memory. Each lane provides the address of a row.
__device__ __forceinline__ void load_tiles(u32* r, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

/// Loads four tiles, each transposed.
__device__ __forceinline__ void load_transposed(u32* r, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
