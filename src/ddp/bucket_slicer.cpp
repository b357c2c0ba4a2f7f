#include "ddp/bucket_slicer.h"

namespace lockstep::ddp {

BucketSlicer::BucketSlicer(std::span<Param* const> params, comm::Communicator& communicator)
    : sharding_(params, communicator) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i]->trainable) trainable_.push_back(i);
  }
}

std::vector<comm::Slices> BucketSlicer::slices(const BucketPlan& plan) const {
  const auto ranks = static_cast<std::size_t>(sharding_.ranks());
  std::vector<comm::Slices> slices;
  for (const BucketPlan::Bucket& bucket : plan.buckets()) {
    const auto element_bytes = bytes_of(bucket.dtype);
    const auto place_of = [&](std::size_t i) {
      return i == bucket.gradients.size()
                 ? bucket.elements()
                 : static_cast<std::int64_t>(
                       (plan.place(bucket.gradients[i]).offset_bytes - bucket.offset_bytes) / element_bytes);
    };
    std::vector<std::vector<comm::ElementRange>> ranges_of_rank(ranks);
    for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
      const std::size_t param = trainable_[static_cast<std::size_t>(bucket.gradients[i])];
      const std::int64_t place = place_of(i), padded = place_of(i + 1) - place;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        comm::ElementRange range = sharding_.range(param, static_cast<int>(rank));
        if (range.count == 0) continue;
        if (range.end() == sharding_.elements(param)) range.count = padded - range.first;
        ranges_of_rank[rank].push_back({.first = place + range.first, .count = range.count});
      }
    }
    slices.emplace_back(bucket.elements(), ranges_of_rank);
  }
  return slices;
}

}  // namespace lockstep::ddp
