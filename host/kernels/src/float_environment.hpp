// The floating-point state that the arithmetic needs: nearest even, subnormals kept, no traps.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace relay_eps {

// Sets the calling thread's state while it lives, and puts the old one back. A new thread inherits the state of the
// thread that made it, so workers need this as much as callers do.
class FloatEnvironment {
 public:
#if defined(__x86_64__)
  FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }  // the reset value: all of the above
  ~FloatEnvironment() { _mm_setcsr(saved_); }

 private:
  unsigned int saved_;

 public:
#elif defined(__aarch64__)
  FloatEnvironment() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_)::"memory");
    __asm__ volatile("msr fpcr, %0" ::"r"(uint64_t{0}) : "memory");
  }
  ~FloatEnvironment() { __asm__ volatile("msr fpcr, %0" ::"r"(saved_) : "memory"); }

 private:
  uint64_t saved_ = 0;

 public:
#else
  FloatEnvironment() {}
  ~FloatEnvironment() {}
#endif
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;
};

}  // namespace relay_eps
