#include "dispatch.hpp"

#if defined(RELAY_EPS_X86)
#include <cpuid.h>
#endif

namespace relay_eps {

#if defined(RELAY_EPS_X86)
namespace {

struct Registers {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

constexpr bool has(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

// Register states that the operating system saves at a context switch; without them the instructions fault.
uint32_t saved_states() {
  constexpr uint32_t kOsxsave = 1u << 27;
  if (!has(cpuid(1, 0).c, kOsxsave)) return 0;
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

constexpr uint32_t kYmmStates = 0x06;  // SSE and AVX
constexpr uint32_t kZmmStates = 0xE6;  // those, opmasks, and both halves of the wide registers

bool can_run_avx2() {
  constexpr uint32_t kAvx = 1u << 28, kF16c = 1u << 29, kAvx2 = 1u << 5;
  return has(saved_states(), kYmmStates) && has(cpuid(1, 0).c, kAvx | kF16c) && has(cpuid(7, 0).b, kAvx2);
}

bool can_run_avx512() {
  constexpr uint32_t kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;
  return can_run_avx2() && has(saved_states(), kZmmStates) && has(cpuid(7, 0).b, kF | kDq | kBw | kVl);
}

}  // namespace
#endif

std::vector<const KernelTable*> available_tables() {
  std::vector<const KernelTable*> tables;
#if defined(RELAY_EPS_X86)
  if (can_run_avx512()) tables.push_back(&kAvx512Table);
  if (can_run_avx2()) tables.push_back(&kAvx2Table);
#elif defined(RELAY_EPS_NEON)
  tables.push_back(&kNeonTable);
#endif
  tables.push_back(&kPlainTable);
  return tables;
}

const KernelTable* find_table(const std::string& name) {
  for (const KernelTable* table : available_tables()) {
    if (name == table->name) return table;
  }
  return nullptr;
}

}  // namespace relay_eps
