// Drives a core: its clock, its registers, and the memory behind its ports. Compiled with the Verilated design.

#include <cstdint>
#include <memory>
#include <vector>

#include "axi_port.h"
#include "model.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif

namespace {

// Clocks that the registers have to answer.
constexpr int patience = 10'000;

axi::Signals signals_of(Vtop& top, unsigned number) {
#define ADDRESS(k, x)                                                                                               \
    {                                                                                                               \
        &top.m_axi_port_##k##_##x##addr, &top.m_axi_port_##k##_##x##len, &top.m_axi_port_##k##_##x##size,           \
            &top.m_axi_port_##k##_##x##burst, &top.m_axi_port_##k##_##x##lock, &top.m_axi_port_##k##_##x##cache,    \
            &top.m_axi_port_##k##_##x##prot, &top.m_axi_port_##k##_##x##valid, &top.m_axi_port_##k##_##x##ready     \
    }
#define PORT(k)                                                                                                     \
    if (number == k)                                                                                                \
    return {ADDRESS(k, aw),              ADDRESS(k, ar),               &top.m_axi_port_##k##_wdata,                  \
            &top.m_axi_port_##k##_wstrb, &top.m_axi_port_##k##_wlast,  &top.m_axi_port_##k##_wvalid,                 \
            &top.m_axi_port_##k##_wready, &top.m_axi_port_##k##_bresp, &top.m_axi_port_##k##_bvalid,                 \
            &top.m_axi_port_##k##_bready, &top.m_axi_port_##k##_rdata, &top.m_axi_port_##k##_rresp,                  \
            &top.m_axi_port_##k##_rlast, &top.m_axi_port_##k##_rvalid, &top.m_axi_port_##k##_rready}
    PORT(0);
#if PORTS > 1
    PORT(1);
#endif
#if PORTS > 2
    PORT(2);
    PORT(3);
#endif
#if PORTS > 4
    PORT(4);
#endif
#undef PORT
#undef ADDRESS
    return {};
}

struct Core : Model {
    axi::Memory memory;
    axi::Record record;
    std::vector<axi::Port> ports;
    uint64_t now = 0;
#if VM_TRACE
    std::unique_ptr<VerilatedVcdC> waves;
#endif

    explicit Core(uint32_t seed) : Model(seed) {
        ports.reserve(PORTS);
        for (unsigned number = 0; number < PORTS; ++number)
            ports.emplace_back(number, signals_of(*top, number), memory, record);
        top->s_axi_control_awvalid = top->s_axi_control_wvalid = top->s_axi_control_arvalid = 0;
        top->s_axi_control_bready = top->s_axi_control_rready = 1;
#if VM_TRACE
        context.traceEverOn(true);
#endif
    }

    ~Core() override {
#if VM_TRACE
        if (waves) waves->close();
#endif
    }

    // Up to the rising edge: the signals of this clock are there. The falling edge needs no evaluation of its own.
    void settle() {
        for (auto& port : ports) port.drive(now);
        for (auto& port : ports) port.respond(now);
        low();
        for (auto& port : ports) port.observe(now);
    }

    void low() {
        top->ap_clk = 0;
        top->eval();
        dump(2 * now);
    }

    void rise() {
        top->ap_clk = 1;
        top->eval();
        dump(2 * now + 1);
        ++now;
    }

    // Verilator has this name for an output called interrupt.
    bool interrupt() const { return top->__SYM__interrupt; }

    void clock() {
        settle();
        rise();
    }

    void reset(int clocks) {
        top->ap_rst_n = 0;
        for (auto& port : ports) port.reset();
        for (int clock = 0; clock < clocks; ++clock) {
            low();
            rise();
        }
        top->ap_rst_n = 1;
    }

    void dump([[maybe_unused]] uint64_t time) {
#if VM_TRACE
        if (waves) waves->dump(time);
#endif
    }

    // The response, or -1 without one.
    int write(uint32_t offset, uint32_t value, uint32_t strobes) {
        top->s_axi_control_awaddr = offset;
        top->s_axi_control_wdata = value;
        top->s_axi_control_wstrb = strobes;
        top->s_axi_control_awvalid = top->s_axi_control_wvalid = 1;
        int response = -1;
        for (int clock = 0; clock < patience && response < 0; ++clock) {
            settle();
            const bool addressed = top->s_axi_control_awready, written = top->s_axi_control_wready;
            if (top->s_axi_control_bvalid) response = top->s_axi_control_bresp;
            rise();
            if (addressed) top->s_axi_control_awvalid = 0;
            if (written) top->s_axi_control_wvalid = 0;
        }
        top->s_axi_control_awvalid = top->s_axi_control_wvalid = 0;
        return response;
    }

    int read(uint32_t offset, uint32_t* value) {
        top->s_axi_control_araddr = offset;
        top->s_axi_control_arvalid = 1;
        int response = -1;
        for (int clock = 0; clock < patience && response < 0; ++clock) {
            settle();
            const bool addressed = top->s_axi_control_arready;
            if (top->s_axi_control_rvalid) {
                response = top->s_axi_control_rresp;
                *value = top->s_axi_control_rdata;
            }
            rise();
            if (addressed) top->s_axi_control_arvalid = 0;
        }
        top->s_axi_control_arvalid = 0;
        return response;
    }

    axi::Direction& direction(uint32_t port, uint32_t is_write) {
        return is_write ? ports[port].write : ports[port].read;
    }
};

Core& core_of(void* handle) { return *static_cast<Core*>(static_cast<Model*>(handle)); }

}  // namespace

extern "C" {

// Before its first clock: `core_waves` comes between it and `core_reset`.
void* model_create(uint32_t seed) { return static_cast<Model*>(new Core(seed)); }

int core_waves([[maybe_unused]] void* handle, [[maybe_unused]] const char* path) {
#if VM_TRACE
    auto& core = core_of(handle);
    core.waves = std::make_unique<VerilatedVcdC>();
    core.top->trace(core.waves.get(), 99);
    core.waves->open(path);
    return core.waves->isOpen();
#else
    return 0;
#endif
}

void core_reset(void* handle, int clocks) { core_of(handle).reset(clocks); }

// Runs so many clocks, or until the interrupt; returns how many it ran.
uint64_t core_run(void* handle, uint64_t clocks, int until_interrupt) {
    auto& core = core_of(handle);
    for (uint64_t clock = 0; clock < clocks; ++clock) {
        if (until_interrupt && core.interrupt()) return clock;
        core.clock();
    }
    return clocks;
}

uint64_t core_now(void* handle) { return core_of(handle).now; }
int core_interrupt(void* handle) { return core_of(handle).interrupt(); }

int core_write(void* handle, uint32_t offset, uint32_t value, uint32_t strobes) {
    return core_of(handle).write(offset, value, strobes);
}
int core_read(void* handle, uint32_t offset, uint32_t* value) { return core_of(handle).read(offset, value); }

void core_attach(void* handle, uint64_t base, uint64_t size, uint8_t* data) {
    core_of(handle).memory.attach({base, size, data});
}

// 0 if bursts are under way: they keep where their bytes lie.
int core_detach(void* handle) {
    auto& core = core_of(handle);
    for (auto& port : core.ports)
        if (!port.read.bursts.empty() || !port.write.bursts.empty()) return 0;
    core.memory.detach();
    return 1;
}

void core_configure(void* handle, uint32_t port, const axi::Behaviour* behaviour, uint32_t seed) {
    core_of(handle).ports[port].configure(*behaviour, seed);
}

void core_fail(void* handle, uint32_t port, uint32_t is_write, uint64_t address) {
    core_of(handle).direction(port, is_write).failing.push_back(address);
}

void core_mute(void* handle, uint32_t port, uint32_t is_write, uint64_t after, uint32_t addresses) {
    auto& direction = core_of(handle).direction(port, is_write);
    (addresses ? direction.refuse_from : direction.mute_from) = direction.accepted + after;
}

void core_heal(void* handle) {
    for (auto& port : core_of(handle).ports) {
        for (auto* direction : {&port.read, &port.write}) {
            direction->failing.clear();
            direction->mute_from = direction->refuse_from = axi::never;
        }
    }
}

const axi::Entry* core_log(void* handle, uint64_t* count) {
    const auto& log = core_of(handle).record.log;
    *count = log.size();
    return log.data();
}
void core_clear_log(void* handle) { core_of(handle).record.clear(); }

const axi::Stray* core_strays(void* handle, uint64_t* count) {
    const auto& strays = core_of(handle).record.strays;
    *count = strays.size();
    return strays.data();
}

uint64_t core_violated(void* handle) { return core_of(handle).record.violated; }

// Null after the last one that was kept.
const char* core_violation(void* handle, uint64_t number) {
    const auto& kept = core_of(handle).record.violations;
    return number < kept.size() ? kept[number].c_str() : nullptr;
}
}
