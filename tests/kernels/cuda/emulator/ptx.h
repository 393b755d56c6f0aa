/* The instructions of PTX that kernels name themselves, as TVM calls them. Source: "Parallel Thread
 * Execution ISA", 9.0, with its figures of the fragments of a matrix. */
#pragma once

namespace emulator {
static inline float half_of(uint32_t word, int number) { return __ushort_as_half(word >> 16 * number); }

/* Every thread of a warp gives its words; then each may read those of all. */
static inline void show(std::initializer_list<uint32_t> words) {
  std::copy(words.begin(), words.end(), warp().words[lane()]);
  wait(AT_WARP);
}
}  // namespace emulator

static inline void tvm_builtin_ptx_fma_half_rn_f16x2(uint32_t &d, uint32_t a, uint32_t b, uint32_t c) {
  d = 0;
  for (int i = 0; i < 2; i++) {
    double product = (double)emulator::half_of(a, i) * emulator::half_of(b, i);
    half sum = half((float)(product + emulator::half_of(c, i)));
    d |= (uint32_t)__half_as_ushort(sum) << 16 * i;
  }
}

static inline void tvm_builtin_ptx_fma_rn_f32(float &d, float a, float b, float c) { d = fmaf(a, b, c); }

/* d = a b + c. a is 16 rows of 16, b 16 rows of 8. With g = lane / 4 and t = lane % 4 a thread has of a
 * the pairs (row, column) (g, 2 t), (g + 8, 2 t), (g, 2 t + 8), (g + 8, 2 t + 8); of b the pairs
 * (2 t, g), (2 t + 8, g), one below the other; of c and d (g, 2 t), (g, 2 t + 1), and g + 8. */
static inline void tvm_builtin_ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(
    float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
    uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3) {
  using namespace emulator;
  show({a0, a1, a2, a3, b0, b1});
  float *d[] = {&d0, &d1, &d2, &d3}, c[] = {c0, c1, c2, c3};
  for (int i = 0; i < 4; i++) {
    int g = lane() / 4, column = lane() % 4 * 2 + i % 2, lower = i / 2;
    double sum = c[i];
    for (int k = 0; k < 16; k++) {
      int t = k % 8 / 2, right = k / 8;
      float a = half_of(warp().words[g * 4 + t][lower + 2 * right], k % 2);
      float b = half_of(warp().words[column * 4 + t][4 + right], k % 2);
      sum += (double)a * b;
    }
    *d[i] = (float)sum;
  }
  wait(AT_WARP);
}
