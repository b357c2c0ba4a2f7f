// Reading the tensors of a checkpoint: each block is read and digested by one rank, which gives it to the
// ranks that need it.
#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "base/files.h"
#include "checkpoint/blocks.h"
#include "checkpoint/elements.h"
#include "checkpoint/load_plan.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::checkpoint {
namespace {

/// Bytes [begin, end) of a stored tensor.
struct ByteRange {
  std::uint64_t begin = 0, end = 0;

  std::uint64_t size() const { return end - begin; }
  ByteRange within(const ByteRange& other) const {
    const std::uint64_t first = std::max(begin, other.begin);
    return {first, std::max(first, std::min(end, other.end))};
  }
};

/// A tensor of the file and its target on this rank.
struct SharedTensor {
  const TensorEntry* entry;
  const NamedTensor* target;
  bool has_owners;  ///< each rank needs its own part only; otherwise each rank gets the whole tensor
  ByteRange mine;   ///< what this rank keeps

  ByteRange part_of(int rank) const {
    if (!has_owners) return {0, entry->bytes};
    return in_file(target->part->partition->range(target->part->param, rank));
  }
  ByteRange in_file(comm::ElementRange elements) const {
    const std::size_t bytes = bytes_of(entry->dtype);
    return {static_cast<std::uint64_t>(elements.first) * bytes,
            static_cast<std::uint64_t>(elements.end()) * bytes};
  }
  /// True if bytes of the file are the target's elements.
  bool is_target_layout() const {
    return !target->part && entry->dtype == target->value.dtype() && target->value.device() == Device::cpu();
  }
};

std::vector<SharedTensor> tensors_of(const FileIndex& index, const LoadPlan& plan,
                                     const comm::HostGroup& group) {
  std::vector<SharedTensor> tensors;
  for (const Match::Pair& pair : plan.pairs) {
    SharedTensor tensor{&index.tensors[pair.stored], &pair.target, false, {}};
    tensor.mine = {0, tensor.entry->bytes};
    if (const auto& part = pair.target.part) {
      const comm::ElementRange own = part->partition->mine(part->param);
      tensor.mine = tensor.in_file(own);
      tensor.has_owners = group.size() > 1 && part->partition->ranks() == group.size() &&
                          part->partition->range(part->param, group.rank()) == own;
    }
    tensors.push_back(tensor);
  }
  return tensors;
}

/// Equal on ranks that read the same tensors, and divide them in the same way.
std::vector<std::uint64_t> facts_of(const FileIndex& index, const LoadPlan& plan,
                                    const comm::HostGroup& group) {
  std::vector<std::uint64_t> facts{index.digest};
  for (const SharedTensor& tensor : tensors_of(index, plan, group)) {
    facts.push_back(static_cast<std::uint64_t>(tensor.entry - index.tensors.data()));
    for (int rank = 0; tensor.has_owners && rank < group.size(); ++rank)
      facts.push_back(tensor.part_of(rank).end);
  }
  return facts;
}

/// A block of a tensor, or all of an empty tensor.
struct SharedBlock {
  std::size_t tensor;
  ByteRange range;
  int reader = 0;
  ByteRange own = {};         ///< what this rank gets of it
  std::byte* data = nullptr;  ///< of `own`
};

/// Ranks share the blocks of a round, and exchange them before the next one. So a rank needs little memory
/// besides its tensors, and an error ends the reading on all ranks in the same round.
class SharedRead {
 public:
  SharedRead(const FileIndex& index, const LoadPlan& plan, comm::HostGroup& world);
  void run();

 private:
  static constexpr std::uint64_t round_bytes = 16 * block_bytes;

  bool by_owner(const SharedBlock& block) const { return tensors_[block.tensor].has_owners; }
  std::byte* memory_of(std::uint64_t bytes) {
    memory_.resize(std::max<std::size_t>(memory_.size(), bytes));
    return memory_.data();
  }
  void begin_round();
  void read_whole_blocks();
  void read_parts();
  void read(const SharedBlock& block, std::byte* data);
  void exchange_whole_blocks();
  void exchange_parts();
  void gather_digests();
  void finish_round();
  void keep(const SharedBlock& block);

  const FileIndex& index_;
  kernels::Backend* backend_;
  comm::HostGroup& world_;
  std::vector<SharedTensor> tensors_;
  std::vector<SharedBlock> blocks_;
  std::span<SharedBlock> rest_;                   // of later rounds
  std::span<SharedBlock> round_;                  // ascending by reader
  std::vector<std::byte> memory_;                 // only grows
  std::vector<std::byte> parts_;                  // what this rank has read, by owner; only grows
  std::vector<std::span<std::byte>> to_rank_;     // in parts_
  std::vector<std::uint64_t> digests_;            // of this rank's blocks of the round, then of all
  std::vector<std::uint64_t> digests_of_tensor_;  // of the blocks finished so far
  bool in_range_ = true;                          // the tensor's numbers so far
};

SharedRead::SharedRead(const FileIndex& index, const LoadPlan& plan, comm::HostGroup& world)
    : index_(index),
      backend_(plan.state_dict.backend),
      world_(world),
      tensors_(tensors_of(index, plan, world)) {
  for (const bool has_owners : {false, true}) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      if (tensors_[t].has_owners != has_owners) continue;
      const std::uint64_t bytes = tensors_[t].entry->bytes;
      for (std::uint64_t block = 0; block < std::max<std::uint64_t>(1, blocks_of(bytes)); ++block)
        blocks_.push_back({t, {block * block_bytes, end_of_block(block, bytes)}});
    }
  }
  rest_ = blocks_;
}

