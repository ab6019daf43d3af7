// The Python module relay_eps.eps._kernels.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "dispatch.hpp"
#include "pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace relay_eps {
namespace {

static_assert(sizeof(float) == 4, "fp32 is assumed");

constexpr int kMostThreads = 1024;
constexpr int64_t kChunkMultiple = 32;  // elements in 64 bytes of a 16-bit format: no cache line is shared by chunks

// Lets other Python threads run while it lives. Where a daemon thread comes back to an interpreter on its way out,
// Python before 3.14 ends the thread by unwinding its stack, and unwinding through C++ ends the process: such a thread
// is parked instead, as Python 3.14 does it.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

const KernelTable& table_or_throw(const std::string& name) {
  if (const KernelTable* table = find_table(name)) return *table;
  std::string known;
  for (const KernelTable* table : available_tables()) known += (known.empty() ? "" : ", ") + std::string(table->name);
  throw ContractViolation("instruction set '" + name + "' is not available here: use one of " + known);
}

class Kernels {
 public:
  Kernels(const std::string& instruction_set, int threads, int64_t chunk)
      : table_(table_or_throw(instruction_set)), chunk_(checked_chunk(chunk)), pool_(checked_threads(threads)) {}

  std::string instruction_set() const { return table_.name; }
  int threads() const { return pool_.threads(); }

  void fold(nb::handle m_object, nb::handle v_object, nb::handle g_object, float b1, float c1, float b2, float c2,
            float scale, bool first) {
    const Array m("m", m_object, Array::kWrites), v("v", v_object, Array::kWrites), g("g", g_object, Array::kReads);
    m.require(kFp32);
    v.require(kFp32);
    const FoldArrays arrays{m.floats(), v.floats(), g.data()};
    const FoldScalars scalars{b1, c1, b2, c2, scale};
    const FoldFn fn = table_.fold[g.format()][first];
    run(common_length({&m, &v, &g}), [&](int64_t begin, int64_t end) { fn(arrays, scalars, begin, end); });
  }

  void apply(nb::handle p_object, nb::handle m_object, nb::handle v_object, nb::handle wire_object, float r2, float eps,
             float k, float s) {
    const Array p("p", p_object, Array::kWrites), m("m", m_object, Array::kReads), v("v", v_object, Array::kReads);
    for (const Array* array : {&p, &m, &v}) array->require(kFp32);
    const Wire wire(wire_object);
    const int64_t length = common_length({&p, &m, &v, wire.array()});
    const ApplyArrays arrays{p.floats(), m.floats(), v.floats(), wire.data()};
    const ApplyScalars scalars{r2, eps, k, s};
    const ApplyFn fn = table_.apply[wire.format()];
    run(length, [&](int64_t begin, int64_t end) { fn(arrays, scalars, begin, end); });
  }

  void fold_apply(nb::handle p_object, nb::handle m_object, nb::handle v_object, nb::handle g_object,
                  nb::handle wire_object, float b1, float c1, float b2, float c2, float scale, float r2, float eps,
                  float k, float s, bool first) {
    const Array p("p", p_object, Array::kWrites), m("m", m_object, Array::kWrites), v("v", v_object, Array::kWrites);
    const Array g("g", g_object, Array::kReads);
    for (const Array* array : {&p, &m, &v}) array->require(kFp32);
    const Wire wire(wire_object);
    const int64_t length = common_length({&p, &m, &v, &g, wire.array()});
    const FoldApplyArrays arrays{p.floats(), m.floats(), v.floats(), g.data(), wire.data()};
    const FoldScalars fold{b1, c1, b2, c2, scale};
    const ApplyScalars apply{r2, eps, k, s};
    const FoldApplyFn fn = table_.fold_apply[g.format()][wire.format()][first];
    run(length, [&](int64_t begin, int64_t end) { fn(arrays, fold, apply, begin, end); });
  }

  void accumulate(nb::handle total_object, nb::handle g_object, bool first) {
    const Array total("total", total_object, Array::kWrites), g("g", g_object, Array::kReads);
    total.require(kFp32);
    const int64_t length = common_length({&total, &g});
    if (first) {
      const ConvertFn fn = table_.convert[g.format()][kFp32];
      run(length, [&](int64_t begin, int64_t end) { fn(g.data(), total.data(), begin, end); });
    } else {
      const AccumulateFn fn = table_.accumulate[g.format()];
      run(length, [&](int64_t begin, int64_t end) { fn(total.floats(), g.data(), begin, end); });
    }
  }

  void convert(nb::handle source_object, nb::handle out_object) {
    const Array source("source", source_object, Array::kReads), out("out", out_object, Array::kWrites);
    const ConvertFn fn = table_.convert[source.format()][out.format()];
    if (fn == nullptr) throw ContractViolation("source and out are two 16-bit formats: convert through float32");
    run(common_length({&source, &out}),
        [&](int64_t begin, int64_t end) { fn(source.data(), out.data(), begin, end); });
  }

