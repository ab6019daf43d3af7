// Four elements at a time: the vector unit that every 64-bit Arm has. Its fp16 conversions are part of the base.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#define RELAY_EPS_LOOP_HINT

namespace relay_eps {
namespace {

struct Vector {
  using F = float32x4_t;
  static constexpr int kLanes = 4;

  static F set(float x) { return vdupq_n_f32(x); }
  static F load(const float* a) { return vld1q_f32(a); }
  static void store(float* a, F x) { vst1q_f32(a, x); }
  static F add(F x, F y) { return vaddq_f32(x, y); }
  static F sub(F x, F y) { return vsubq_f32(x, y); }
  static F mul(F x, F y) { return vmulq_f32(x, y); }
  static F div(F x, F y) { return vdivq_f32(x, y); }
  static F sqrt(F x) { return vsqrtq_f32(x); }

  static F load_bf16(const uint16_t* a) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(a), 16)); }
  static F load_fp16(const uint16_t* a) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(a))); }

  static void store_bf16(uint16_t* a, F x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t kept = vshrq_n_u32(bits, 16);
    const uint32x4_t bias = vaddq_u32(vandq_u32(kept, vdupq_n_u32(1)), vdupq_n_u32(0x7FFF));
    const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, bias), 16);
    const uint32x4_t quiet = vorrq_u32(kept, vdupq_n_u32(0x0040));
    vst1_u16(a, vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet)));
  }
  static void store_fp16(uint16_t* a, F x) { vst1_u16(a, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
};

}  // namespace
}  // namespace relay_eps
