// Applies a function of Berkeley SoftFloat to arrays. Its floats are structures of one integer, passed as that integer.

#include <cstdint>

namespace {
constexpr uint8_t NEAREST_EVEN = 0;
}

extern "C" {

// result[i] = f(a[i]) or f(a[i], b[i]), and its exception flags; `low` results are 16 bits wide.
void map_function(void* f, const uint32_t* a, const uint32_t* b, uint32_t* result, uint8_t* flags, uint64_t count,
                  uint8_t* exception_flags, uint8_t* rounding_mode, int low) {
    *rounding_mode = NEAREST_EVEN;
    for (uint64_t i = 0; i < count; ++i) {
        *exception_flags = 0;
        const uint32_t bits = b ? reinterpret_cast<uint32_t (*)(uint32_t, uint32_t)>(f)(a[i], b[i])
                                : reinterpret_cast<uint32_t (*)(uint32_t)>(f)(a[i]);
        result[i] = low ? bits & 0xffff : bits;
        flags[i] = *exception_flags;
    }
}
}
