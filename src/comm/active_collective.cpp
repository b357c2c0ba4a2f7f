#include "comm/active_collective.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "comm/mpi_calls.h"

namespace lockstep::comm {

void Messages::begin(std::uint64_t work) {
  work_ = work;
  requests_.clear();
  about_.clear();
}

void Messages::reserve(std::size_t messages) {
  requests_.reserve(messages);
  about_.reserve(messages);
  ended_.resize(std::max(ended_.size(), messages));
  statuses_.resize(ended_.size());
  chunks_.resize(ended_.size());
}

std::size_t Messages::add(std::size_t messages, std::size_t chunk) {
  const std::size_t first = requests_.size();
  requests_.resize(first + messages, MPI_REQUEST_NULL);
  about_.resize(first + messages, {chunk, 0});
  return first;
}

void Messages::send(std::size_t place, const std::byte* data, std::size_t bytes, int to, int tag) {
  check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, comm_, &requests_[place]),
            "MPI_Isend of a tree sum", rank_);
  about_[place].received_bytes = 0;
  ++under_way_;
}

void Messages::receive(std::size_t place, std::byte* data, std::size_t bytes, int from, int tag) {
  check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, comm_, &requests_[place]),
            "MPI_Irecv of a tree sum", rank_);
  about_[place].received_bytes = bytes;
  ++under_way_;
}

std::span<const std::size_t> Messages::collect() {
  if (under_way_ == 0) return {};
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, ended_.data(),
                                statuses_.data());
  if (code != MPI_ERR_IN_STATUS) check_mpi(code, "MPI_Testsome of a tree sum", rank_);
  if (count == MPI_UNDEFINED) return {};
  under_way_ -= static_cast<std::size_t>(count);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const auto place = static_cast<std::size_t>(ended_[i]);
    check(place, statuses_[i], code == MPI_ERR_IN_STATUS && statuses_[i].MPI_ERROR != MPI_SUCCESS);
    chunks_[i] = about_[place].chunk;
  }
  return {chunks_.data(), static_cast<std::size_t>(count)};
}

void Messages::check(std::size_t place, const MPI_Status& status, bool failed) const {
  const std::size_t expected = about_[place].received_bytes;
  if (failed && status.MPI_ERROR != MPI_ERR_TRUNCATE) {
    check_mpi(status.MPI_ERROR, expected > 0 ? "MPI_Irecv of a tree sum" : "MPI_Isend of a tree sum", rank_);
  }
  if (expected == 0) return;
  int bytes = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count", rank_);
  if (failed || static_cast<std::size_t>(bytes) != expected) {
    throw FailureError(
        "collective {}: rank {} expected a message of {} bytes, rank {} sent {}; every rank must start the "
        "same "
        "collectives in the same order",
        work_, rank_, expected, status.MPI_SOURCE, failed ? "a longer one" : fmt::format("{}", bytes));
  }
}

namespace {

constexpr std::int64_t chunk_unit = 16;  // elements; chunks of a long range start at whole cache lines

}  // namespace

