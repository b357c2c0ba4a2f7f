#include "ddp/overflow_check.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/ops/update.h"

namespace lockstep::ddp {

OverflowCheck::OverflowCheck(std::span<Param* const> params, comm::Communicator& communicator,
                             kernels::Backend& backend, const Sharding* sharding)
    : communicator_(communicator),
      backend_(backend),
      sharding_(sharding),
      first_of_rank_(static_cast<std::size_t>(communicator.size())) {
  constexpr std::int64_t block = Sharding::block_elements;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!params[i]->trainable) continue;
    const std::int64_t elements = sharding ? sharding->mine(i).count : params[i]->value.numel();
    const std::int64_t blocks = (elements + block - 1) / block;
    parts_.push_back({.param = i, .first_block = total, .blocks = blocks});
    total += blocks;
  }
  squares_ = backend.empty({total}, DType::float64);
  read_.resize(static_cast<std::size_t>(total));
}

kernels::Transfer OverflowCheck::ask(const Reducer& reducer) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto [param, first, blocks] = parts_[i];
    const Tensor sum = reducer.sum(static_cast<int>(i));
    backend_.run(ops::BlockSumsOfSquares{sharding_ ? sharding_->part(param, sum) : sum.reshape({sum.numel()}),
                                         squares_.rows(first, first + blocks)});
  }
  return {squares_, Tensor::view(read_.data(), squares_.shape(), DType::float64)};
}

void OverflowCheck::check(std::span<Param* const> trainable, std::uint64_t step) {
  const auto found = std::find_if(read_.begin(), read_.end(), [](double sum) { return !std::isfinite(sum); });
  const auto at = static_cast<std::int64_t>(found - read_.begin());
  const auto holds = [at](const Part& part) { return at < part.first_block + part.blocks; };
  std::int64_t first = std::find_if(parts_.begin(), parts_.end(), holds) - parts_.begin();
  if (sharding_) {  // ranks have looked at different parts
    communicator_.all_gather(&first, sizeof first, first_of_rank_.data());
    first = *std::min_element(first_of_rank_.begin(), first_of_rank_.end());
  }
  if (first == static_cast<std::int64_t>(parts_.size())) return;
  throw TrainingError(
      "step {}: the gradient of {} is not finite after travelling as float16, which ends at 65504; let it "
      "travel as bfloat16 or float32",
      step, trainable[static_cast<std::size_t>(first)]->name);
}

}  // namespace lockstep::ddp
