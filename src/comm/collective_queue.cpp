#include "comm/collective_queue.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "comm/cpu_sums.h"
#include "comm/mpi_calls.h"

namespace lockstep::comm {
namespace {

constexpr std::int64_t chunk_unit = 16;  // elements; chunks of a long range start at whole cache lines

}  // namespace

void Messages::begin(std::uint64_t work) {
  work_ = work;
  requests_.clear();
  messages_.clear();
}

void Messages::reserve(std::size_t messages) {
  requests_.reserve(messages);
  messages_.reserve(messages);
  ended_.resize(std::max(ended_.size(), messages));
  statuses_.resize(ended_.size());
  chunks_.resize(ended_.size());
}

std::size_t Messages::add(std::size_t messages, std::size_t chunk) {
  const std::size_t first = requests_.size();
  requests_.resize(first + messages, MPI_REQUEST_NULL);
  messages_.resize(first + messages, {chunk, 0});
  return first;
}

void Messages::send(std::size_t message, const std::byte* data, std::size_t bytes, int to, int tag) {
  check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, comm_, &requests_[message]),
            "MPI_Isend of a tree sum", rank_);
  messages_[message].received_bytes = 0;
  ++in_flight_;
}

void Messages::receive(std::size_t message, std::byte* data, std::size_t bytes, int from, int tag) {
  check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, comm_, &requests_[message]),
            "MPI_Irecv of a tree sum", rank_);
  messages_[message].received_bytes = bytes;
  ++in_flight_;
}

std::span<const std::size_t> Messages::collect() {
  if (in_flight_ == 0) return {};
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, ended_.data(),
                                statuses_.data());
  if (code != MPI_ERR_IN_STATUS) check_mpi(code, "MPI_Testsome of a tree sum", rank_);
  if (count == MPI_UNDEFINED) return {};
  in_flight_ -= static_cast<std::size_t>(count);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const Message& message = messages_[static_cast<std::size_t>(ended_[i])];
    check(message, statuses_[i], code == MPI_ERR_IN_STATUS && statuses_[i].MPI_ERROR != MPI_SUCCESS);
    chunks_[i] = message.chunk;
  }
  return {chunks_.data(), static_cast<std::size_t>(count)};
}

void Messages::check(const Message& message, const MPI_Status& status, bool failed) const {
  const std::size_t expected = message.received_bytes;
  if (failed && status.MPI_ERROR != MPI_ERR_TRUNCATE) {
    check_mpi(status.MPI_ERROR, expected > 0 ? "MPI_Irecv of a tree sum" : "MPI_Isend of a tree sum", rank_);
  }
  if (expected == 0) return;
  int bytes = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count", rank_);
  if (!failed && static_cast<std::size_t>(bytes) == expected) return;
  throw UsageError(
      "collective {}: rank {} expected a message of {} bytes, rank {} sent {}; every rank must start the "
      "same collectives in the same order",
      work_, rank_, expected, status.MPI_SOURCE, failed ? "a longer one" : fmt::format("{}", bytes));
}

CollectiveContext::CollectiveContext(MPI_Comm comm_, int rank_, const Topology& topology_,
                                     const NodeControl& control_, std::size_t chunk_bytes_)
    : comm(comm_),
      rank(rank_),
      node(topology_.node_of_rank[static_cast<std::size_t>(rank_)]),
      topology(topology_),
      control(control_),
      chunk_bytes(chunk_bytes_),
      ranks_of_node(static_cast<std::size_t>(topology_.nodes())) {
  for (int other = 0; other < ranks(); ++other)
    ranks_of_node[static_cast<std::size_t>(node_of(other))].push_back(other);
}

int CollectiveContext::leader(int on_node, int owner) const {
  const std::vector<int>& candidates = ranks_of_node[static_cast<std::size_t>(on_node)];
  return candidates[static_cast<std::size_t>(local_rank_of(owner)) % candidates.size()];
}

Collective ActiveCollective::Request::collective() const {
  Collective result;
  result.kind = kind;
  result.dtype = sum.dtype;
  result.comm_dtype = sum.comm_dtype;
  result.shards = plan ? plan->shards : 0;
  result.flat_buffer = flat_buffer->number();
  result.offset_bytes = sum.offset_bytes;
  result.count = sum.count;
  result.slices = slices.digest();
  return result;
}

ActiveCollective::ActiveCollective(const CollectiveContext& context)
    : context_(context),
      even_(static_cast<std::size_t>(context.ranks())),
      messages_(context.comm, context.rank) {}

