#include "autograd/rank_sums.h"

#include <algorithm>
#include <vector>

#include "lockstep/ops/elementwise.h"

namespace lockstep {
namespace {

constexpr std::int64_t min_elements = 2048;  // of a rank: most models then need one flat buffer only

}  // namespace

Tensor RankSums::sum(kernels::Backend& backend, const Tensor& mine) {
  const std::int64_t n = mine.numel(), ranks = transport_.group().size();
  const Tensor total = backend.empty(mine.shape(), DType::float64);
  backend.fill(total, 0);
  if (n == 0) return total;
  reserve(n);
  const Tensor all = Tensor::view(flat_buffer_->accumulator(0), {ranks, n}, DType::float64, backend.device());
  const auto of_rank = [&](std::int64_t rank) { return all.rows(rank, rank + 1).reshape(mine.shape()); };
  backend.copy(mine, of_rank(transport_.group().rank()));
  transport_.order_after(transport_.start_all_gather(
      {.flat_buffer = flat_buffer_.get(), .offset_bytes = 0, .count = all.numel(), .dtype = DType::float64},
      slices_of(n)));
  for (std::int64_t rank = 0; rank < ranks; ++rank) backend.run(ops::Accumulate{total, of_rank(rank)});
  return total;
}

void RankSums::reserve(std::int64_t elements) {
  const auto bytes_for = [&](std::int64_t of_rank) {
    return static_cast<std::size_t>(transport_.group().size() * of_rank) * sizeof(double);
  };
  if (flat_buffer_ && flat_buffer_->accumulator_bytes() >= bytes_for(elements)) return;
  flat_buffer_.reset();
  flat_buffer_ = transport_.allocate_buffer(bytes_for(std::max(elements, min_elements)), 1);
}

const comm::Slices& RankSums::slices_of(std::int64_t elements) {
  const auto known = slices_.find(elements);
  if (known != slices_.end()) return known->second;
  std::vector<std::vector<comm::ElementRange>> ranges;
  for (std::int64_t rank = 0; rank < transport_.group().size(); ++rank)
    ranges.push_back({{.first = rank * elements, .count = elements}});
  return slices_.emplace(elements, comm::Slices(transport_.group().size() * elements, ranges)).first->second;
}

}  // namespace lockstep
