#include "ddp/overflow_check.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::ddp {

OverflowCheck::OverflowCheck(std::span<Param* const> params, comm::Communicator& communicator,
                             kernels::Backend& backend, const Sharding* sharding)
    : communicator_(communicator),
      backend_(backend),
      sharding_(sharding),
      first_of_rank_(static_cast<std::size_t>(communicator.size())) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i]->trainable) trainable_.push_back(i);
  }
}

bool OverflowCheck::finite(const Tensor& vector) {
  constexpr std::int64_t block = Sharding::block_elements;
  const std::int64_t blocks = (vector.numel() + block - 1) / block;
  const Tensor squares = backend_.empty({blocks}, DType::float64);
  backend_.block_sums_of_squares(vector, squares);
  squares_.resize(static_cast<std::size_t>(blocks));
  backend_.copy(squares, Tensor::view(squares_.data(), {blocks}, DType::float64));
  return std::all_of(squares_.begin(), squares_.end(), [](double square) { return std::isfinite(square); });
}

void OverflowCheck::check(const Reducer& reducer, std::uint64_t step) {
  const auto count = static_cast<std::int64_t>(trainable_.size());
  std::int64_t first = 0;
  for (; first < count; ++first) {
    const Tensor sum = reducer.sum(static_cast<int>(first));
    const std::size_t param = trainable_[static_cast<std::size_t>(first)];
    if (!finite(sharding_ ? sharding_->part(param, sum) : sum.reshape({sum.numel()}))) break;
  }
  if (sharding_) {  // ranks have looked at different parts
    communicator_.all_gather(&first, sizeof first, first_of_rank_.data());
    first = *std::min_element(first_of_rank_.begin(), first_of_rank_.end());
  }
  if (first == count) return;
  throw TrainingError(
      "step {}: the gradient of {} is not finite after travelling as float16, which ends at 65504; let it "
      "travel as bfloat16 or float32",
      step, reducer.params()[static_cast<std::size_t>(first)]->name);
}

}  // namespace lockstep::ddp
