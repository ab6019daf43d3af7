// The numpy arrays of a call, checked and held for as long as the call runs.
#pragma once

#include <nanobind/nanobind.h>

#include <initializer_list>
#include <stdexcept>
#include <string>

#include "table.hpp"

namespace relay_eps {

// An argument outside the EPS contract; Python sees relay_eps.errors.ContractError.
class ContractViolation : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// A flat, contiguous array of float32, float16 or uint16 (bf16 bits), in native byte order.
//
// Throws ContractViolation for anything else, and for a read-only array where the call writes.
class Array {
 public:
  enum Access { kReads, kWrites };

  Array(const char* name, nanobind::handle object, Access access);
  ~Array() { PyBuffer_Release(&view_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  const char* name() const { return name_; }
  bool written() const { return view_.readonly == 0 && access_ == kWrites; }
  Format format() const { return format_; }
  int64_t size() const { return view_.shape[0]; }
  void* data() const { return view_.buf; }
  float* floats() const { return static_cast<float*>(view_.buf); }

  // Throws ContractViolation unless the elements have this format.
  void require(Format format) const;
  bool overlaps(const Array& other) const;

 private:
  Format read_format() const;

  const char* const name_;
  const Access access_;
  Py_buffer view_;
  Format format_;
};

// The common length of a call's arrays; nulls after the first, for sections that are not there, are skipped. Throws
// ContractViolation where lengths differ, or where an array that is written shares memory with another.
int64_t common_length(std::initializer_list<const Array*> arrays);

}  // namespace relay_eps
