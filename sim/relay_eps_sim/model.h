// A Verilated design with a clock, as every driver here has it. Compiled with the design, whose module is Vtop; CLOCK is
// the name of its clock where that is not clk.

#pragma once

#include <cstdint>
#include <memory>

#include "Vtop.h"
#include "verilated.h"

#ifndef CLOCK
#define CLOCK clk
#endif

struct Model {
    VerilatedContext context;
    std::unique_ptr<Vtop> top;

    // Registers that start undefined get random values of this seed; zeros if it is 0.
    explicit Model(uint32_t seed) {
        context.randReset(seed ? 2 : 0);
        context.randSeed(int(seed & 0x7fffffff));
        top = std::make_unique<Vtop>(&context);
        top->CLOCK = 0;
    }
    virtual ~Model() = default;

    void tick() {
        top->CLOCK = 1;
        top->eval();
        top->CLOCK = 0;
        top->eval();
    }
};

extern "C" {
void model_destroy(void* model) { delete static_cast<Model*>(model); }

#ifdef FAULTS
void model_select_fault(void* model, uint32_t number) { static_cast<Model*>(model)->top->fault = number; }
#endif
}
