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
  plans_.push_back(std::make_unique<SumPlan>(make_sum_plan(map, topology_, context_.node)));
  scratch_.blocks.reserve(plans_.back()->scratch_bytes);
  return *plans_.back();
}

Ticket CollectiveQueue::start(Collective::Kind kind, const TreeSum& sum, const NodeArena& arena,
                              const ShardMap* map, const Slices& slices) {
  const SumPlan* plan = map ? &plan_for(*map) : nullptr;
  const int planes = plan ? plan->planes_of_rank[static_cast<std::size_t>(context_.rank)] : 1;
  if (arena.planes() < planes) {
    throw UsageError("tree sum on rank {}: its shards need {} planes, the arena has {}", context_.rank,
                     planes, arena.planes());
  }
  if (started_ - activated_ == waiting_.size()) {
    std::vector<ActiveCollective::Request> larger(2 * waiting_.size());
    for (Ticket ticket = activated_ + 1; ticket <= started_; ++ticket)
      larger[ticket % larger.size()] = std::move(waiting(ticket));
    waiting_.swap(larger);
  }
  ++started_;
  waiting(started_) = {kind, sum, &arena, plan, slices};
  return started_;
}

void CollectiveQueue::activate(Ticket ticket) {
  ActiveCollective& next = active(ticket);
  ActiveCollective::Request& request = waiting(ticket);
  const Collective collective = request.collective();
  next.begin(ticket, std::move(request), first_tag_ + 2 * static_cast<int>(ticket % max_active));
  context_.control->publish(ticket, collective);
  const ActiveCollective::Room room = next.room();
  room_.chunks = std::max(room_.chunks, room.chunks);
  room_.messages = std::max(room_.messages, room.messages);
  room_.buffer_bytes = std::max(room_.buffer_bytes, room.buffer_bytes);
  // Every entry of the ring gets this capacity now or when it becomes idle, so that a later step allocates
  // nothing, whichever entry its largest collective uses.
  for (Ticket idle = ticket + 1; idle < completed_ + 1 + max_active; ++idle) active(idle).reserve(room_);
}

void CollectiveQueue::progress() {
  bool moved = completed_ < started_;
  while (moved) {
    moved = false;
    while (activated_ < started_ && activated_ - completed_ < max_active) activate(++activated_);
    for (Ticket ticket = added_ + 1; ticket <= activated_; ++ticket)
      moved = active(ticket).advance(scratch_) || moved;
    const Ticket added_before = added_;
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
