#include "comm/collective_queue.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::comm {

CollectiveQueue::CollectiveQueue(MPI_Comm comm, int rank, const Topology& topology,
                                 const NodeControl& control, std::size_t chunk_bytes, int first_tag)
    : topology_(topology), first_tag_(first_tag), waiting_(256) {
  context_.comm = comm;
  context_.rank = rank;
  context_.size = static_cast<int>(topology.node_of_rank.size());
  context_.node = topology.node_of_rank[static_cast<std::size_t>(rank)];
  context_.control = &control;
  context_.node_of_rank = topology.node_of_rank;
  context_.local_rank_of_rank = topology.local_rank_of_rank;
  context_.ranks_of_node.resize(static_cast<std::size_t>(topology.nodes()));
  for (int other = 0; other < context_.size; ++other) {
    const int node = topology.node_of_rank[static_cast<std::size_t>(other)];
    context_.ranks_of_node[static_cast<std::size_t>(node)].push_back(other);
  }
  context_.chunk_bytes = chunk_bytes;
  for (std::uint64_t i = 0; i < max_active; ++i) active_.emplace_back(context_);
}

const SumPlan& CollectiveQueue::plan_for(const ShardMap& map) {
  for (const auto& plan : plans_) {
    if (plan->shards == map.shards()) return *plan;
  }
  plans_.push_back(std::make_unique<SumPlan>(map, topology_.node_of_rank, context_.node));
  scratch_.blocks.reserve(plans_.back()->scratch_bytes);
  return *plans_.back();
}

Work CollectiveQueue::start(Collective::Kind kind, const TreeSum& sum, const NodeBuffer& flat_buffer,
                            const ShardMap* map, const Slices& slices) {
  const SumPlan* plan = map ? &plan_for(*map) : nullptr;
  const int accumulators = plan ? plan->accumulators_of_rank[static_cast<std::size_t>(context_.rank)] : 1;
  if (flat_buffer.accumulators() < accumulators) {
    throw UsageError("tree sum on rank {}: its shards need {} accumulators, the flat buffer has {}",
                     context_.rank, accumulators, flat_buffer.accumulators());
  }
  if (started_ - activated_ == waiting_.size()) {
    std::vector<ActiveCollective::Request> larger(2 * waiting_.size());
    for (Work work = activated_ + 1; work <= started_; ++work)
      larger[work % larger.size()] = std::move(waiting(work));
    waiting_.swap(larger);
  }
  ++started_;
  waiting(started_) = {kind, sum, &flat_buffer, plan, slices};
  return started_;
}

void CollectiveQueue::activate(Work work) {
  ActiveCollective& next = active(work);
  ActiveCollective::Request& request = waiting(work);
  const Collective collective = request.collective();
  next.begin(work, std::move(request), first_tag_ + 2 * static_cast<int>(work % max_active));
  context_.control->publish(work, collective);
  const ActiveCollective::Room room = next.room();
  room_.chunks = std::max(room_.chunks, room.chunks);
  room_.messages = std::max(room_.messages, room.messages);
  room_.buffer_bytes = std::max(room_.buffer_bytes, room.buffer_bytes);
  // Every entry of the ring gets this capacity now or when it becomes idle, so that a later step allocates
  // nothing, whichever entry its largest collective uses.
  for (Work idle = work + 1; idle < completed_ + 1 + max_active; ++idle) active(idle).reserve(room_);
}

void CollectiveQueue::progress() {
  bool moved = completed_ < started_;
  while (moved) {
    moved = false;
    while (activated_ < started_ && activated_ - completed_ < max_active) activate(++activated_);
    for (Work work = added_ + 1; work <= activated_; ++work) moved = active(work).advance(scratch_) || moved;
    const Work added_before = added_;
    while (added_ < activated_ && active(added_ + 1).finished()) ++added_;
    if (added_ > added_before) context_.control->mine().added.store(added_, std::memory_order_release);
    while (completed_ < added_ && context_.control->all_reached(&NodeFlags::added, completed_ + 1)) {
      ++completed_;
      active(completed_).reserve(room_);
      moved = true;
    }
  }
}

}  // namespace lockstep::comm
