// RoundedCopies: a copy of each weight in the type of a pass. A value is rounded once.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "kernels/write_stamp.h"
#include "lockstep/autograd/param.h"
#include "lockstep/kernels/backend.h"

namespace lockstep {

/// The copies of one tape. A program may write a CPU's parameters itself, so a copy there serves only passes
/// with the same parameters. A GPU's copy serves until an operation writes the value and not the copy. An
/// optimizer's step writes both.
class RoundedCopies {
 public:
  explicit RoundedCopies(kernels::Backend& backend)
      : backend_(backend), sees_writes_(backend.device().kind != Device::Kind::cpu) {}

  /// A pass begins that may see other values than the last one.
  void begin() { ++values_; }
  /// The copy of the value in another type. trains: Param::rounded becomes it, where writes are seen.
  const Tensor& of(Param& param, DType dtype, bool trains);
  /// Makes the copies of parameters anew whose values were written since, or all: a captured graph only reads
  /// them.
  void refresh(std::span<Param* const> params, bool all);
  void forget(const Param& param) { copies_.erase(&param); }

 private:
  struct Copy {
    Tensor rounded = {};
    kernels::WriteStamp value_stamp = {}, rounded_stamp = {};
    std::uint64_t values = 0;  // values_ when it was asked for last
  };
  bool is_good(const Copy& copy, const Param& param) const;
  bool is_watched(const Copy& copy) const { return copy.rounded_stamp.is_of(copy.rounded); }

  kernels::Backend& backend_;
  bool sees_writes_;
  std::unordered_map<const Param*, Copy> copies_;
  std::uint64_t values_ = 1;
};

}  // namespace lockstep