int CollectiveContext::leader(int on_node, int owner) const {
  const std::vector<int>& ranks = ranks_of_node[static_cast<std::size_t>(on_node)];
  return ranks[static_cast<std::size_t>(local_rank_of_rank[static_cast<std::size_t>(owner)]) % ranks.size()];
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
    : context_(&context),
      even_(static_cast<std::size_t>(context.size)),
      messages_(context.comm, context.rank) {}

void ActiveCollective::begin(std::uint64_t work, Request request, int tag) {
  work_ = work;
  request_ = std::move(request);
  element_bytes_ = bytes_of(request_.sum.dtype);
  cast_ = context_->nodes() > 1 && !is(Collective::Kind::all_gather) &&
          needs_cast(request_.sum.comm_dtype, request_.sum.dtype);
  partial_tag_ = tag;
  result_tag_ = tag + 1;
  all_started_ = false;
  chunks_.clear();
  messages_.begin(work);
  buffer_used_ = 0;
  if (request_.slices.ranks() == 0) {
    for (int rank = 0; rank < context_->size; ++rank)
      even_[static_cast<std::size_t>(rank)] = even_slice(request_.sum.count, context_->size, rank);
  }
  add_chunks(context_->rank);
  for (int owner = 0; owner < context_->size; ++owner) {
    const bool elsewhere = context_->node_of_rank[static_cast<std::size_t>(owner)] != context_->node;
    if (elsewhere && context_->leader(context_->node, owner) == context_->rank) add_chunks(owner);
  }
  unfinished_ = chunks_.size();
  reserve({chunks_.size(), messages_.capacity(), buffer_used_});
  for (Chunk& chunk : chunks_) {
    if (owned(chunk)) receive_partials(chunk);
  }
}

void ActiveCollective::reserve(const Room& room) {
  chunks_.reserve(room.chunks);
  messages_.reserve(room.messages);
  buffer_.reserve(room.buffer_bytes);
}

std::span<const ElementRange> ActiveCollective::ranges_of(int owner) const {
  if (request_.slices.ranks() > 0) return request_.slices.of(owner);
  return {&even_[static_cast<std::size_t>(owner)], 1};
}

bool ActiveCollective::direct(const Chunk& chunk) const {
  return !cast_ && chunk.skipped + chunk.count <= ranges_of(chunk.owner)[chunk.range].count;
}

void ActiveCollective::add_chunks(int owner) {
  const auto ranges = ranges_of(owner);
  std::int64_t left = std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                                      [](std::int64_t sum, ElementRange range) { return sum + range.count; });
  const auto fitting = static_cast<std::int64_t>(context_->chunk_bytes / sent_bytes(1));
  const bool alone = context_->nodes() == 1;
  // One chunk where there are no messages to overlap with.
  const std::int64_t step = alone ? left : std::max(fitting, chunk_unit) / chunk_unit * chunk_unit;

  const bool mine = owner == context_->rank;
  const int messages =
      mine ? std::max(received_partials(), context_->nodes() - 1) : std::max(own_partials(), 1);
  Chunk chunk;
  while (left > 0) {
    chunk.owner = owner;
    chunk.count = std::min(step, left);
    chunk.buffer_offset = buffer_used_;
    const int packed = !alone && !direct(chunk) ? 1 : 0;
    const int slots = mine ? result_slot_number() + packed : std::max(own_partials(), packed);
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
    if (!context_->control->all_reached(&NodeFlags::started, work_)) return false;
    context_->control->check_same_collective(work_);
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
  switch (chunk.stage) {
    case Stage::gather:
      if (!owned(chunk) && !is(Collective::Kind::all_gather)) add_and_send_partials(chunk, scratch);
      chunk.stage = Stage::add;
      break;
    case Stage::add:
      if (owned(chunk)) {
        add_all(chunk, scratch);
        if (!is(Collective::Kind::reduce_scatter)) send_result(chunk);
      } else if (!is(Collective::Kind::reduce_scatter)) {
        // Partial sums may have been sent straight from the accumulators: only now may the result overwrite
        // them.
        receive_result(chunk);
      }
      chunk.stage = Stage::distribute;
      break;
    case Stage::distribute:
      if (!owned(chunk) && !is(Collective::Kind::reduce_scatter)) distribute_result(chunk);
      chunk.stage = Stage::finished;
      --unfinished_;
      break;
    case Stage::finished:
      return false;
  }
  return true;
}

void ActiveCollective::receive_partials(Chunk& chunk) {
  if (!request_.plan) return;
  int message = 0;
  for (int node = 0; node < context_->nodes(); ++node) {
    if (node == context_->node) continue;
    const int from = context_->leader(node, context_->rank);
    for (int partial = 0; partial < request_.plan->partials_of_group[static_cast<std::size_t>(node)];
         ++partial, ++message)
      receive(chunk, message, partial_place(chunk, message), from, partial_tag_);
  }
}

void ActiveCollective::add_all(Chunk& chunk, SumScratch& scratch) {
  if (is(Collective::Kind::all_gather)) return copy_to_peers(chunk);
  const int mine = context_->control->local_rank();
  const bool everywhere = is(Collective::Kind::sum);
  const Target target{everywhere ? 0 : mine, everywhere ? context_->control->local_ranks() : 1};
  if (!cast_) {
    evaluate(request_.plan->whole, chunk, target, scratch);
    return;
  }
  // This node's partial sums are rounded like all others, so that the bits do not depend on who owns an
  // element.
  for (int partial = 0; partial < received_partials(); ++partial)
    cast_from(partial_place(chunk, partial), slot(chunk, partial), chunk.count, request_.sum.comm_dtype);
  for (int partial = 0; partial < own_partials(); ++partial) {
    std::byte* place = slot(chunk, received_partials() + partial);
    evaluate(request_.plan->partials[static_cast<std::size_t>(partial)], chunk, {.slot = place}, scratch);
    round_to(request_.sum.comm_dtype, place, chunk.count);
  }
  evaluate(request_.plan->whole_of_partials, chunk, {.slot = result_slot(chunk)}, scratch);
  cast_to(result_slot(chunk), result_slot(chunk), chunk.count, request_.sum.comm_dtype);
  for (int peer = 0; peer < target.peers; ++peer) unpack(chunk, result_slot(chunk), target.first_peer + peer);
}

void ActiveCollective::send_result(Chunk& chunk) {
  if (context_->nodes() == 1) return;
  const int mine = context_->control->local_rank();
  const std::byte* data = result_slot(chunk);
  if (direct(chunk)) {
    data = in_accumulator(mine, 0, first_element(chunk));
  } else if (!cast_) {  // a cast result is there already
    pack(chunk, mine, 0, result_slot(chunk));
  }
  int message = 0;
  for (int node = 0; node < context_->nodes(); ++node) {
    if (node != context_->node)
      send(chunk, message++, data, context_->leader(node, context_->rank), result_tag_);
  }
}

void ActiveCollective::add_and_send_partials(Chunk& chunk, SumScratch& scratch) {
  int message = 0;
  for (const SumProgram& partial : request_.plan->partials) {
    std::byte* place = slot(chunk, message);
    const std::byte* data = place;
    if (partial.steps.size() == 1) {
      const SumPlan::Accumulator& only = accumulator(partial.steps[0].source);
      if (direct(chunk)) {
        data = in_accumulator(local(only.rank), only.index, first_element(chunk));
      } else {
        pack(chunk, local(only.rank), only.index, place);
      }
    } else {
      evaluate(partial, chunk, {.slot = place}, scratch);
      if (cast_) cast_to(place, place, chunk.count, request_.sum.comm_dtype);
    }
    send(chunk, message++, data, chunk.owner, partial_tag_);
  }
}

void ActiveCollective::receive_result(Chunk& chunk) {
  std::byte* place = direct(chunk) ? in_accumulator(context_->control->local_rank(), 0, first_element(chunk))
                                   : result_slot(chunk);
  receive(chunk, 0, place, chunk.owner, result_tag_);
}

void ActiveCollective::distribute_result(const Chunk& chunk) {
  if (direct(chunk)) {
    copy_to_peers(chunk);
    return;
  }
  for (int peer = 0; peer < context_->control->local_ranks(); ++peer) unpack(chunk, result_slot(chunk), peer);
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

void ActiveCollective::evaluate(const SumProgram& sum, const Chunk& chunk, const Target& target,
                                SumScratch& scratch) {
  for_each_range(chunk, [&](std::int64_t first, std::int64_t count, std::int64_t before) {
    scratch.sources.clear();
    for (const SumStep& step : sum.steps) {
      if (step.source < 0) {
        scratch.sources.push_back(slot(chunk, ~step.source) + bytes(before));
      } else {
        const SumPlan::Accumulator& from = accumulator(step.source);
        scratch.sources.push_back(in_accumulator(local(from.rank), from.index, first));
      }
    }
    scratch.destinations.clear();
    if (target.slot) scratch.destinations.push_back(target.slot + bytes(before));
    for (int peer = 0; peer < target.peers; ++peer)
      scratch.destinations.push_back(in_accumulator(target.first_peer + peer, 0, first));
    sum.evaluate(request_.sum.dtype, count, scratch.sources, scratch.destinations, scratch.blocks.data());
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
  const int mine = context_->control->local_rank();
  for_each_range(chunk, [&](std::int64_t first, std::int64_t count, std::int64_t) {
    for (int peer = 0; peer < context_->control->local_ranks(); ++peer) {
      if (peer != mine)
        std::memcpy(in_accumulator(peer, 0, first), in_accumulator(mine, 0, first), bytes(count));
    }
  });
}

std::byte* ActiveCollective::slot(const Chunk& chunk, int number) const {
  return buffer_.data() + chunk.buffer_offset +
         static_cast<std::size_t>(number) * Workspace::rounded_up(bytes(chunk.count));
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

}  // namespace lockstep::comm
