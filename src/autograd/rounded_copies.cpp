#include "autograd/rounded_copies.h"

namespace lockstep {

bool RoundedCopies::is_good(const Copy& copy, const Param& param) const {
  if (copy.values == values_) return true;
  return is_watched(copy) && copy.value_stamp.is_of(param.value) &&
         copy.rounded_stamp.last() >= copy.value_stamp.last();
}

const Tensor& RoundedCopies::of(Param& param, DType dtype, bool trains) {
  Copy& copy = copies_[&param];
  if (!copy.rounded || copy.rounded.dtype() != dtype || !(copy.rounded.shape() == param.value.shape()))
    copy = {.rounded = backend_.empty(param.value.shape(), dtype)};
  if (is_good(copy, param)) {
    copy.values = values_;
    return copy.rounded;
  }
  // Values that other ranks send are written by a transport.
  if (sees_writes_ && !param.pending_values) {
    if (!copy.value_stamp.is_of(param.value)) copy.value_stamp = kernels::WriteStamp(param.value);
    if (!is_watched(copy)) copy.rounded_stamp = kernels::WriteStamp(copy.rounded);
    if (trains) param.rounded = copy.rounded;
  } else {
    copy.value_stamp = {};
    copy.rounded_stamp = {};
    if (trains) param.rounded = {};
  }
  backend_.copy(param.value, copy.rounded);
  copy.values = values_;
  return copy.rounded;
}

void RoundedCopies::refresh(std::span<Param* const> params, bool all) {
  if (!sees_writes_) return;
  for (Param* const param : params) {
    const auto found = copies_.find(param);
    if (found == copies_.end() || param->pending_values) continue;
    Copy& copy = found->second;
    copy.values = 0;
    if (all) copy.value_stamp = {};
    of(*param, copy.rounded.dtype(), param->trainable);
  }
}

}  // namespace lockstep
