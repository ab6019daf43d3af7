// Random numbers for stalls, idle clocks and jitter.

#pragma once

#include <cstdint>

// xorshift64*: a run can be had again from its seed.
struct Dice {
    uint64_t state = 1;
    uint32_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return uint32_t((state * 0x2545F4914F6CDD1DULL) >> 32);
    }
    bool below(uint32_t threshold) { return threshold && next() < threshold; }
};
