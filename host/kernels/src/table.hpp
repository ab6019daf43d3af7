// What every instruction set's translation unit provides: one table of range functions on flat arrays.
//
// This header is included by units compiled with different instruction-set flags, so it holds plain data only:
// an inline function here could be emitted with AVX-512 inside and then run on a CPU without it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace relay_eps {

// Number formats of gradients and wire copies; the order is the index into the tables below.
enum Format : int { kFp32 = 0, kBf16 = 1, kFp16 = 2, kFormats = 3 };

// Wire formats of an apply: kFp32 stands for "no wire copy", since fp32 weights are their own.
inline constexpr int kNoWire = kFp32;

struct FoldScalars {
  float b1, c1, b2, c2, scale;
};

struct ApplyScalars {
  float r2, eps, k, s;
};

// Pointers to the first element of each section; a range function touches elements [begin, end) alone.
struct FoldArrays {
  float* m;
  float* v;
  const void* g;
};

struct ApplyArrays {
  float* p;
  const float* m;
  const float* v;
  void* wire;
};

struct FoldApplyArrays {
  float* p;
  float* m;
  float* v;
  const void* g;
  void* wire;
};

using FoldFn = void (*)(const FoldArrays&, const FoldScalars&, int64_t begin, int64_t end);
using ApplyFn = void (*)(const ApplyArrays&, const ApplyScalars&, int64_t begin, int64_t end);
using FoldApplyFn = void (*)(const FoldApplyArrays&, const FoldScalars&, const ApplyScalars&, int64_t begin,
                             int64_t end);
using AccumulateFn = void (*)(float* total, const void* g, int64_t begin, int64_t end);
using ConvertFn = void (*)(const void* source, void* out, int64_t begin, int64_t end);
using TestFn = bool (*)(const void* values, int64_t begin, int64_t end);

struct KernelTable {
  const char* name;
  FoldFn fold[kFormats][2];                        // [gradient][first]
  ApplyFn apply[kFormats];                         // [wire]
  FoldApplyFn fold_apply[kFormats][kFormats][2];   // [gradient][wire][first]
  AccumulateFn accumulate[kFormats];               // [gradient]; the first gradient is a convert
  ConvertFn convert[kFormats][kFormats];           // [source][out]; null between the two 16-bit formats
  TestFn not_finite[kFormats];                     // whether any element is NaN or infinite
};

// One for each instruction set that this build holds; which of them the CPU can run is dispatch.cpp's business.
extern const KernelTable kPlainTable;
#if defined(RELAY_EPS_X86)
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;
#elif defined(RELAY_EPS_NEON)
extern const KernelTable kNeonTable;
#endif

}  // namespace relay_eps
