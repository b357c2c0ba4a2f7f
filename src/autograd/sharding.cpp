#include "lockstep/autograd/sharding.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::int64_t blocks_of(std::int64_t elements) {
  return (elements + Sharding::block_elements - 1) / Sharding::block_elements;
}

std::vector<std::int64_t> sizes_of(std::span<Param* const> params) {
  std::vector<std::int64_t> sizes;
  for (const Param* const param : params) sizes.push_back(param->value.numel());
  return sizes;
}

}  // namespace

Sharding::Sharding(std::vector<std::int64_t> elements, comm::Communicator& communicator)
    : elements_(std::move(elements)), ranks_(communicator.size()), communicator_(&communicator) {
  std::int64_t next = 0;
  for (const std::int64_t count : elements_) {
    first_extra_.push_back(static_cast<int>(next));
    next = (next + blocks_of(count)) % ranks_;
  }
}

Sharding::Sharding(std::span<Param* const> params, comm::Communicator& communicator)
    : Sharding(sizes_of(params), communicator) {}

comm::ElementRange Sharding::range(std::size_t param, int rank) const {
  const std::int64_t elements = elements_.at(param), blocks = blocks_of(elements);
  const std::int64_t each = blocks / ranks_, extra = blocks % ranks_, first_extra = first_extra_[param];
  // Ranks [first_extra, first_extra + extra), counted round, have one block more.
  const auto first_block = [&](std::int64_t of) {
    const std::int64_t around = std::max<std::int64_t>(0, first_extra + extra - ranks_);
    const std::int64_t extras_before =
        std::min(of, around) + std::clamp<std::int64_t>(of - first_extra, 0, extra - around);
    return of * each + extras_before;
  };
  const std::int64_t first = std::min(elements, first_block(rank) * block_elements);
  return {first, std::min(elements, first_block(rank + 1) * block_elements) - first};
}

Tensor Sharding::part(std::size_t param, const Tensor& whole) const {
  const comm::ElementRange own = mine(param);
  return whole.reshape({elements(param)}).rows(own.first, own.end());
}

Tensor Sharding::gather(std::size_t param, const Tensor& part, const Shape& shape) const {
  const auto owned = static_cast<std::size_t>(mine(param).count) * bytes_of(part.dtype());
  if (shape.numel() != elements(param) || part.bytes() != owned)
    throw UsageError("parameter {} of {} elements cannot be gathered as {} from {} bytes of rank {}", param,
                     elements(param), to_string(shape), part.bytes(), communicator_->rank());
  const Tensor whole = Tensor::empty(shape, part.dtype());
  std::vector<std::size_t> bytes_of_rank;
  for (int rank = 0; rank < ranks_; ++rank)
    bytes_of_rank.push_back(static_cast<std::size_t>(range(param, rank).count) * bytes_of(part.dtype()));
  communicator_->all_gather_unequal(part.raw(), bytes_of_rank, whole.raw());
  return whole;
}

}  // namespace lockstep
