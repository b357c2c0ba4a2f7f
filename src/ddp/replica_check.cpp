#include "ddp/replica_check.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ddp/model_agreement.h"
#include "kernels/transfer.h"
#include "lockstep/base/error.h"

namespace lockstep::ddp {
namespace {

constexpr std::size_t most_tensors_named = 4;

using Digest = std::uint64_t;

struct Leaf {
  const std::string* name;
  const Tensor* value;
};

Digest digest_of(const Leaf& leaf, kernels::Backend& backend) {
  const Tensor here = kernels::on_cpu(*leaf.value, &backend);
  return XXH3_64bits(here.raw(), here.bytes());
}

/// What each digest covers: the parameters of each bucket, then everything else.
std::vector<std::vector<Leaf>> groups_of(const BucketPlan& plan, std::span<Param* const> trainable,
                                         const ModelState& model) {
  std::vector<std::vector<Leaf>> groups;
  for (const BucketPlan::Bucket& bucket : plan.buckets()) {
    std::vector<Leaf>& group = groups.emplace_back();
    for (const int index : bucket.gradients) {
      const Param& param = *trainable[static_cast<std::size_t>(index)];
      group.push_back({&param.name, &param.value});
    }
  }
  std::vector<Leaf>& others = groups.emplace_back();
  for (const Param* const param : model.params) {
    if (std::find(trainable.begin(), trainable.end(), param) == trainable.end())
      others.push_back({&param->name, &param->value});
  }
  for (const Buffer* const buffer : model.buffers) others.push_back({&buffer->name, &buffer->value});
  return groups;
}

/// [rank][item]
std::vector<Digest> gather(comm::Communicator& communicator, const std::vector<Digest>& mine) {
  std::vector<Digest> all(mine.size() * static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(mine.data(), mine.size() * sizeof(Digest), all.data());
  return all;
}

/// The ranks whose digest of `item` is not that of most ranks; of rank 0 if no value has a majority.
std::vector<int> ranks_apart(const std::vector<Digest>& all, std::size_t items, std::size_t item) {
  const std::size_t ranks = all.size() / items;
  const auto of = [&](std::size_t rank) { return all[rank * items + item]; };
  Digest usual = of(0);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::size_t equal = 0;
    for (std::size_t other = 0; other < ranks; ++other) equal += of(other) == of(rank);
    if (2 * equal > ranks) usual = of(rank);
  }
  std::vector<int> apart;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (of(rank) != usual) apart.push_back(static_cast<int>(rank));
  }
  return apart;
}

}  // namespace

void check_replicas(comm::Communicator& communicator, kernels::Backend& backend, const BucketPlan& plan,
                    std::span<Param* const> trainable, const ModelState& model) {
  for (const Param* const param : model.params) param->settle();
  const std::vector<std::vector<Leaf>> groups = groups_of(plan, trainable, model);
  std::vector<Digest> mine;
  for (const std::vector<Leaf>& group : groups) {
    std::vector<Digest> digests;
    for (const Leaf& leaf : group) digests.push_back(digest_of(leaf, backend));
    mine.push_back(XXH3_64bits(digests.data(), digests.size() * sizeof(Digest)));
  }
  const std::vector<Digest> all = gather(communicator, mine);

  std::vector<Leaf> suspects;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    if (!ranks_apart(all, groups.size(), group).empty())
      suspects.insert(suspects.end(), groups[group].begin(), groups[group].end());
  }
  if (suspects.empty()) return;

  mine.clear();
  for (const Leaf& leaf : suspects) mine.push_back(digest_of(leaf, backend));
  const std::vector<Digest> of_each = gather(communicator, mine);
  std::string text;
  std::size_t differing = 0;
  for (std::size_t item = 0; item < suspects.size(); ++item) {
    const std::vector<int> apart = ranks_apart(of_each, suspects.size(), item);
    if (apart.empty()) continue;
    if (++differing > most_tensors_named) continue;
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", *suspects[item].name, ranks_text(apart));
  }
  if (differing > most_tensors_named)
    text += fmt::format("; and {} more tensors", differing - most_tensors_named);
  throw TrainingError(
      "the replicas differ: {}; resume from the last checkpoint, and if it happens again look for what the "
      "ranks do differently, or for a machine with faulty memory",
      text);
}

}  // namespace lockstep::ddp
