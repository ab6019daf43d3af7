// Eight elements at a time: AVX2 and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define RELAY_EPS_LOOP_HINT

namespace relay_eps {
namespace {

struct Vector {
  using F = __m256;
  static constexpr int kLanes = 8;

  static F set(float x) { return _mm256_set1_ps(x); }
  static F load(const float* a) { return _mm256_loadu_ps(a); }
  static void store(float* a, F x) { _mm256_storeu_ps(a, x); }
  static F add(F x, F y) { return _mm256_add_ps(x, y); }
  static F sub(F x, F y) { return _mm256_sub_ps(x, y); }
  static F mul(F x, F y) { return _mm256_mul_ps(x, y); }
  static F div(F x, F y) { return _mm256_div_ps(x, y); }
  static F sqrt(F x) { return _mm256_sqrt_ps(x); }

  static F load_bf16(const uint16_t* a) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(a)), 16));
  }
  static F load_fp16(const uint16_t* a) { return _mm256_cvtph_ps(load_half(a)); }

  static void store_bf16(uint16_t* a, F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i kept = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(kept, _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i quiet = _mm256_or_si256(kept, _mm256_set1_epi32(0x0040));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i wide = _mm256_blendv_epi8(rounded, quiet, nan);
    const __m128i low = _mm256_castsi256_si128(wide);
    const __m128i high = _mm256_extracti128_si256(wide, 1);
    store_half(a, _mm_packus_epi32(low, high));
  }
  static void store_fp16(uint16_t* a, F x) { store_half(a, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }

 private:
  static __m128i load_half(const uint16_t* a) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(a)); }
  static void store_half(uint16_t* a, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(a), x); }
};

}  // namespace
}  // namespace relay_eps
