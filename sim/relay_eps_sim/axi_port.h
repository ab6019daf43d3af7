// One AXI port as a memory has it, and the rules of AXI that are checked in every clock. BEAT_BYTES, BURST_BEATS and
// ADDRESS_BITS come from the core's configuration.

#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "axi_memory.h"
#include "dice.h"

namespace axi {

constexpr uint64_t boundary = 4096;
constexpr uint64_t beat_bytes = BEAT_BYTES;
constexpr uint64_t every_byte = ~0ULL >> (64 - beat_bytes);
enum Response : uint8_t { okay = 0, slverr = 2, decerr = 3 };
// What a read gets that is answered with an error.
constexpr int poison = 0xa5;

struct Behaviour {
    uint32_t latency, jitter, stall, shared, outstanding;
};

// Where the signals of an address channel lie in the Verilated design; the outputs of the memory are not const.
struct AddressSignals {
    const uint64_t* addr;
    const uint8_t *len, *size, *burst, *lock, *cache, *prot, *valid;
    uint8_t* ready;
};

struct Signals {
    AddressSignals aw, ar;
    const void *wdata, *wstrb;
    const uint8_t *wlast, *wvalid;
    uint8_t* wready;
    uint8_t *bresp, *bvalid;
    const uint8_t* bready;
    void* rdata;
    uint8_t *rresp, *rlast, *rvalid;
    const uint8_t* rready;
};

struct Burst {
    uint64_t address, due, entry;
    // Where its bytes lie; null where not in one region.
    uint8_t* data;
    uint32_t beats, done;
    uint8_t response;
};

struct Beat {
    uint8_t data[beat_bytes];
    uint64_t strobes;
};

// What is asked of one direction of a port, and how it misbehaves.
struct Direction {
    const char* name;
    AddressSignals signals;
    Queue<Burst> bursts;
    std::vector<uint64_t> failing;
    // Counted in accepted addresses.
    uint64_t accepted = 0, mute_from = never, refuse_from = never;
    // When the last burst is due: responses keep their order.
    uint64_t due = 0;
    // An address that was offered and not taken must not change.
    bool held = false;
    uint64_t held_address = 0, held_rest = 0;

    bool muted() const { return accepted - bursts.size() >= mute_from; }
    uint64_t rest() const {
        uint64_t packed = 0;
        for (const auto* signal :
             {signals.len, signals.size, signals.burst, signals.lock, signals.cache, signals.prot})
            packed = packed << 8 | *signal;
        return packed;
    }
};

// The subordinate of one port. In each clock: `drive` and `respond` set its signals, the design settles, `observe` sees
// what was taken. All ports are driven before any responds, so a read never sees a write whose response begins with it.
class Port {
   public:
    Port(unsigned number, const Signals& signals, Memory& memory, Record& record)
        : number_(number), bus_(signals), memory_(memory), record_(record) {
        read.name = "read";
        read.signals = signals.ar;
        write.name = "write";
        write.signals = signals.aw;
    }

    Direction read, write;

    void configure(const Behaviour& behaviour, uint64_t seed) {
        is_ = behaviour;
        dice_.state = 2 * (seed * 16 + number_) + 1;
        writes_turn_ = false;
        for (int throws = 0; throws < 8; ++throws) dice_.next();
    }

    void reset() {
        for (auto* direction : {&read, &write}) {
            direction->bursts.clear();
            direction->held = false;
            *direction->signals.ready = 0;
        }
        beats_.clear();
        filling_ = 0;
        data_held_ = beat_taken_ = response_taken_ = false;
        *bus_.wready = *bus_.bvalid = *bus_.rvalid = 0;
    }

    void drive(uint64_t now) {
        if (beat_taken_) *bus_.rvalid = 0;
        if (response_taken_) *bus_.bvalid = 0;
        beat_taken_ = response_taken_ = false;
        drive_address(read);
        drive_address(write);
        bool reads = !*bus_.rvalid && !read.bursts.empty() && now >= read.bursts.front().due && !read.muted() &&
                     !dice_.below(is_.stall);
        // A beat is taken with its address or after it.
        bool writes = (filling_ < write.bursts.size() || (*bus_.aw.valid && *bus_.aw.ready)) && !dice_.below(is_.stall);
        if (is_.shared && reads && writes) {
            // A read takes its share when its beat is offered, a write when it is accepted.
            if (*bus_.wvalid) writes_turn_ = !writes_turn_;
            if (*bus_.wvalid && writes_turn_) {
                reads = false;
            } else {
                writes = false;
            }
        }
        *bus_.wready = writes;
        if (reads) offer();
    }