void SharedRead::run() {
  while (!rest_.empty()) {
    comm::run_on_all(world_, [&] {
      finish_round();
      begin_round();
      by_owner(round_.front()) ? read_parts() : read_whole_blocks();
    });
    if (world_.size() == 1) continue;
    by_owner(round_.front()) ? exchange_parts() : exchange_whole_blocks();
    gather_digests();
  }
  comm::run_on_all(world_, [&] { finish_round(); });
}

/// Takes the blocks of a round, and divides them by bytes. A large tensor begins a round, so that most of its
/// blocks are read and received in the tensor's own memory. A rank alone takes single blocks for that.
void SharedRead::begin_round() {
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  for (; count < rest_.size(); bytes += rest_[count++].range.size()) {
    const SharedBlock& block = rest_[count];
    const bool begins_large = block.range.begin == 0 && tensors_[block.tensor].entry->bytes > round_bytes;
    if (count > 0 && (world_.size() == 1 || begins_large || bytes + block.range.size() > round_bytes ||
                      by_owner(block) != by_owner(rest_[0])))
      break;
  }
  round_ = rest_.first(count);
  rest_ = rest_.subspan(count);
  const auto ranks = static_cast<std::uint64_t>(world_.size());
  std::uint64_t before = 0;
  for (SharedBlock& block : round_) {
    // An empty tensor at the end is the last rank's.
    block.reader = static_cast<int>(std::min(ranks - 1, before * ranks / std::max<std::uint64_t>(bytes, 1)));
    before += block.range.size();
  }
  digests_.clear();
}

void SharedRead::read(const SharedBlock& block, std::byte* data) {
  index_.file->read_at(tensors_[block.tensor].entry->offset + block.range.begin, data, block.range.size());
  digests_.push_back(digest_of(data, block.range.size()));
}

void SharedRead::read_whole_blocks() {
  const SharedBlock &first = round_.front(), &last = round_.back();
  const SharedTensor& tensor = tensors_[first.tensor];
  std::byte* to = nullptr;
  if (first.tensor == last.tensor && tensor.is_target_layout()) {
    to = static_cast<std::byte*>(tensor.target->value.raw()) + first.range.begin;
  } else {
    std::uint64_t bytes = 0;
    for (const SharedBlock& block : round_) bytes += block.range.size();
    to = memory_of(bytes);
  }
  for (SharedBlock& block : round_) {
    block.own = block.range;
    block.data = to;
    if (block.reader == world_.rank()) read(block, to);
    to += block.range.size();
  }
}

void SharedRead::read_parts() {
  const auto for_parts = [&](const SharedBlock& block, const auto& use) {
    for (int rank = 0; rank < world_.size(); ++rank)
      use(static_cast<std::size_t>(rank), block.range.within(tensors_[block.tensor].part_of(rank)));
  };
  std::vector<std::size_t> sizes(static_cast<std::size_t>(world_.size()));
  std::uint64_t bytes = 0;
  for (SharedBlock& block : round_) {
    block.own = block.range.within(tensors_[block.tensor].mine);
    bytes += block.own.size();
    if (block.reader == world_.rank())
      for_parts(block, [&](std::size_t rank, const ByteRange& part) { sizes[rank] += part.size(); });
  }
  parts_.resize(std::max(parts_.size(), std::accumulate(sizes.begin(), sizes.end(), std::size_t{0})));
  to_rank_.clear();
  for (std::byte* of_rank = parts_.data(); const std::size_t size : sizes) {
    to_rank_.push_back({of_rank, size});
    of_rank += size;
  }
  std::vector<std::size_t> filled(sizes.size());
  std::byte* const data = memory_of(block_bytes);
  for (const SharedBlock& block : round_) {
    if (block.reader != world_.rank()) continue;
    read(block, data);
    for_parts(block, [&](std::size_t rank, const ByteRange& part) {
      std::copy_n(data + (part.begin - block.range.begin), part.size(), to_rank_[rank].data() + filled[rank]);
      filled[rank] += part.size();
    });
  }
  std::byte* to = memory_of(bytes);
  for (SharedBlock& block : round_) {
    block.data = to;
    to += block.own.size();
  }
}

