// The memory behind the AXI ports of a core, and what was seen on them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace axi {

constexpr uint64_t never = ~0ULL;

// A queue in a ring: nothing is allocated while it has room.
template <typename T>
class Queue {
   public:
    size_t size() const { return size_t(tail_ - head_); }
    bool empty() const { return tail_ == head_; }
    T& operator[](size_t place) { return ring_[(head_ + place) & (ring_.size() - 1)]; }
    T& front() { return (*this)[0]; }
    T& grow() {
        if (size() == ring_.size()) double_it();
        return ring_[tail_++ & (ring_.size() - 1)];
    }
    void pop() { ++head_; }
    void clear() { head_ = tail_; }

   private:
    void double_it() {
        std::vector<T> larger(2 * ring_.size());
        for (size_t place = 0; place < size(); ++place) larger[place] = (*this)[place];
        tail_ = size();
        head_ = 0;
        ring_.swap(larger);
    }
    std::vector<T> ring_ = std::vector<T>(64);
    uint64_t head_ = 0, tail_ = 0;
};

struct Region {
    uint64_t base, size;
    uint8_t* data;
    bool holds(uint64_t address, uint64_t bytes) const {
        return address >= base && bytes <= size && address - base <= size - bytes;
    }
};

// Arrays of the caller, each at its address.
class Memory {
   public:
    void attach(const Region& region) { regions_.push_back(region); }
    void detach() { regions_.clear(); }
    // The byte at an address, where so many bytes lie in one region; or null.
    uint8_t* at(uint64_t address, uint64_t bytes) const {
        for (const auto& region : regions_)
            if (region.holds(address, bytes)) return region.data + (address - region.base);
        return nullptr;
    }
    // Regions that touch may share a burst.
    bool holds(uint64_t address, uint64_t bytes) const {
        if (at(address, bytes)) return true;
        for (uint64_t byte = 0; byte < bytes; ++byte)
            if (!at(address + byte, 1)) return false;
        return true;
    }

   private:
    std::vector<Region> regions_;
};

// A burst as Python sees it; `never` is -1 there.
struct Entry {
    uint64_t address, asked, first, last, answered;
    uint32_t strobes;
    uint16_t beats;
    uint8_t port, is_write;
};
static_assert(sizeof(Entry) == 48, "as the dtype in core.py has it");

struct Stray {
    uint64_t address;
    uint32_t port, is_write;
};

// What was seen on all ports.
struct Record {
    std::vector<Entry> log;
    std::vector<Stray> strays;
    std::vector<std::string> violations;
    uint64_t violated = 0;
    // Entries that were cleared; bursts under way may still have their numbers.
    uint64_t cleared = 0;

    uint64_t add(const Entry& entry) {
        log.push_back(entry);
        return cleared + log.size() - 1;
    }
    Entry* at(uint64_t number) { return number < cleared ? nullptr : &log[number - cleared]; }
    void clear() {
        cleared += log.size();
        log.clear();
    }
};

}  // namespace axi