    void respond(uint64_t now) {
        if (*bus_.bvalid || write.bursts.empty()) return;
        auto& burst = write.bursts.front();
        if (burst.done < burst.beats || now < burst.due || write.muted() || dice_.below(is_.stall)) return;
        land(burst);
        *bus_.bresp = burst.response;
        *bus_.bvalid = 1;
    }

    void observe(uint64_t now) {
        observe_address(read, now);
        observe_address(write, now);
        observe_data(now);
        // Both stay valid until the edge has come.
        beat_taken_ = *bus_.rvalid && *bus_.rready;
        response_taken_ = *bus_.bvalid && *bus_.bready;
        if (beat_taken_) {
            auto& burst = read.bursts.front();
            if (auto* entry = record_.at(burst.entry)) {
                if (!burst.done) entry->first = now;
                if (burst.done + 1 == burst.beats) entry->last = entry->answered = now;
            }
            if (++burst.done == burst.beats) read.bursts.pop();
        }
        if (response_taken_) {
            if (auto* entry = record_.at(write.bursts.front().entry)) entry->answered = now;
            write.bursts.pop();
            --filling_;
        }
    }

   private:
    void drive_address(Direction& direction) {
        *direction.signals.ready = direction.bursts.size() < is_.outstanding &&
                                   direction.accepted < direction.refuse_from && !dice_.below(is_.stall);
    }

    // The next beat of the first read: memory is read now.
    void offer() {
        auto& burst = read.bursts.front();
        const uint64_t offset = burst.done * beat_bytes;
        auto* out = static_cast<uint8_t*>(bus_.rdata);
        if (burst.response != okay) {
            std::memset(out, poison, beat_bytes);
        } else if (burst.data) {
            std::memcpy(out, burst.data + offset, beat_bytes);
        } else {
            for (uint64_t byte = 0; byte < beat_bytes; ++byte) out[byte] = *memory_.at(burst.address + offset + byte, 1);
        }
        *bus_.rresp = burst.response;
        *bus_.rlast = burst.done + 1 == burst.beats;
        *bus_.rvalid = 1;
    }

    // A write's bytes reach memory as late as they may: when its response is first offered.
    void land(const Burst& burst) {
        for (uint64_t offset = 0; offset < burst.beats * beat_bytes; offset += beat_bytes, beats_.pop()) {
            const auto& beat = beats_.front();
            if (burst.response != okay || !beat.strobes) continue;
            if (burst.data && beat.strobes == every_byte) {
                std::memcpy(burst.data + offset, beat.data, beat_bytes);
                continue;
            }
            for (uint64_t byte = 0; byte < beat_bytes; ++byte) {
                if (!(beat.strobes >> byte & 1)) continue;
                auto* to = burst.data ? burst.data + offset + byte : memory_.at(burst.address + offset + byte, 1);
                *to = beat.data[byte];
            }
        }
    }

    void observe_address(Direction& direction, uint64_t now) {
        const auto& signals = direction.signals;
        if (!*signals.valid) {
            if (direction.held) violation(now, "the %s address went away before it was taken", direction.name);
            direction.held = false;
            return;
        }
        if (!direction.held) {
            check(direction, now);
        } else if (*signals.addr != direction.held_address || direction.rest() != direction.held_rest) {
            violation(now, "the %s address changed before it was taken", direction.name);
        }
        direction.held = !*signals.ready;
        if (direction.held) {
            direction.held_address = *signals.addr;
            direction.held_rest = direction.rest();
        } else {
            accept(direction, now);
        }
    }

    void check(const Direction& direction, uint64_t now) {
        const auto& signals = direction.signals;
        const auto address = *signals.addr;
        const unsigned beats = *signals.len + 1;
        const char* of = direction.name;
        if (beats > BURST_BEATS) violation(now, "a %s of %u beats is too long", of, beats);
        if (1ULL << *signals.size != beat_bytes) violation(now, "a %s of AxSIZE %u is no full beat", of, *signals.size);
        if (*signals.burst != 1) violation(now, "a %s has AxBURST %u, not 1", of, *signals.burst);
        if (*signals.cache != 3) violation(now, "a %s has AxCACHE %u, not 3", of, *signals.cache);
        if (*signals.lock) violation(now, "a %s is exclusive", of);
        if (address % beat_bytes) violation(now, "the %s address %#llx is not aligned", of, (long long)address);
        if (address % boundary + beats * beat_bytes > boundary)
            violation(now, "a %s of %u beats at %#llx crosses 4 KiB", of, beats, (long long)address);
        if (ADDRESS_BITS < 64 && address >> (ADDRESS_BITS % 64))
            violation(now, "the %s address %#llx has too many bits", of, (long long)address);
    }