void SharedRead::exchange_whole_blocks() {
  std::vector<std::size_t> bytes_of_rank(static_cast<std::size_t>(world_.size()));
  std::vector<std::byte*> data_of_rank(bytes_of_rank.size(), round_.front().data);
  for (auto block = round_.rbegin(); block != round_.rend(); ++block) {
    bytes_of_rank[static_cast<std::size_t>(block->reader)] += block->range.size();
    data_of_rank[static_cast<std::size_t>(block->reader)] = block->data;
  }
  // MPI may send a gather's messages from each rank to each other, a broadcast's along a tree.
  constexpr int max_ranks_of_gather = 16;
  if (world_.size() <= max_ranks_of_gather)
    return world_.all_gather_unequal(data_of_rank[static_cast<std::size_t>(world_.rank())], bytes_of_rank,
                                     round_.front().data);
  for (int rank = 0; rank < world_.size(); ++rank) {
    const std::size_t bytes = bytes_of_rank[static_cast<std::size_t>(rank)];
    if (bytes > 0) world_.broadcast(data_of_rank[static_cast<std::size_t>(rank)], bytes, rank);
  }
}

void SharedRead::exchange_parts() {
  const std::vector<std::span<const std::byte>> to_rank(to_rank_.begin(), to_rank_.end());
  std::vector<std::span<std::byte>> from_rank(to_rank.size());
  for (const SharedBlock& block : round_) {
    auto& from = from_rank[static_cast<std::size_t>(block.reader)];
    from = {from.empty() ? block.data : from.data(), from.size() + block.own.size()};
  }
  world_.all_to_all(to_rank, from_rank);
}

void SharedRead::gather_digests() {
  std::vector<std::size_t> blocks_of_rank(static_cast<std::size_t>(world_.size()));
  for (const SharedBlock& block : round_) ++blocks_of_rank[static_cast<std::size_t>(block.reader)];
  const std::size_t most = std::ranges::max(blocks_of_rank);
  digests_.resize(most);
  std::vector<std::uint64_t> padded(most * blocks_of_rank.size());
  world_.all_gather(digests_.data(), most * sizeof(std::uint64_t), padded.data());
  digests_.clear();
  for (std::size_t rank = 0; rank < blocks_of_rank.size(); ++rank) {
    const auto of_rank = padded.begin() + static_cast<std::ptrdiff_t>(rank * most);
    digests_.insert(digests_.end(), of_rank, of_rank + static_cast<std::ptrdiff_t>(blocks_of_rank[rank]));
  }
}

void SharedRead::finish_round() {
  for (std::size_t b = 0; b < round_.size(); ++b) {
    const SharedBlock& block = round_[b];
    const TensorEntry& entry = *tensors_[block.tensor].entry;
    if (block.range.begin == 0) {
      digests_of_tensor_.clear();
      in_range_ = true;
    }
    if (block.range.size() > 0) digests_of_tensor_.push_back(digests_[b]);
    keep(block);
    if (block.range.end < entry.bytes) continue;
    if (digest_of_blocks(digests_of_tensor_) != entry.digest)
      throw DataError("{}: {} is damaged: its digest does not match", index_.file->path(), entry.path());
    if (!in_range_)
      throw UsageError("{}: {} has numbers out of the range of {}", index_.file->path(), entry.path(),
                       to_string(tensors_[block.tensor].target->value.dtype()));
  }
  round_ = {};
}

/// Casts and copies what this rank needs of a block to its target.
void SharedRead::keep(const SharedBlock& block) {
  const SharedTensor& tensor = tensors_[block.tensor];
  const ByteRange bytes = block.own.within(tensor.mine);
  if (bytes.size() == 0) return;
  const Tensor& target = tensor.target->value;
  const DType stored = tensor.entry->dtype;
  const auto element = [&](std::uint64_t byte) {
    return static_cast<std::int64_t>((byte - tensor.mine.begin) / bytes_of(stored));
  };
  const Tensor to = target.reshape({target.numel()}).rows(element(bytes.begin), element(bytes.end));
  std::byte* const data = block.data + (bytes.begin - block.own.begin);
  if (stored == target.dtype())
    return kernels::transfer(Tensor::view(data, to.shape(), stored), to, backend_);
  const Tensor here = kernels::empty_on_cpu(to);
  in_range_ &= cast_elements(stored, data, to.dtype(), static_cast<std::byte*>(here.raw()), to.numel());
  kernels::transfer(here, to, backend_);
}

}  // namespace

void read_together(std::span<const std::uint64_t> facts, comm::HostGroup& world,
                   const std::function<void(comm::HostGroup&)>& read) {
  const std::uint64_t digest = digest_of(facts.data(), facts.size_bytes());
  if (std::ranges::count(comm::all_gather_values(world, digest), digest) == world.size()) return read(world);
  comm::run_on_all(world, [&] { read(*comm::make_self_communicator()); });
}

void read_tensors(const FileIndex& index, const LoadPlan& plan, comm::HostGroup& world) {
  read_together(facts_of(index, plan, world), world, [&](comm::HostGroup& group) {
    std::optional<SharedRead> read;
    comm::run_on_all(group, [&] { read.emplace(index, plan, group); });
    read->run();
  });
}

}  // namespace lockstep::checkpoint
