#include "ddp/shards_at_once.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::ddp {

std::string why_single(const Options& options, bool layers_meet, bool joins) {
  if (options.micro_batches > 1) return "train.micro_batches cuts shards for less memory";
  if (layers_meet) return "layers communicate in the passes (model.batch_norm = sync)";
  if (options.hook) return "a hook sends gradients";
  if (!joins) return "the shards of the batch are no lockstep::Batch";
  return {};
}

int most_at_once(const Reducer& reducer, std::size_t bytes_of_one) {
  // A quarter stays free for what allocates later.
  const std::size_t free = reducer.device().free_bytes() / 4 * 3 + bytes_of_one,
                    bytes = bytes_of_one + reducer.buffer().accumulation_buffer_bytes();
  int most = 1;
  while (2 * most <= reducer.schedule().shards() && 2 * static_cast<std::size_t>(most) * bytes <= free)
    most *= 2;
  return most;
}

bool joins(const Batch& a, const Batch& b, const Device& device) {
  if (a.is_ragged() || b.is_ragged() || !std::ranges::equal(a.names(), b.names())) return false;
  return std::ranges::equal(a.tensors(), b.tensors(), [&](const Tensor& x, const Tensor& y) {
    return x.shape() == y.shape() && x.shape().rank() > 0 && x.dtype() == y.dtype() && x.device() == device &&
           y.device() == device && x.channel_block() == 1 && y.channel_block() == 1;
  });
}

Batch joined_rows(std::span<const Batch> batches, kernels::Backend& backend) {
  for (std::size_t i = 1; i < batches.size(); ++i)
    if (batches[i].index != batches[i - 1].index + 1)
      throw UsageError("the batch of a step holds shard {} after shard {}", batches[i].index,
                       batches[i - 1].index);
  if (batches.size() == 1) return batches.front();
  std::size_t field = 0;
  return batches.front().map([&](const Tensor& first) {
    const auto of = [&, field](std::size_t i) { return batches[i].tensors()[field]; };
    ++field;
    std::int64_t rows = 0;
    bool adjacent = true;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      rows += of(i).size(0);
      adjacent =
          adjacent && (i == 0 || of(i).raw() == static_cast<std::byte*>(of(i - 1).raw()) + of(i - 1).bytes());
    }
    const Shape shape = first.shape().with(0, rows);
    if (adjacent) return Tensor::view(first.raw(), shape, first.dtype(), first.device());
    const Tensor joined = backend.empty(shape, first.dtype());
    rows = 0;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const std::int64_t begin = std::exchange(rows, rows + of(i).size(0));
      backend.copy(of(i), joined.rows(begin, rows));
    }
    return joined;
  });
}

SumDigests::SumDigests(const Reducer& reducer, const StepHeader& header) : reducer_(reducer) {
  kernels::Backend& backend = reducer.device();
  const auto add = [&](const Tensor& sum) {
    const Tensor here = kernels::on_cpu(sum, &backend);
    digests_.push_back(XXH3_64bits(here.raw(), here.bytes()));
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(here.raw()), here.bytes());
    any_zero_ = any_zero_ || std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{}; });
  };
  const GradientBuffer& buffer = reducer.buffer();
  const int subtrees = reducer.schedule().subtrees();
  for (int subtree = 0; subtree < subtrees; ++subtree) {
    for (int i = 0; i < static_cast<int>(reducer.params().size()); ++i) add(buffer.gradient(i, subtree));
    for (int i = 0; i < static_cast<int>(reducer.statistics().size()); ++i) add(buffer.statistic(i, subtree));
  }
  add(header.partial_losses().rows(0, subtrees));
}

std::string SumDigests::difference(const SumDigests& of_several) const {
  const auto differing = std::ranges::mismatch(digests_, of_several.digests_).in1;
  if (differing == digests_.end()) return {};
  const auto at = static_cast<std::size_t>(differing - digests_.begin());
  if (at + 1 == digests_.size()) return "the losses differ from those of single shards";
  const std::size_t params = reducer_.params().size(), item = at % (params + reducer_.statistics().size());
  return item < params ? fmt::format("the gradient of {} differs from that of single shards",
                                     reducer_.params()[item]->name)
                       : fmt::format("the statistic of {} differs from that of single shards",
                                     reducer_.statistics()[item - params]->name());
}

}  // namespace lockstep::ddp