    void accept(Direction& direction, uint64_t now) {
        const bool is_write = &direction == &write;
        const auto address = *direction.signals.addr / beat_bytes * beat_bytes;
        const uint32_t beats = *direction.signals.len + 1u;
        const auto bytes = beats * beat_bytes;
        uint8_t response = okay;
        for (auto failing : direction.failing)
            if (failing - address < bytes) response = slverr;
        if (!memory_.holds(address, bytes)) {
            response = decerr;
            record_.strays.push_back({*direction.signals.addr, number_, is_write});
        }
        auto& burst = direction.bursts.grow();
        burst.address = address;
        burst.data = response == okay ? memory_.at(address, bytes) : nullptr;
        burst.beats = beats;
        burst.done = 0;
        burst.response = response;
        if (!is_write) burst.due = due(direction, now);
        burst.entry = record_.add({*direction.signals.addr, now, never, never, never, 0, uint16_t(beats),
                                   uint8_t(number_), uint8_t(is_write)});
        ++direction.accepted;
    }

    uint64_t due(Direction& direction, uint64_t now) {
        const auto more = is_.jitter ? dice_.next() % (is_.jitter + 1) : 0;
        return direction.due = std::max(direction.due, now + is_.latency + more);
    }

    void observe_data(uint64_t now) {
        if (!*bus_.wvalid) {
            if (data_held_) violation(now, "the write data went away before it was taken");
            data_held_ = false;
            return;
        }
        uint64_t strobes = 0;
        std::memcpy(&strobes, bus_.wstrb, (beat_bytes + 7) / 8);
        if (!data_held_) {
            // An address that waits for its ready may have its data beside it.
            if (filling_ == write.bursts.size() && !*bus_.aw.valid) violation(now, "there is write data without an address");
        } else if (std::memcmp(held_.data, bus_.wdata, beat_bytes) || held_.strobes != strobes ||
                   held_last_ != *bus_.wlast) {
            violation(now, "the write data changed before it was taken");
        }
        data_held_ = !*bus_.wready || filling_ == write.bursts.size();
        if (!data_held_) return take(strobes, now);
        std::memcpy(held_.data, bus_.wdata, beat_bytes);
        held_.strobes = strobes;
        held_last_ = *bus_.wlast;
    }

    void take(uint64_t strobes, uint64_t now) {
        auto& burst = write.bursts[filling_];
        auto& beat = beats_.grow();
        std::memcpy(beat.data, bus_.wdata, beat_bytes);
        beat.strobes = strobes;
        const bool ends = burst.done + 1 == burst.beats;
        if (ends != bool(*bus_.wlast))
            violation(now, "WLAST is %u on beat %u of %u", *bus_.wlast, burst.done + 1, burst.beats);
        if (auto* entry = record_.at(burst.entry)) {
            if (!burst.done) entry->first = now;
            if (ends) entry->last = now;
            entry->strobes += uint32_t(__builtin_popcountll(strobes));
        }
        ++burst.done;
        if (!ends) return;
        burst.due = due(write, now);
        ++filling_;
    }

    __attribute__((format(printf, 3, 4))) void violation(uint64_t now, const char* format, ...) {
        if (++record_.violated > 100) return;
        char text[160];
        int length = std::snprintf(text, sizeof text, "clock %llu, port %u: ", (unsigned long long)now, number_);
        va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(text + length, sizeof text - size_t(length), format, arguments);
        va_end(arguments);
        record_.violations.emplace_back(text);
    }

    const unsigned number_;
    const Signals bus_;
    Memory& memory_;
    Record& record_;
    Behaviour is_{100, 0, 0, 0, 64};
    Dice dice_;
    bool writes_turn_ = false, beat_taken_ = false, response_taken_ = false;
    // Data of writes that are not in memory yet, and which write the next beat is for.
    Queue<Beat> beats_;
    size_t filling_ = 0;
    bool data_held_ = false;
    Beat held_{};
    uint8_t held_last_ = 0;
};

}  // namespace axi
