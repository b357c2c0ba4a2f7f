#include "lockstep/autograd/partition.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/kernels/backend.h"

namespace lockstep {
namespace {

constexpr std::size_t max_at_once_bytes = std::size_t{64} << 20;

std::int64_t blocks_of(std::int64_t elements) {
  return (elements + Partition::block_elements - 1) / Partition::block_elements;
}

std::byte* bytes_in(const Tensor& tensor) { return static_cast<std::byte*>(tensor.raw()); }

std::vector<std::int64_t> sizes_of(std::span<Param* const> params) {
  std::vector<std::int64_t> sizes;
  for (const Param* const param : params) sizes.push_back(param->value.numel());
  return sizes;
}

std::vector<bool> undivided_of(std::span<Param* const> params) {
  std::vector<bool> undivided;
  for (const Param* const param : params) undivided.push_back(param->undivided);
  return undivided;
}

}  // namespace

Partition::Partition(std::vector<std::int64_t> elements, comm::GradientTransport& transport,
                     const std::vector<bool>& undivided)
    : elements_(std::move(elements)),
      owner_(elements_.size(), no_owner),
      ranks_(transport.group().size()),
      transport_(&transport) {
  if (!undivided.empty()) assign_owners(undivided);
  std::int64_t next = 0;
  for (std::size_t i = 0; i < elements_.size(); ++i) {
    first_extra_.push_back(static_cast<int>(next));
    if (owner_[i] == no_owner) next = (next + blocks_of(elements_[i])) % ranks_;
  }
}

Partition::Partition(std::span<Param* const> params, comm::GradientTransport& transport)
    : Partition(sizes_of(params), transport, undivided_of(params)) {}

void Partition::assign_owners(const std::vector<bool>& undivided) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < elements_.size(); ++i)
    if (undivided.at(i)) order.push_back(i);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t i) { return elements_[i]; });
  std::vector<std::int64_t> load(static_cast<std::size_t>(ranks_));
  for (const std::size_t i : order) {
    const auto min = std::ranges::min_element(load);
    *min += elements_[i];
    owner_[i] = static_cast<int>(min - load.begin());
  }
}

comm::ElementRange Partition::range(std::size_t param, int rank) const {
  const std::int64_t elements = elements_.at(param);
  if (const int owner = owner_[param]; owner != no_owner)
    return {.first = rank <= owner ? 0 : elements, .count = rank == owner ? elements : 0};
  const std::int64_t blocks = blocks_of(elements);
  const std::int64_t each = blocks / ranks_, extra = blocks % ranks_, first_extra = first_extra_[param];
  // Ranks [first_extra, first_extra + extra), modulo ranks_, have one more block.
  const auto first_block = [&](std::int64_t of) {
    const std::int64_t around = std::max<std::int64_t>(0, first_extra + extra - ranks_);
    const std::int64_t extras_before =
        std::min(of, around) + std::clamp<std::int64_t>(of - first_extra, 0, extra - around);
    return of * each + extras_before;
  };
  const std::int64_t first = std::min(elements, first_block(rank) * block_elements);
  return {first, std::min(elements, first_block(rank + 1) * block_elements) - first};
}

Tensor Partition::part(std::size_t param, const Tensor& whole) const {
  const comm::ElementRange own = mine(param);
  return whole.reshape({elements(param)}).rows(own.first, own.end());
}

std::size_t Partition::bytes_of(const OwnedElements& part, int rank) const {
  return static_cast<std::size_t>(range(part.param, rank).count) * lockstep::bytes_of(part.elements.dtype());
}

std::vector<Tensor> Partition::gather(std::span<const OwnedElements> parts, kernels::Backend* backend) const {
  const comm::NamedCall call(transport_->group(), "gathers tensors of a sharded optimizer");
  std::vector<Tensor> wholes;
  for (const OwnedElements& part : parts) {
    if (part.shape.numel() != elements(part.param) ||
        part.elements.bytes() != bytes_of(part, transport_->group().rank()))
      throw UsageError("parameter {} of {} elements cannot be gathered as {} from {} bytes of rank {}",
                       part.param, elements(part.param), to_string(part.shape), part.elements.bytes(),
                       transport_->group().rank());
    wholes.push_back(Tensor::empty(part.shape, part.elements.dtype()));
  }
  for (std::size_t first = 0; first < parts.size();) {
    std::size_t end = first;
    for (std::size_t bytes = 0; end < parts.size() && bytes < max_at_once_bytes; ++end)
      bytes += wholes[end].bytes();
    gather_some(parts.subspan(first, end - first), backend, std::span(wholes).subspan(first, end - first));
    first = end;
  }
  return wholes;
}

/// Packs the parts, so that any number of tensors share a collective.
void Partition::gather_some(std::span<const OwnedElements> parts, kernels::Backend* backend,
                            std::span<Tensor> wholes) const {
  std::vector<std::size_t> bytes_of_rank(static_cast<std::size_t>(ranks_));
  for (int rank = 0; rank < ranks_; ++rank) {
    for (const OwnedElements& part : parts)
      bytes_of_rank[static_cast<std::size_t>(rank)] += bytes_of(part, rank);
  }
  std::vector<std::byte> all(std::accumulate(bytes_of_rank.begin(), bytes_of_rank.end(), std::size_t{0}));
  const auto me = bytes_of_rank.begin() + transport_->group().rank();
  std::byte* const mine = all.data() + std::accumulate(bytes_of_rank.begin(), me, std::size_t{0});
  std::byte* to = mine;
  for (const OwnedElements& part : parts) {
    kernels::transfer(part.elements, Tensor::view(to, part.elements.shape(), part.elements.dtype()), backend);
    to += part.elements.bytes();
  }
  transport_->group().all_gather_unequal(mine, bytes_of_rank, all.data());

  const std::byte* from = all.data();
  for (int rank = 0; rank < ranks_; ++rank) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::size_t bytes = bytes_of(parts[i], rank);
      const auto offset = static_cast<std::size_t>(range(parts[i].param, rank).first) *
                          lockstep::bytes_of(parts[i].elements.dtype());
      std::copy_n(from, bytes, bytes_in(wholes[i]) + offset);
      from += bytes;
    }
  }
}

}  // namespace lockstep
