/* Runs the CUDA source of kernels on the CPU, so that tests see their numbers without a GPU. It is
 * found in the place of CUDA's own headers.
 *
 * A thread of a block is a context of its own; a warp runs until it waits for the others. So threads
 * that wait for each other forever are found, and the two orders in which warps can run give
 * different numbers where a barrier is missing. Blocks run one after another. How fast something
 * is, and what the caches of a GPU do, is not seen here. */
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(bytes) alignas(bytes)

struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;
using std::max;
using std::min;

#define VECTOR(name, T)                                                              \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                 \
  struct alignas(4 * sizeof(T)) name##4 { T x, y, z, w; };                           \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                  \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTOR(float, float)
VECTOR(int, int32_t)
VECTOR(uint, uint32_t)

namespace emulator {
/* As much as every GPU has for a block. Nobody may read what nobody wrote: it holds no numbers. */
constexpr size_t SHARED = 101376;
alignas(1024) static char shared[SHARED];
constexpr int WARP = 32, MOST_THREADS = 1024, STACK = 1 << 16;
enum State { NEW, READY, AT_WARP, AT_BLOCK, DONE };
struct Thread { State state; Index index; bool lives; ucontext_t start; jmp_buf at; };
struct Warp { uint32_t words[WARP][8]; };

static Thread threads[MOST_THREADS];
static Warp warps[MOST_THREADS / WARP];
static char stacks[MOST_THREADS][STACK];
static Thread *current;
/* Copies that a thread has begun; those of a group, and then the next group. */
struct Copy { char *target; const char *source; unsigned all, size; };
static std::vector<std::vector<Copy>> copies[MOST_THREADS];
static jmp_buf scheduler;
static const std::function<void()> *kernel;

static inline int number() { return current - threads; }
static inline int lane() { return number() % WARP; }
static inline Warp &warp() { return warps[number() / WARP]; }

__attribute__((noinline)) static void wait(State state) {
  current->state = state;
  if (!_setjmp(current->at)) _longjmp(scheduler, 1);
}

/* A context is made once for a thread of that number: it takes two calls of the system. */
static void begin() {
  for (;;) {
    (*kernel)();
    wait(DONE);
  }
}

/* Runs a thread until it waits, or ends. */
__attribute__((noinline)) static void resume(Thread *thread) {
  current = thread, threadIdx = thread->index;
  if (_setjmp(scheduler)) return;
  if (thread->lives) _longjmp(thread->at, 1);
  thread->lives = true;
  getcontext(&thread->start);
  thread->start.uc_stack = {stacks[number()], 0, STACK};
  makecontext(&thread->start, begin, 0);
  setcontext(&thread->start);
}

/* Lets threads go on, all of which wait at the same barrier. Those of a block that have ended count
 * as waiting; a warp has to be whole. */
static bool release(Thread *from, int count, State barrier) {
  int waiting = 0, done = 0;
  for (int i = 0; i < count; i++) waiting += from[i].state == barrier, done += from[i].state == DONE;
  if (!waiting || waiting + (barrier == AT_BLOCK ? done : 0) < count) return false;
  for (int i = 0; i < count; i++)
    if (from[i].state == barrier) from[i].state = READY;
  return true;
}

/* Runs a warp as far as it gets without the others. Whether it got anywhere. */
static bool run_warp(Thread *from, bool backwards) {
  bool moved = false;
  do {
    for (int i = 0; i < WARP; i++) {
      Thread *thread = &from[backwards ? WARP - 1 - i : i];
      if (thread->state <= READY) resume(thread), moved = true;
    }
  } while (release(from, WARP, AT_WARP));
  return moved;
}

static bool run_block(int count) {
  bool backwards = getenv("EMULATED_BACKWARDS") != nullptr;
  memset(shared, 0xff, SHARED);
  for (int i = 0; i < count; i++) {
    unsigned x = i % blockDim.x, y = i / blockDim.x % blockDim.y, z = i / blockDim.x / blockDim.y;
    threads[i].state = NEW, threads[i].index = {x, y, z};
    copies[i].clear();
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (int i = 0; i < count; i += WARP)
      moved |= run_warp(threads + (backwards ? count - WARP - i : i), backwards);
    release(threads, count, AT_BLOCK);
  }
  return std::all_of(threads, threads + count, [](const Thread &one) { return one.state == DONE; });
}

/* What a launch returns: 0, or the code of a launch that failed. */
static int run(const unsigned *grid, const unsigned *block, const std::function<void()> &function) {
  int count = block[0] * block[1] * block[2];
  if (count % WARP || count > MOST_THREADS) return fprintf(stderr, "a block of %d threads\n", count), 9;
  kernel = &function, gridDim = {grid[0], grid[1], grid[2]}, blockDim = {block[0], block[1], block[2]};
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) {
        blockIdx = {x, y, z};
        if (run_block(count)) continue;
        for (Thread &one : threads) one.lives = false;
        fprintf(stderr, "threads of block %u, %u, %u wait for each other\n", x, y, z);
        return 719;
      }
  return 0;
}

template <class T> T exchange(T value, int source) {
  static_assert(sizeof(T) <= 8);
  memcpy(warp().words[lane()], &value, sizeof value);
  wait(AT_WARP);
  memcpy(&value, warp().words[source], sizeof value);
  wait(AT_WARP);
  return value;
}
}  // namespace emulator

static inline unsigned __cvta_generic_to_shared(const void *place) {
  return (const char *)place - (const char *)&emulator::shared;
}
static inline void __syncthreads() { emulator::wait(emulator::AT_BLOCK); }
static inline void __syncwarp(unsigned = ~0u) { emulator::wait(emulator::AT_WARP); }
template <class T> T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  return emulator::exchange(value, emulator::lane() ^ mask);
}
template <class T> T __shfl_sync(unsigned, T value, int source, int width = 32) {
  return emulator::exchange(value, emulator::lane() / width * width + source % width);
}

#include "cuda_fp16.h"
#include "ptx.h"

/* NVIDIA's compilers take it behind `static`. */
#define alignas(bytes) __attribute__((aligned(bytes)))
