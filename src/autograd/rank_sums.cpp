#include "autograd/rank_sums.h"

#include <algorithm>
#include <vector>
#include "lockstep/ops/elementwise.h"

namespace lockstep {
namespace {

constexpr std::int64_t least_elements = 2048;  // of a rank: what most models need, so that one arena serves

}  // namespace

Tensor RankSums::sum(kernels::Backend& backend, const Tensor& mine) {
  const std::int64_t n = mine.numel(), ranks = communicator_.group().size();
  const Tensor total = backend.empty(mine.shape(), DType::float64);
  backend.fill(total, 0);
  if (n == 0) return total;
  make_room(n);
  const Tensor all = Tensor::view(arena_->plane(0), {ranks, n}, DType::float64, backend.device());
  const auto of_rank = [&](std::int64_t rank) { return all.rows(rank, rank + 1).reshape(mine.shape()); };
  backend.copy(mine, of_rank(communicator_.group().rank()));
  communicator_.wait(communicator_.start_all_gather(
      {.arena = arena_.get(), .offset_bytes = 0, .count = all.numel(), .dtype = DType::float64},
      slices_of(n)));
  for (std::int64_t rank = 0; rank < ranks; ++rank) backend.run(ops::Accumulate{total, of_rank(rank)});
  return total;
}

void RankSums::make_room(std::int64_t elements) {
  const auto bytes_for = [&](std::int64_t of_rank) {
    return static_cast<std::size_t>(communicator_.group().size() * of_rank) * sizeof(double);
  };
  if (arena_ && arena_->plane_bytes() >= bytes_for(elements)) return;
  arena_.reset();
  arena_ = communicator_.allocate_arena(bytes_for(std::max(elements, least_elements)), 1);
}

const comm::Slices& RankSums::slices_of(std::int64_t elements) {
  const auto known = slices_.find(elements);
  if (known != slices_.end()) return known->second;
  std::vector<std::vector<comm::ElementRange>> ranges;
  for (std::int64_t rank = 0; rank < communicator_.group().size(); ++rank)
    ranges.push_back({{.first = rank * elements, .count = elements}});
  return slices_.emplace(elements, comm::Slices(communicator_.group().size() * elements, ranges))
      .first->second;
}

}  // namespace lockstep
