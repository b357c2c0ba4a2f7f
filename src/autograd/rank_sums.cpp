// Tape::sum_over_ranks().
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/autograd/tape.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep {
namespace {

constexpr std::int64_t min_elements = 2048;  // of a rank: most models then need one flat buffer only

}  // namespace

/// Small vectors that layers add over the ranks in the middle of a pass. They stay on the device, in a flat
/// buffer of the transport: on a GPU no CPU waits for them. One sum at a time; in the steady state (lengths
/// seen before) only the result is allocated, from the backend's pool.
class RankSums {
 public:
  /// `transport` must outlive this. Destruction is collective after the first sum.
  explicit RankSums(comm::GradientTransport& transport) : transport_(transport) {}

  /// The sum of every rank's `mine` (float64, of one size on all ranks) in rank order: the same bits on every
  /// rank. Collective. It has the shape of `mine`.
  Tensor sum(kernels::Backend& backend, const Tensor& mine);

  comm::GradientTransport& transport() const noexcept { return transport_; }

 private:
  void reserve(std::int64_t elements);
  /// Elements [r n, (r + 1) n) are rank r's.
  const comm::Slices& slices_of(std::int64_t elements);

  comm::GradientTransport& transport_;
  std::unique_ptr<comm::FlatBuffer> flat_buffer_;  // every rank's vector, one after another
  std::map<std::int64_t, comm::Slices> slices_;    // by n
};

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

Tensor Tape::sum_over_ranks(comm::GradientTransport& transport, const Tensor& mine) {
  if (!rank_sums_ || &rank_sums_->transport() != &transport)
    rank_sums_ = std::make_shared<RankSums>(transport);
  return rank_sums_->sum(backend_, mine);
}

}  // namespace lockstep
