// What ranks do together.
#include "simulated_gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "lockstep/tensor/half.h"

namespace lockstep::test {
namespace {

double value_at(const std::byte* from, DType dtype) {
  double wide = 0;
  float single = 0;
  std::uint16_t bits = 0;
  switch (dtype) {
    case DType::float64:
      std::memcpy(&wide, from, sizeof wide);
      return wide;
    case DType::float32:
      std::memcpy(&single, from, sizeof single);
      return single;
    default:
      std::memcpy(&bits, from, sizeof bits);
      return dtype == DType::bfloat16 ? from_bfloat16_bits(bits) : from_float16_bits(bits);
  }
}

void store(double value, std::byte* to, DType dtype) {
  const auto single = static_cast<float>(value);
  const std::uint16_t bits = dtype == DType::bfloat16 ? bfloat16_bits(single) : float16_bits(single);
  switch (dtype) {
    case DType::float64:
      std::memcpy(to, &value, sizeof value);
      return;
    case DType::float32:
      std::memcpy(to, &single, sizeof single);
      return;
    default:
      std::memcpy(to, &bits, sizeof bits);
  }
}

using Calls = std::vector<const Talk*>;  ///< one of each rank

/// In an order of its own, as NCCL's: from the last rank to the first.
void add_to(const Calls& calls, std::int64_t first, std::int64_t count, const std::vector<int>& to) {
  const DType dtype = calls[0]->dtype;
  for (std::int64_t i = first; i < first + count; ++i) {
    const std::size_t place = static_cast<std::size_t>(i) * bytes_of(dtype);
    double sum = 0;
    for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
      sum += value_at((*call)->data + place, dtype);
      if (dtype != DType::float64) sum = static_cast<float>(sum);
    }
    for (const int rank : to) store(sum, calls[static_cast<std::size_t>(rank)]->data + place, dtype);
  }
}

void copy_to_all(const Calls& calls, int from, std::int64_t first, std::int64_t bytes) {
  const std::byte* const source = calls[static_cast<std::size_t>(from)]->data + first;
  for (const Talk* const call : calls) {
    if (call->data + first != source)
      std::memcpy(call->data + first, source, static_cast<std::size_t>(bytes));
  }
}

Calls messages_with(const std::vector<Talk>& group, Talk::Kind kind, int peer) {
  Calls found;
  for (const Talk& talk : group) {
    if (talk.kind == kind && talk.peer == peer) found.push_back(&talk);
  }
  return found;
}

void messages(const std::vector<std::vector<Talk>>& groups) {
  for (std::size_t from = 0; from < groups.size(); ++from) {
    for (std::size_t to = 0; to < groups.size(); ++to) {
      const Calls sent = messages_with(groups[from], Talk::Kind::send, static_cast<int>(to));
      const Calls awaited = messages_with(groups[to], Talk::Kind::receive, static_cast<int>(from));
      if (sent.size() != awaited.size() || (from == to && !sent.empty()))
        throw std::logic_error(
            fmt::format("{} messages from {} to {}, {} awaited", sent.size(), from, to, awaited.size()));
      for (std::size_t i = 0; i < sent.size(); ++i) {
        if (sent[i]->amount != awaited[i]->amount) throw std::logic_error("a message of another size");
        std::memcpy(awaited[i]->data, sent[i]->data, static_cast<std::size_t>(sent[i]->amount));
      }
    }
  }
}

/// Messages of a group travel at once: no two may arrive at one place, nor where one is being sent from.
void check_apart(const std::vector<Talk>& group) {
  std::vector<std::pair<const std::byte*, const std::byte*>> arriving;
  for (const Talk& talk : group) {
    if (talk.kind == Talk::Kind::receive) arriving.emplace_back(talk.data, talk.data + talk.amount);
  }
  std::sort(arriving.begin(), arriving.end());
  for (std::size_t i = 1; i < arriving.size(); ++i) {
    if (arriving[i].first < arriving[i - 1].second) throw std::logic_error("two messages to one place");
  }
  for (const Talk& talk : group) {
    if (talk.kind != Talk::Kind::send) continue;
    for (const auto& [first, end] : arriving) {
      if (talk.data < end && first < talk.data + talk.amount)
        throw std::logic_error("a message to a place that another is sent from");
    }
  }
}

void at_once(const std::vector<std::vector<Talk>>& groups) {
  bool any_message = false, any_collective = false;
  for (const std::vector<Talk>& group : groups) {
    check_apart(group);
    for (const Talk& talk : group) (talk.message() ? any_message : any_collective) = true;
  }
  if (any_message && any_collective) throw std::logic_error("messages and collective calls in one group");
  if (any_message) return messages(groups);
  for (std::size_t i = 0; i < groups[0].size(); ++i) {
    Calls calls;
    for (const std::vector<Talk>& group : groups) {
      if (group.size() != groups[0].size()) throw std::logic_error("groups of different lengths");
      calls.push_back(&group[i]);
    }
    carry_out(calls);
  }
}

}  // namespace

void carry_out(const std::vector<const Talk*>& calls) {
  const Talk& one = *calls[0];
  std::vector<int> all;
  for (const Talk* const call : calls) {
    if (call->kind != one.kind || call->amount != one.amount || call->dtype != one.dtype ||
        call->peer != one.peer)
      throw std::logic_error("ranks make different collective calls");
    all.push_back(static_cast<int>(all.size()));
  }
  switch (one.kind) {
    case Talk::Kind::all_reduce:
      return add_to(calls, 0, one.amount, all);
    case Talk::Kind::reduce:
      return add_to(calls, 0, one.amount, {one.peer});
    case Talk::Kind::reduce_scatter:
      for (const int rank : all) add_to(calls, rank * one.amount, one.amount, {rank});
      return;
    case Talk::Kind::broadcast:
      return copy_to_all(calls, one.peer, 0, one.amount);
    case Talk::Kind::all_gather:
      for (const int rank : all) copy_to_all(calls, rank, rank * one.amount, one.amount);
      return;
    default:
      throw std::logic_error("a message among collective calls");
  }
}

void carry_out(std::vector<WrittenCalls>& ranks) {
  for (;;) {
    std::vector<std::vector<Talk>> groups;
    for (WrittenCalls& rank : ranks) {
      for (; !rank.steps.empty() && rank.steps.front().alone; rank.steps.pop_front())
        rank.steps.front().alone();
      if (rank.steps.empty()) continue;
      groups.push_back(std::move(rank.steps.front().group));
      rank.steps.pop_front();
    }
    if (groups.empty()) return;
    if (groups.size() < ranks.size()) throw std::logic_error("some ranks talk while others have ended");
    at_once(groups);
  }
}

}  // namespace lockstep::test
