#include "ddp/step_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "lockstep/base/error.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/update.h"

namespace lockstep::ddp {
namespace {

// Offsets in a record, in words.
constexpr std::size_t step_at = 0, plan_hash_at = 1, flags_at = 2, compute_at = 3, losses_at = 4;

// In the word of flags: the requests of this rank, and whether it failed.
constexpr std::uint64_t failed_flag = std::uint64_t{1} << 63;
constexpr bool Requests::*const request_flags[] = {&Requests::stop_preempted, &Requests::stop_user,
                                                   &Requests::checkpoint, &Requests::saving,
                                                   &Requests::save_failed};

/// Of ops::AddAlongTree, for planes [shards, 2].
Tensor table_of_losses() {
  const Tensor table = Tensor::empty({1, 4}, DType::int64);
  std::ranges::copy(std::array<std::int64_t, 4>{0, 2, 0, 2}, table.data<std::int64_t>());
  return table;
}

}  // namespace

std::uint64_t Requests::to_bits() const {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < std::size(request_flags); ++i)
    bits |= this->*request_flags[i] ? std::uint64_t{1} << i : 0;
  return bits;
}

Requests Requests::from_bits(std::uint64_t bits) {
  Requests requests;
  for (std::size_t i = 0; i < std::size(request_flags); ++i)
    requests.*request_flags[i] = (bits >> i & 1) != 0;
  return requests;
}

StepHeader::StepHeader(const comm::ShardMap& map, const AccumulationSchedule& schedule, std::size_t items,
                       kernels::Backend& backend)
    : map_(map),
      schedule_(schedule),
      words_((items + 63) / 64),
      backend_(backend),
      partial_(backend.empty({schedule.buffers(), 2}, DType::float64)),
      read_(static_cast<std::size_t>(schedule.subtrees())) {
  for (int rank = 0; rank < map.ranks(); ++rank) {
    subtrees_.push_back(map.subtrees(rank));
    partials_ = std::max(partials_, subtrees_.back().size());
  }
  record_words_ = losses_at + 2 * partials_ + 2 * words_;
  mine_.resize(record_words_);
  all_.resize(record_words_ * static_cast<std::size_t>(map.ranks()));
}

std::span<const StepHeader::Word> StepHeader::record(int rank) const {
  return std::span(all_).subspan(static_cast<std::size_t>(rank) * record_words_, record_words_);
}

void StepHeader::begin(std::uint64_t step) {
  step_ = step;
  backend_.fill(partial_, 0);
  std::fill(read_.begin(), read_.end(), ops::CountedSum{});
}

Tensor StepHeader::partial(int buffer) const { return partial_.rows(buffer, buffer + 1).reshape({2}); }

void StepHeader::add_loss(const AccumulationSchedule::Group& group, bool first_micro_batch,
                          const Tensor& loss) {
  const Tensor sum = partial(group.buffer);
  if (loss && group.count > 1) {  // in one pass
    if (!table_) table_ = kernels::on_device(table_of_losses(), backend_);
    return backend_.run(
        ops::AddAlongTree{.planes = loss, .sums = sum, .table = table_, .parts = group.count});
  }
  if (first_micro_batch && !loss) return backend_.fill(sum, 0);
  if (loss) first_micro_batch ? backend_.copy(loss, sum) : backend_.run(ops::Accumulate{sum, loss});
}

void StepHeader::end_group(const AccumulationSchedule::Group& group) {
  for (int p = group.buffer; p > group.buffer - group.folds; --p)
    backend_.run(ops::Accumulate{partial(p - 1), partial(p)});
}

kernels::Transfer StepHeader::losses() {
  const auto subtrees = static_cast<std::int64_t>(read_.size());
  return {partial_.rows(0, subtrees), Tensor::view(read_.data(), {subtrees, 2}, DType::float64)};
}