void ActiveCollective::begin(Work work, Request request, int tag) {
  work_ = work;
  request_ = std::move(request);
  element_bytes_ = bytes_of(request_.sum.dtype);
  cast_ = context_.nodes() > 1 && gathers() && needs_cast(request_.sum.comm_dtype, request_.sum.dtype);
  partial_tag_ = tag;
  sum_tag_ = tag + 1;
  all_started_ = false;
  chunks_.clear();
  messages_.begin(work);
  buffer_used_ = 0;
  if (request_.slices.ranks() == 0) {
    for (int rank = 0; rank < context_.ranks(); ++rank)
      even_[static_cast<std::size_t>(rank)] = even_slice(request_.sum.count, context_.ranks(), rank);
  }
  add_chunks(context_.rank);
  for (int owner = 0; owner < context_.ranks(); ++owner) {
    if (context_.node_of(owner) != context_.node && context_.leader(context_.node, owner) == context_.rank)
      add_chunks(owner);
  }
  unfinished_ = chunks_.size();
  reserve({chunks_.size(), messages_.capacity(), buffer_used_});
  for (Chunk& chunk : chunks_) {
    if (owned(chunk) && gathers()) receive_partials(chunk);
  }
}

void ActiveCollective::reserve(const Capacity& capacity) {
  chunks_.reserve(capacity.chunks);
  messages_.reserve(capacity.messages);
  buffer_.reserve(capacity.buffer_bytes);
}

std::span<const ElementRange> ActiveCollective::ranges_of(int owner) const {
  if (request_.slices.ranks() > 0) return request_.slices.of(owner);
  return {&even_[static_cast<std::size_t>(owner)], 1};
}

void ActiveCollective::add_chunks(int owner) {
  const auto ranges = ranges_of(owner);
  std::int64_t left = std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                                      [](std::int64_t sum, ElementRange range) { return sum + range.count; });
  const auto fitting = static_cast<std::int64_t>(context_.chunk_bytes / sent_bytes(1));
  const bool one_node = context_.nodes() == 1;
  // One chunk if there are no messages to overlap with.
  const std::int64_t step = one_node ? left : std::max(fitting, chunk_unit) / chunk_unit * chunk_unit;

  const bool mine = owner == context_.rank;
  const int messages =
      mine ? std::max(received_partials(), context_.nodes() - 1) : std::max(own_partials(), 1);
  Chunk chunk;
  while (left > 0) {
    chunk.owner = owner;
    chunk.count = std::min(step, left);
    chunk.buffer_offset = buffer_used_;
    const int packed = !one_node && !direct(chunk) ? 1 : 0;
    const int slots = mine ? sum_slot_number() + packed : std::max(own_partials(), packed);
    buffer_used_ += static_cast<std::size_t>(slots) * Workspace::rounded_up(bytes(chunk.count));
    chunk.first_message = messages_.add(static_cast<std::size_t>(messages), chunks_.size());
    chunks_.push_back(chunk);

    left -= chunk.count;
    chunk.skipped += chunk.count;
    while (chunk.range < ranges.size() && chunk.skipped >= ranges[chunk.range].count)
      chunk.skipped -= ranges[chunk.range++].count;
  }
}

bool ActiveCollective::advance(SumScratch& scratch) {
  if (!all_started_) {
    if (!context_.control.all_began(&RankFlags::started, work_)) return false;
    context_.control.check_same(&RankFlags::started, work_);
    all_started_ = true;
  }
  for (const std::size_t chunk : messages_.collect()) --chunks_[chunk].pending;
  bool moved = false;
  for (std::size_t index = 0; index < chunks_.size(); ++index) {
    while (advance(index, scratch)) moved = true;
  }
  return moved;
}

bool ActiveCollective::advance(std::size_t index, SumScratch& scratch) {
  Chunk& chunk = chunks_[index];
  if (chunk.stage == Stage::finished || chunk.pending > 0) return false;
  if (index > 0 && chunks_[index - 1].owner == chunk.owner && chunks_[index - 1].stage <= chunk.stage)
    return false;
  const bool owner = owned(chunk);
  switch (chunk.stage) {
    case Stage::gather:  // an owner has been receiving since begin()
      if (!owner && gathers()) send_partials(chunk, scratch);
      chunk.stage = Stage::add;
      break;
    case Stage::add:
      if (owner && gathers()) add_partials(chunk, scratch);
      if (owner && !gathers()) copy_to_peers(chunk);
      if (owner && returns()) send_sum(chunk);
      // A leader may have sent partial sums straight from accumulators: only now may the sum overwrite them.
      if (!owner && returns()) receive_sum(chunk);
      chunk.stage = Stage::give_back;
      break;
    case Stage::give_back:
      if (!owner && returns()) write_sum(chunk);
      chunk.stage = Stage::finished;
      --unfinished_;
      break;
    case Stage::finished:
      return false;
  }
  return true;
}