  bool all_finite(nb::handle object) {
    const Array values("values", object, Array::kReads);
    return !any(values, table_.not_finite[values.format()]);
  }

  // For tests of the workers' error path: a pass whose work throws in the chunk that holds `position`.
  void raise_in_chunk(int64_t length, int64_t position) {
    run(length, [&](int64_t begin, int64_t end) {
      if (begin <= position && position < end) throw std::runtime_error("chunk at " + std::to_string(begin));
    });
  }

 private:
  static int checked_threads(int threads) {
    if (threads < 1 || threads > kMostThreads) {
      throw ContractViolation("threads must be from 1 to " + std::to_string(kMostThreads) + ", not " +
                              std::to_string(threads));
    }
    return threads;
  }

  static int64_t checked_chunk(int64_t chunk) {
    if (chunk < kChunkMultiple || chunk % kChunkMultiple != 0) {
      throw ContractViolation("a chunk must be a positive multiple of 32 elements, not " + std::to_string(chunk));
    }
    return chunk;
  }

  // A wire copy, or its absence.
  struct Wire {
    explicit Wire(nb::handle object) {
      if (object.is_none()) return;
      held.emplace("wire", object, Array::kWrites);
      if (held->format() == kFp32) throw ContractViolation("wire must be uint16 (bf16 bits), float16 or None");
    }
    const Array* array() const { return held ? &*held : nullptr; }
    void* data() const { return held ? held->data() : nullptr; }
    int format() const { return held ? held->format() : kNoWire; }

    std::optional<Array> held;
  };

  template <typename Work>
  void run(int64_t length, const Work& work) {
    const GilReleased released;
    pool_.run(Chunks{length, chunk_}, Pool::Work(std::cref(work)));
  }

  bool any(const Array& values, TestFn test) {
    std::atomic<bool> found{false};
    run(values.size(), [&](int64_t begin, int64_t end) {
      if (!found.load(std::memory_order_relaxed) && test(values.data(), begin, end)) found.store(true);
    });
    return found.load();
  }

  const KernelTable& table_;
  const int64_t chunk_;
  Pool pool_;
};

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const KernelTable* table : available_tables()) names.emplace_back(table->name);
  return names;
}

std::vector<int64_t> chunk_bounds(int64_t length, int64_t chunk, int64_t index) {
  const Chunks chunks{length, chunk};
  return {chunks.count(), chunks.begin(index), chunks.end(index)};
}

void raise_contract_errors() {
  nb::object contract_error = nb::module_::import_("relay_eps.errors").attr("ContractError");
  nb::register_exception_translator(
      [](const std::exception_ptr& error, void* type) {
        try {
          std::rethrow_exception(error);
        } catch (const ContractViolation& violation) {
          PyErr_SetString(static_cast<PyObject*>(type), violation.what());
        }
      },
      contract_error.release().ptr());
}

}  // namespace
}  // namespace relay_eps

NB_MODULE(_kernels, module) {
  using relay_eps::Kernels;
  // An object that is still alive when the interpreter ends is the user's business, not worth a page on stderr.
  nb::set_leak_warnings(false);
  relay_eps::raise_contract_errors();

  module.def("instruction_sets", relay_eps::instruction_sets);
  module.def("chunk_bounds", relay_eps::chunk_bounds, "length"_a, "chunk"_a, "index"_a);

  // Arrays may be None as far as nanobind is concerned: Array has the better sentence.
  const auto m = "m"_a.none(), v = "v"_a.none(), g = "g"_a.none(), p = "p"_a.none(), wire = "wire"_a.none();
  nb::class_<Kernels>(module, "Kernels")
      .def(nb::init<const std::string&, int, int64_t>(), "instruction_set"_a, "threads"_a, "chunk"_a)
      .def_prop_ro("instruction_set", &Kernels::instruction_set)
      .def_prop_ro("threads", &Kernels::threads)
      .def("fold", &Kernels::fold, m, v, g, "b1"_a, "c1"_a, "b2"_a, "c2"_a, "scale"_a, "first"_a)
      .def("apply", &Kernels::apply, p, m, v, wire, "r2"_a, "eps"_a, "k"_a, "s"_a)
      .def("fold_apply", &Kernels::fold_apply, p, m, v, g, wire, "b1"_a, "c1"_a, "b2"_a, "c2"_a, "scale"_a, "r2"_a,
           "eps"_a, "k"_a, "s"_a, "first"_a)
      .def("accumulate", &Kernels::accumulate, "total"_a.none(), g, "first"_a)
      .def("convert", &Kernels::convert, "source"_a.none(), "out"_a.none())
      .def("all_finite", &Kernels::all_finite, "values"_a.none())
      .def("raise_in_chunk", &Kernels::raise_in_chunk, "length"_a, "position"_a);
}
