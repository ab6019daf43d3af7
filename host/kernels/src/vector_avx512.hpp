// Sixteen elements at a time: AVX-512 F, BW, DQ and VL.
//
// The BF16 extension is left alone on purpose: its narrowing instruction flushes subnormals.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define RELAY_EPS_LOOP_HINT

namespace relay_eps {
namespace {

struct Vector {
  using F = __m512;
  static constexpr int kLanes = 16;

  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* a) { return _mm512_loadu_ps(a); }
  static void store(float* a, F x) { _mm512_storeu_ps(a, x); }
  static F add(F x, F y) { return _mm512_add_ps(x, y); }
  static F sub(F x, F y) { return _mm512_sub_ps(x, y); }
  static F mul(F x, F y) { return _mm512_mul_ps(x, y); }
  static F div(F x, F y) { return _mm512_div_ps(x, y); }
  static F sqrt(F x) { return _mm512_sqrt_ps(x); }

  static F load_bf16(const uint16_t* a) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(a)), 16));
  }
  static F load_fp16(const uint16_t* a) { return _mm512_cvtph_ps(load_half(a)); }

  static void store_bf16(uint16_t* a, F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i kept = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(kept, _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i wide = _mm512_mask_or_epi32(rounded, nan, kept, _mm512_set1_epi32(0x0040));
    store_half(a, _mm512_cvtepi32_epi16(wide));
  }
  static void store_fp16(uint16_t* a, F x) { store_half(a, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }

 private:
  static __m256i load_half(const uint16_t* a) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)); }
  static void store_half(uint16_t* a, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(a), x); }
};

}  // namespace
}  // namespace relay_eps
