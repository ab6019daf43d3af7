#include "arrays.hpp"

#include <cstdint>

namespace nb = nanobind;

namespace relay_eps {
namespace {

constexpr const char* kNumpyNames[kFormats] = {"float32 (fp32)", "uint16 (bf16 bits)", "float16 (fp16)"};

[[noreturn]] void refuse(const std::string& name, const std::string& why) { throw ContractViolation(name + " " + why); }

// What the interpreter says about the error that it has just raised; clears it.
std::string take_python_error() {
  nb::python_error error;
  return nb::str(error.value()).c_str();
}

}  // namespace

Array::Array(const char* name, nb::handle object, Access access) : name_(name), access_(access) {
  const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (access == kWrites ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
    const char* need = access == kWrites ? "must be a flat, contiguous, writable numpy array: "
                                         : "must be a flat, contiguous numpy array: ";
    refuse(name, need + take_python_error());
  }
  try {
    if (view_.ndim != 1) refuse(name, "must be flat, but has " + std::to_string(view_.ndim) + " dimensions");
    format_ = read_format();
    if (reinterpret_cast<uintptr_t>(view_.buf) % static_cast<uintptr_t>(view_.itemsize) != 0) {
      refuse(name, "is not aligned to its elements: copy it into a new array");
    }
  } catch (...) {
    PyBuffer_Release(&view_);
    throw;
  }
}

Format Array::read_format() const {
  std::string code = view_.format == nullptr ? "B" : view_.format;
  if (code[0] == '@' || code[0] == '=') code.erase(0, 1);  // both mean native byte order
  if (code == "f") return kFp32;
  if (code == "H") return kBf16;
  if (code == "e") return kFp16;
  refuse(name_, "has element code '" + code + "': use float32 (fp32), float16 (fp16) or uint16 (bf16 bits)");
}

void Array::require(Format format) const {
  if (format_ != format) {
    refuse(name_, std::string("holds ") + kNumpyNames[format_] + " and must hold " + kNumpyNames[format]);
  }
}

bool Array::overlaps(const Array& other) const {
  const auto a = reinterpret_cast<uintptr_t>(view_.buf);
  const auto b = reinterpret_cast<uintptr_t>(other.view_.buf);
  return a < b + static_cast<uintptr_t>(other.view_.len) && b < a + static_cast<uintptr_t>(view_.len);
}

int64_t common_length(std::initializer_list<const Array*> arrays) {
  const Array& first = **arrays.begin();
  for (const Array* const* i = arrays.begin(); i != arrays.end(); ++i) {
    if (*i == nullptr) continue;
    if ((*i)->size() != first.size()) {
      refuse((*i)->name(), "has " + std::to_string((*i)->size()) + " elements, but " + first.name() + " has " +
                               std::to_string(first.size()));
    }
    for (const Array* const* j = arrays.begin(); j != i; ++j) {
      if (((*i)->written() || (*j)->written()) && (*i)->overlaps(**j)) {
        refuse((*i)->name(), std::string("shares memory with ") + (*j)->name());
      }
    }
  }
  return first.size();
}

}  // namespace relay_eps
