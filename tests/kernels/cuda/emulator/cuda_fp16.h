/* Half precision. A sum or a product is computed in float and rounded once more, which gives the
 * nearest half. */
#pragma once
#include <cstdint>
#include <cstring>

/* By the processor where it can: the function of the compiler takes a fourth of a test's time. */
static inline float half_to_float(_Float16 value) {
#ifdef __F16C__
  typedef short Words __attribute__((vector_size(16)));
  short bits;
  memcpy(&bits, &value, 2);
  return __builtin_ia32_vcvtph2ps(Words{bits})[0];
#else
  return (float)value;
#endif
}

struct __half {
  _Float16 value;
  __half() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>> __half(T number) : value((_Float16)(float)number) {}
  operator float() const { return half_to_float(value); }
};
typedef __half half;
struct alignas(4) __half2 { __half x, y; };
typedef __half2 half2;
static inline half2 make_half2(half x, half y) { return {x, y}; }
static inline half __float2half_rn(float x) { return half(x); }
static inline half __float2half(float x) { return half(x); }
static inline float __half2float(half x) { return x; }
static inline bool __hgt(half a, half b) { return (float)a > (float)b; }
static inline bool __hlt(half a, half b) { return (float)a < (float)b; }
static inline uint16_t __half_as_ushort(half x) { uint16_t bits; memcpy(&bits, &x, 2); return bits; }
static inline half __ushort_as_half(uint16_t bits) { half x; memcpy(&x, &bits, 2); return x; }
