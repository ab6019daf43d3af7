// bf16 and fp16 as bit patterns, converted in integer arithmetic: exact widening, narrowing to nearest even.
//
// Everything is `static`, so each translation unit has a copy compiled with its own flags.
#pragma once

#include <cstdint>
#include <cstring>

namespace relay_eps {

static inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

static inline float widen_bf16(uint16_t h) { return float_of(static_cast<uint32_t>(h) << 16); }

static inline uint16_t narrow_bf16(float x) {
  const uint32_t bits = bits_of(x);
  // 0x7FFF plus the lowest kept bit carries into the kept half exactly when nearest even rounds up.
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x0040u;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

static inline float widen_fp16(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7FFFu;
  // Exponent bias 15 becomes 127; infinity and NaN keep their mantissa under the largest exponent.
  const uint32_t rebias = magnitude >= 0x7C00u ? 0x70000000u : 0x38000000u;
  const uint32_t normal = (magnitude << 13) + rebias;
  // A subnormal is its integer mantissa times 2^-24: both steps are exact.
  const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  return float_of(sign | (magnitude < 0x0400u ? subnormal : normal));
}

static inline uint16_t narrow_fp16(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  // Normal results: rebias, then round the 13 dropped bits to nearest even; the carry may reach infinity, rightly.
  const uint32_t normal = (magnitude - 0x38000000u + 0x0FFFu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal results: adding 0.5 leaves a unit in the last place of 2^-24, so the adder itself rounds to nearest even.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  // 65520 and above round to infinity; below it the carry has done so already.
  result = magnitude >= 0x477FF000u ? 0x7C00u : result;
  result = magnitude > 0x7F800000u ? 0x7E00u : result;
  return static_cast<uint16_t>(sign | result);
}

}  // namespace relay_eps