void ActiveCollective::receive_partials(Chunk& chunk) {
  int message = 0;
  for (int node = 0; node < context_.nodes(); ++node) {
    if (node == context_.node) continue;
    const int from = context_.leader(node, context_.rank);
    for (int partial = 0; partial < request_.plan->partials_of_group[static_cast<std::size_t>(node)];
         ++partial, ++message)
      receive(chunk, message, end_of_slot(chunk, message), from, partial_tag_);
  }
}

void ActiveCollective::send_partials(Chunk& chunk, SumScratch& scratch) {
  int message = 0;
  for (const SumProgram& partial : request_.plan->partials) {
    std::byte* const copy = slot(chunk, message);
    const std::byte* data = copy;
    if (partial.steps.size() > 1) {
      evaluate(partial, chunk, {.slot = copy}, scratch);
      if (cast_) cast_to(copy, copy, chunk.count, request_.sum.comm_dtype);
    } else {  // an accumulator holds it
      const auto& only = request_.plan->accumulators[static_cast<std::size_t>(partial.steps[0].source)];
      if (direct(chunk)) {
        data = in_accumulator(only, first_element(chunk));
      } else {
        pack(chunk, context_.local_rank_of(only.rank), only.index, copy);
      }
    }
    send(chunk, message++, data, chunk.owner, partial_tag_);
  }
}

void ActiveCollective::add_partials(Chunk& chunk, SumScratch& scratch) {
  Target target{context_.control.local_rank(), 1};
  if (returns()) target = {0, context_.control.local_ranks()};
  if (!cast_) {
    evaluate(request_.plan->whole, chunk, target, scratch);
    return;
  }
  // This node's partial sums are rounded like all others, so that the bits do not depend on who owns an
  // element.
  for (int partial = 0; partial < received_partials(); ++partial)
    cast_from(end_of_slot(chunk, partial), slot(chunk, partial), chunk.count, request_.sum.comm_dtype);
  for (int partial = 0; partial < own_partials(); ++partial) {
    std::byte* const rounded = slot(chunk, received_partials() + partial);
    evaluate(request_.plan->partials[static_cast<std::size_t>(partial)], chunk, {.slot = rounded}, scratch);
    round_to(request_.sum.comm_dtype, rounded, chunk.count);
  }
  std::byte* const sum = sum_slot(chunk);
  evaluate(request_.plan->whole_of_partials, chunk, {.slot = sum}, scratch);
  cast_to(sum, sum, chunk.count, request_.sum.comm_dtype);
  for (int peer = 0; peer < target.peers; ++peer) unpack(chunk, sum, target.first_peer + peer);
}

void ActiveCollective::send_sum(Chunk& chunk) {
  if (context_.nodes() == 1) return;
  const int mine = context_.control.local_rank();
  const std::byte* data = sum_slot(chunk);
  if (direct(chunk)) {
    data = in_accumulator(mine, 0, first_element(chunk));
  } else if (!cast_) {  // a cast sum has its final place
    pack(chunk, mine, 0, sum_slot(chunk));
  }
  int message = 0;
  for (int node = 0; node < context_.nodes(); ++node) {
    if (node != context_.node) send(chunk, message++, data, context_.leader(node, context_.rank), sum_tag_);
  }
}

void ActiveCollective::receive_sum(Chunk& chunk) {
  std::byte* const data = direct(chunk)
                              ? in_accumulator(context_.control.local_rank(), 0, first_element(chunk))
                              : sum_slot(chunk);
  receive(chunk, 0, data, chunk.owner, sum_tag_);
}

void ActiveCollective::write_sum(const Chunk& chunk) {
  if (direct(chunk)) return copy_to_peers(chunk);
  for (int peer = 0; peer < context_.control.local_ranks(); ++peer) unpack(chunk, sum_slot(chunk), peer);
}

template <class Use>
void ActiveCollective::for_each_range(const Chunk& chunk, const Use& use) const {
  const auto ranges = ranges_of(chunk.owner);
  std::int64_t skipped = chunk.skipped;
  std::size_t range = chunk.range;
  for (std::int64_t before = 0; before < chunk.count; ++range) {
    const std::int64_t count = std::min(ranges[range].count - skipped, chunk.count - before);
    use(ranges[range].first + skipped, count, before);
    before += count;
    skipped = 0;
  }
}

void ActiveCollective::evaluate(const SumProgram& program, const Chunk& chunk, const Target& target,
                                SumScratch& scratch) {
  for_each_range(chunk, [&](std::int64_t first, std::int64_t count, std::int64_t before) {
    scratch.sources.clear();
    for (const SumStep& step : program.steps) {
      scratch.sources.push_back(
          step.source < 0
              ? slot(chunk, ~step.source) + bytes(before)
              : in_accumulator(request_.plan->accumulators[static_cast<std::size_t>(step.source)], first));
    }
    scratch.destinations.clear();
    if (target.slot) scratch.destinations.push_back(target.slot + bytes(before));
    for (int peer = 0; peer < target.peers; ++peer)
      scratch.destinations.push_back(in_accumulator(target.first_peer + peer, 0, first));
    add_along_tree(program, request_.sum.dtype, count, scratch.sources, scratch.destinations,
                   scratch.blocks.data());
  });
}