void StepHeader::exchange(comm::HostGroup& group, std::uint64_t plan_hash, const Requests& requests,
                          bool failed, double compute_ms, const Usage& usage) {
  std::fill(mine_.begin(), mine_.end(), 0);
  mine_[step_at] = step_;
  mine_[plan_hash_at] = plan_hash;
  mine_[flags_at] = requests.to_bits() | (failed ? failed_flag : 0);
  mine_[compute_at] = std::bit_cast<Word>(compute_ms);
  for (std::size_t i = 0; i < static_cast<std::size_t>(schedule_.subtrees()); ++i) {
    mine_[losses_at + 2 * i] = std::bit_cast<Word>(read_[i].sum);
    mine_[losses_at + 2 * i + 1] = std::bit_cast<Word>(read_[i].count);
  }
  Word* const written = mine_.data() + losses_at + 2 * partials_;
  Word* const missed = written + words_;
  for (int shard = 0; shard < schedule_.shards(); ++shard) {
    for (std::size_t w = 0; w < words_; ++w) {
      written[w] |= usage.row(shard)[w];
      missed[w] |= ~usage.row(shard)[w];
    }
  }
  group.all_gather(mine_.data(), mine_.size() * sizeof(Word), all_.data());
}

StepHeader::Word StepHeader::of_any(std::size_t word) const {
  Word bits = 0;
  for (int rank = 0; rank < map_.ranks(); ++rank) bits |= record(rank)[word];
  return bits;
}

bool StepHeader::any_failed() const { return (of_any(flags_at) & failed_flag) != 0; }

void StepHeader::check_agreement() const {
  for (int rank = 1; rank < map_.ranks(); ++rank) {
    if (record(rank)[step_at] != record(0)[step_at])
      throw UsageError("rank {} is at step {} but rank 0 at step {}: every rank must take the same steps",
                       rank, record(rank)[step_at], record(0)[step_at]);
    if (record(rank)[plan_hash_at] != record(0)[plan_hash_at])
      throw TrainingError("rank {} holds bucket plan {:016x} but rank 0 {:016x}: the replicas differ", rank,
                          record(rank)[plan_hash_at], record(0)[plan_hash_at]);
  }
}

ops::CountedSum StepHeader::loss() const { return loss_of({0, map_.shards()}); }

ops::CountedSum StepHeader::loss_of(comm::ShardRange node) const {
  const int owner = map_.owner(node.first);
  const auto& subtrees = subtrees_[static_cast<std::size_t>(owner)];
  const auto found = std::find(subtrees.begin(), subtrees.end(), node);
  if (found != subtrees.end()) {
    const auto at = losses_at + 2 * static_cast<std::size_t>(found - subtrees.begin());
    return {std::bit_cast<double>(record(owner)[at]), std::bit_cast<double>(record(owner)[at + 1])};
  }
  const int left = comm::left_leaves(node.count);
  const ops::CountedSum a = loss_of({node.first, left});
  const ops::CountedSum b = loss_of({node.first + left, node.count - left});
  return {a.sum + b.sum, a.count + b.count};
}

std::optional<comm::ShardRange> StepHeader::shards_not_finite() const {
  std::optional<comm::ShardRange> first;
  bool others = false;
  for (int rank = 0; rank < map_.ranks(); ++rank) {
    const auto& subtrees = subtrees_[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < subtrees.size(); ++i) {
      const bool finite = std::isfinite(std::bit_cast<double>(record(rank)[losses_at + 2 * i]));
      others = others || finite;
      if (!finite && !first) first = subtrees[i];
    }
  }
  return others ? first : std::nullopt;
}

Requests StepHeader::requests() const { return Requests::from_bits(of_any(flags_at)); }

double StepHeader::compute_ms(int rank) const { return std::bit_cast<double>(record(rank)[compute_at]); }

bool StepHeader::written(std::size_t item) const {
  return of_any(losses_at + 2 * partials_ + item / 64) >> item % 64 & 1;
}

bool StepHeader::missed(std::size_t item) const {
  return of_any(losses_at + 2 * partials_ + words_ + item / 64) >> item % 64 & 1;
}

}  // namespace lockstep::ddp
