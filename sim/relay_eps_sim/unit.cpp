// Drives one float unit: operands in, results out, with random stalls. Compiled with the Verilated unit; OPERANDS lists
// its operand ports as X(name) X(name).

#include <cstdint>

#include "model.h"

namespace {

uint64_t next(uint64_t& state) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

}  // namespace

extern "C" {

void* model_create(uint32_t seed) {
    auto* model = new Model(seed);
    model->top->en = 1;
    model->tick();
    return model;
}

// operands[k] is the array of the k-th operand; a result comes `latency` running clocks after its operands. A clock
// stalls when a random word is below `stalled`; the operands are then replaced by others, which must not get in.
void unit_run(void* handle, const uint32_t* const* operands, uint32_t* results, uint64_t count, uint32_t latency,
              uint64_t seed, uint32_t stalled) {
    auto& unit = *static_cast<Model*>(handle);
    auto& top = *unit.top;
    uint64_t dice = 2 * seed + 1;
    for (uint64_t clock = 0; clock < count + latency; ++clock) {
        while (stalled && uint32_t(next(dice)) < stalled) {
            top.en = 0;
#define X(name) top.name = uint32_t(next(dice)) & name##_MASK;
            OPERANDS
#undef X
            unit.tick();
        }
        top.en = 1;
        if (clock < count) {
            size_t at = 0;
#define X(name) top.name = operands[at++][clock];
            OPERANDS
#undef X
        }
        unit.tick();
        if (clock + 1 >= latency && clock + 1 - latency < count) results[clock + 1 - latency] = top.o;
    }
}
}
