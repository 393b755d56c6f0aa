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

/* Copies into shared memory happen as late as they may: when their thread waits for them. */
static inline void begin_copy(uint32_t target, const void *source, unsigned all, uint32_t size) {
  auto &groups = emulator::copies[emulator::number()];
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back({emulator::shared + (int32_t)target, (const char *)source, all, size});
}
static inline void tvm_builtin_ptx_cp_async_cg_src_size_async_cg_shared_global_16(
    uint32_t target, const void *source, uint32_t size) {
  begin_copy(target, source, 16, size);
}
static inline void tvm_builtin_ptx_cp_async_ca_src_size_async_ca_shared_global_8(
    uint32_t target, const void *source, uint32_t size) {
  begin_copy(target, source, 8, size);
}

static inline void tvm_builtin_ptx_cp_async_commit_group_async_commit_group() {
  auto &groups = emulator::copies[emulator::number()];
  if (groups.empty()) groups.emplace_back();
  groups.emplace_back();
}

/* The last group is still open. */
static inline void wait_for_copies(size_t left) {
  auto &groups = emulator::copies[emulator::number()];
  for (; groups.size() > left + 1; groups.erase(groups.begin()))
    for (auto &one : groups.front()) {
      memset(one.target, 0, one.all);
      memcpy(one.target, one.source, one.size);
    }
}
static inline void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0() { wait_for_copies(0); }
static inline void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1() { wait_for_copies(1); }
static inline void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_2() { wait_for_copies(2); }

/* Lane i says where row i % 8 of matrix i / 8 begins; each thread gets a pair of each matrix. */
template <bool TURNED> void load_matrices(uint32_t *words[4], uint32_t place) {
  using namespace emulator;
  show({place});
  for (int i = 0; i < 4; i++) {
    uint16_t pair[2];
    for (int j = 0; j < 2; j++) {
      int row = TURNED ? lane() % 4 * 2 + j : lane() / 4, column = TURNED ? lane() / 4 : lane() % 4 * 2 + j;
      const char *start = shared + (int32_t)warp().words[i * 8 + row][0];
      memcpy(&pair[j], start + 2 * column, 2);
    }
    *words[i] = pair[0] | (uint32_t)pair[1] << 16;
  }
  wait(AT_WARP);
}
#define LOAD_MATRICES(name, turned)                                                                       \
  static inline void name(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, uint32_t place) {           \
    uint32_t *words[] = {&a, &b, &c, &d};                                                                 \
    load_matrices<turned>(words, place);                                                                  \
  }
LOAD_MATRICES(tvm_builtin_ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16, false)
LOAD_MATRICES(tvm_builtin_ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16, true)

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

/* d = a b + d (or a b) for 64 rows of a, of which each of four warps gives 16 as above, and 64 columns
 * of b. b lies in shared memory as "Shared Memory Matrix Layout" says, without a swizzle: 8 columns and 8
 * numbers of each are 128 bytes; the descriptor has the distance of the next 8 numbers, and that of
 * the next 8 columns. It is computed at once, so nothing is seen of what a kernel does meanwhile. */
template <size_t... I, class Given> static void wgmma(std::index_sequence<I...>, Given given) {
  using namespace emulator;
  constexpr int N = 64;
  float *d[] = {&std::get<I>(given)...};
  uint32_t a[] = {std::get<32>(given), std::get<33>(given), std::get<34>(given), std::get<35>(given)};
  uint64_t descriptor = std::get<36>(given);
  bool adds = std::get<37>(given);
  const char *b = shared + (descriptor & 0x3fff) * 16;
  size_t of_numbers = (descriptor >> 16 & 0x3fff) * 16, of_columns = (descriptor >> 32 & 0x3fff) * 16;
  show({a[0], a[1], a[2], a[3]});
  for (int i = 0; i < N / 2; i++) {
    int g = lane() / 4, lower = i % 4 / 2, column = i / 4 * 8 + lane() % 4 * 2 + i % 2;
    double sum = adds ? *d[i] : 0;
    for (int k = 0; k < 16; k++) {
      uint16_t bits;
      memcpy(&bits, b + column / 8 * of_columns + k / 8 * of_numbers + column % 8 * 16 + k % 8 * 2, 2);
      float left = half_of(warp().words[g * 4 + k % 8 / 2][lower + k / 8 * 2], k % 2);
      sum += (double)left * (float)__ushort_as_half(bits);
    }
    *d[i] = (float)sum;
  }
  wait(AT_WARP);
}
template <class... Given>
static void tvm_builtin_ptx_wgmma_f16_rs_mma_async_sync_aligned_m64n64k16_f32_f16_f16_1_1_0(Given &&...given) {
  wgmma(std::make_index_sequence<32>(), std::forward_as_tuple(given...));
}
static inline void tvm_builtin_ptx_wgmma_fence_fence_sync_aligned() {}
static inline void tvm_builtin_ptx_wgmma_commit_group_commit_group_sync_aligned() {}
static inline void tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_0() {}
static inline void tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta() {}
