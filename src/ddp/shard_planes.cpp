#include "ddp/shard_planes.h"

#include <algorithm>

#include "lockstep/ops/update.h"

namespace lockstep::ddp {
namespace {

constexpr std::int64_t chunk_elements = ops::AddAlongTree::max_chunk, words_of_chunk = 4;

template <class T>
std::int64_t aligned(std::int64_t elements) {
  constexpr auto unit = static_cast<std::int64_t>(BucketPlan::alignment_bytes / sizeof(T));
  return (elements + unit - 1) / unit * unit;
}

/// Where a tensor's elements are: from `plane` on in plane 0, and from `sum` on in the bucket.
struct Piece {
  std::int64_t plane = 0, sum = 0, elements = 0;
};

Tensor table_of(std::span<const Piece> pieces, kernels::Backend& backend) {
  std::vector<std::int64_t> words;
  for (const Piece& piece : pieces)
    for (std::int64_t first = 0; first < piece.elements; first += chunk_elements)
      words.insert(words.end(), {piece.plane + first, piece.elements, piece.sum + first,
                                 std::min(chunk_elements, piece.elements - first)});
  const auto chunks = static_cast<std::int64_t>(words.size()) / words_of_chunk;
  const Tensor table = Tensor::empty({chunks, words_of_chunk}, DType::int64);
  std::ranges::copy(words, table.data<std::int64_t>());
  return kernels::on_device(table, backend);
}

}  // namespace

ShardPlanes::ShardPlanes(const GradientBuffer& buffer, std::span<Statistic* const> statistics, int shards,
                         kernels::Backend& backend)
    : shards_(shards), backend_(backend) {
  std::int64_t gradients = 0, sums = 0;
  for (const BucketPlan::Gradient& gradient : buffer.plan().gradients()) {
    spans_.push_back({.first = gradients, .elements = gradient.shape.numel()});
    gradients += aligned<float>(gradient.shape.numel());
  }
  for (const Statistic* const statistic : statistics) {
    spans_of_statistics_.push_back({.first = sums, .elements = statistic->elements()});
    sums += aligned<double>(statistic->elements());
  }
  gradients_ = backend.empty({shards * gradients});
  statistics_ = backend.empty({shards * sums}, DType::float64);
  fit(buffer);
}

void ShardPlanes::fit(const GradientBuffer& buffer) {
  const BucketPlan& plan = buffer.plan();
  tables_.clear();
  for (const BucketPlan::Bucket& bucket : plan.buckets()) {
    std::vector<Piece> pieces;
    for (const int index : bucket.gradients) {
      const Span& span = spans_[static_cast<std::size_t>(index)];
      const std::size_t offset_bytes = plan.location(index).offset_bytes - bucket.offset_bytes;
      pieces.push_back({.plane = shards_ * span.first,
                        .sum = static_cast<std::int64_t>(offset_bytes / sizeof(float)),
                        .elements = span.elements});
    }
    tables_.push_back(table_of(pieces, backend_));
  }
  if (spans_of_statistics_.empty()) return;
  std::vector<Piece> pieces;
  for (const Span& span : spans_of_statistics_)
    pieces.push_back({.plane = shards_ * span.first, .sum = span.first, .elements = span.elements});
  tables_.push_back(table_of(pieces, backend_));
}

Tensor ShardPlanes::gradient(const GradientBuffer& buffer, int index, int count) const {
  const Span& span = spans_[static_cast<std::size_t>(index)];
  Shape shape{count};
  for (const std::int64_t extent : buffer.plan().gradients()[static_cast<std::size_t>(index)].shape)
    shape.append(extent);
  return gradients_.rows(shards_ * span.first, shards_ * span.first + count * span.elements).reshape(shape);
}

Tensor ShardPlanes::statistic(int index, int count) const {
  const Span& span = spans_of_statistics_[static_cast<std::size_t>(index)];
  return statistics_.rows(shards_ * span.first, shards_ * span.first + count * span.elements)
      .reshape({count, span.elements});
}

void ShardPlanes::add(int bucket, int count, const Tensor& sum) const {
  const bool is_gradients = sum.dtype() == gradients_.dtype();
  backend_.run(ops::AddAlongTree{.planes = is_gradients ? gradients_ : statistics_,
                                 .sums = sum,
                                 .table = tables_[static_cast<std::size_t>(bucket)],
                                 .parts = count});
}

}  // namespace lockstep::ddp
