// Drives the lanes through their streams, with random idle and blocked clocks. Compiled with the Verilated design.

#include <cstdint>
#include <cstring>

#include "dice.h"
#include "model.h"

extern "C" {

void* model_create(uint32_t seed) {
    auto* model = new Model(seed);
    auto& top = *model->top;
    top.i___05Fvalid = 0;
    top.o___05Fready = 0;
    top.rst = 1;
    for (int clock = 0; clock < 4; ++clock) model->tick();
    top.rst = 0;
    top.eval();
    return model;
}

uint64_t lanes_words_in() { return sizeof(Vtop::i___05Fpayload) / 4; }
uint64_t lanes_words_out() { return sizeof(Vtop::o___05Fpayload) / 4; }

// Sends `beats` payloads and receives as many; returns the clocks it took, or 0 after `limit` clocks.
// `idle` and `blocked` are thresholds: a clock is one when a random word is below.
uint64_t lanes_run(void* handle, const uint32_t* in, uint32_t* out, uint64_t beats, uint64_t seed, uint32_t idle,
                   uint32_t blocked, uint64_t limit) {
    auto& model = *static_cast<Model*>(handle);
    auto& top = *model.top;
    Dice dice{2 * seed + 1};
    constexpr size_t in_bytes = sizeof(top.i___05Fpayload);
    constexpr size_t out_bytes = sizeof(top.o___05Fpayload);
    uint64_t sent = 0, received = 0, clocks = 0;
    top.i___05Fvalid = 0;
    while (received < beats) {
        if (clocks++ == limit) return 0;
        // A beat that was offered stays until it is taken.
        if (!top.i___05Fvalid && sent < beats && !dice.below(idle)) {
            std::memcpy(&top.i___05Fpayload, in + sent * (in_bytes / 4), in_bytes);
            top.i___05Fvalid = 1;
        }
        top.o___05Fready = !dice.below(blocked);
        // Both come from registers, so they do not wait for this clock's inputs.
        const bool taken = top.i___05Fvalid && top.i___05Fready;
        if (top.o___05Fvalid && top.o___05Fready) {
            std::memcpy(out + received * (out_bytes / 4), &top.o___05Fpayload, out_bytes);
            ++received;
        }
        model.tick();
        if (taken) {
            ++sent;
            top.i___05Fvalid = 0;
        }
    }
    top.o___05Fready = 0;
    return clocks;
}
}