void ActiveCollective::pack(const Chunk& chunk, int local_rank, int accumulator, std::byte* slot) const {
  for_each_range(chunk, [&](std::int64_t first, std::int64_t count, std::int64_t before) {
    const std::byte* values = in_accumulator(local_rank, accumulator, first);
    if (cast_) {
      cast_to(values, slot + sent_bytes(before), count, request_.sum.comm_dtype);
    } else {
      std::memcpy(slot + bytes(before), values, bytes(count));
    }
  });
}

void ActiveCollective::unpack(const Chunk& chunk, const std::byte* slot, int local_rank) const {
  for_each_range(chunk, [&](std::int64_t first, std::int64_t count, std::int64_t before) {
    std::byte* values = in_accumulator(local_rank, 0, first);
    if (cast_) {
      cast_from(slot + sent_bytes(before), values, count, request_.sum.comm_dtype);
    } else {
      std::memcpy(values, slot + bytes(before), bytes(count));
    }
  });
}

void ActiveCollective::copy_to_peers(const Chunk& chunk) const {
  const int mine = context_.control.local_rank();
  for_each_range(chunk, [&](std::int64_t first, std::int64_t count, std::int64_t) {
    for (int peer = 0; peer < context_.control.local_ranks(); ++peer) {
      if (peer != mine)
        std::memcpy(in_accumulator(peer, 0, first), in_accumulator(mine, 0, first), bytes(count));
    }
  });
}

void ActiveCollective::send(Chunk& chunk, int message, const std::byte* data, int to, int tag) {
  messages_.send(chunk.first_message + static_cast<std::size_t>(message), data, sent_bytes(chunk.count), to,
                 tag);
  ++chunk.pending;
}

void ActiveCollective::receive(Chunk& chunk, int message, std::byte* data, int from, int tag) {
  messages_.receive(chunk.first_message + static_cast<std::size_t>(message), data, sent_bytes(chunk.count),
                    from, tag);
  ++chunk.pending;
}

CollectiveQueue::CollectiveQueue(MPI_Comm comm, int rank, const Topology& topology,
                                 const NodeControl& control, std::size_t chunk_bytes, int first_tag)
    : context_(comm, rank, topology, control, chunk_bytes), first_tag_(first_tag), waiting_(256) {
  for (std::uint64_t i = 0; i < max_active; ++i) active_.emplace_back(context_);
}

const SumPlan& CollectiveQueue::plan_for(const ShardMap& map) {
  for (const auto& plan : plans_) {
    if (plan->shards == map.shards()) return *plan;
  }
  plans_.push_back(std::make_unique<SumPlan>(map, context_.topology.node_of_rank, context_.node));
  scratch_.blocks.reserve(scratch_bytes(plans_.back()->depth));
  return *plans_.back();
}

Work CollectiveQueue::start(Collective::Kind kind, const TreeSum& sum, const NodeBuffer& flat_buffer,
                            const ShardMap* map, const Slices& slices) {
  const SumPlan* const plan = map ? &plan_for(*map) : nullptr;
  if (plan) check_accumulators(sum, *plan, context_.rank);
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
  context_.control.begin(&RankFlags::started, work, collective);
  const ActiveCollective::Capacity used = next.capacity();
  capacity_.chunks = std::max(capacity_.chunks, used.chunks);
  capacity_.messages = std::max(capacity_.messages, used.messages);
  capacity_.buffer_bytes = std::max(capacity_.buffer_bytes, used.buffer_bytes);
  // Every entry of the ring gets this capacity now or when it becomes idle, so that a later step allocates
  // nothing, whichever entry its largest collective uses.
  for (Work idle = work + 1; idle < completed_ + 1 + max_active; ++idle) active(idle).reserve(capacity_);
}

void CollectiveQueue::progress() {
  bool moved = completed_ < started_;
  while (moved) {
    moved = false;
    while (activated_ < started_ && activated_ - completed_ < max_active) activate(++activated_);
    for (Work work = added_ + 1; work <= activated_; ++work) moved = active(work).advance(scratch_) || moved;
    const Work added_before = added_;
    while (added_ < activated_ && active(added_ + 1).finished()) ++added_;
    if (added_ > added_before) context_.control.mine().added.store(added_, std::memory_order_release);
    while (completed_ < added_ && context_.control.all_added(completed_ + 1)) {
      ++completed_;
      active(completed_).reserve(capacity_);
      moved = true;
    }
  }
}

}  // namespace lockstep::comm
