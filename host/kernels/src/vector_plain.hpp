// One element at a time, in standard C++: the path for CPUs that none of the others serves.
#pragma once

#include "half.hpp"

// The sections of a call do not overlap (module.cpp checks), so the compiler may vectorise with what the base has.
#if defined(__clang__)
#define RELAY_EPS_LOOP_HINT _Pragma("clang loop vectorize(assume_safety)")
#else
#define RELAY_EPS_LOOP_HINT _Pragma("GCC ivdep")
#endif

namespace relay_eps {
namespace {

struct Vector {
  using F = float;
  static constexpr int kLanes = 1;

  static F set(float x) { return x; }
  static F load(const float* a) { return *a; }
  static F load_bf16(const uint16_t* a) { return widen_bf16(*a); }
  static F load_fp16(const uint16_t* a) { return widen_fp16(*a); }
  static void store(float* a, F x) { *a = x; }
  static void store_bf16(uint16_t* a, F x) { *a = narrow_bf16(x); }
  static void store_fp16(uint16_t* a, F x) { *a = narrow_fp16(x); }
  static F add(F x, F y) { return x + y; }
  static F sub(F x, F y) { return x - y; }
  static F mul(F x, F y) { return x * y; }
  static F div(F x, F y) { return x / y; }
  static F sqrt(F x) { return __builtin_sqrtf(x); }
};

}  // namespace
}  // namespace relay_eps
