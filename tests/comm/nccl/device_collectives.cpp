// Which calls collectives between GPUs are made of, on more ranks than anything here can carry them out on:
// each rank's are noted, none is made. Every message is awaited where it goes, and groups stay small.
#include "comm/nccl/device_collectives.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "comm/slices.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(device_collectives)

/// A call with other ranks in it.
struct Call {
  std::string name;
  std::int64_t amount = 0;  ///< elements, or bytes where nothing is added
  int peer = -1;            ///< or root
  DType dtype = DType::uint8;
  bool operator==(const Call&) const = default;
};

/// Of one rank.
class NotedCalls final : public comm::DeviceCalls {
 public:
  std::vector<std::vector<Call>> groups;  ///< a call outside of a group makes a group alone
  std::int64_t added = 0;                 ///< elements
  int by_itself = 0;                      ///< calls without other ranks

  std::byte* scratch(std::size_t bytes) override {
    scratch_.resize(bytes);
    return scratch_.data();
  }
  void zero(std::byte*, std::size_t) override { alone(); }
  void add(const comm::TreeAddition& addition) override {
    alone();
    BOOST_TEST_REQUIRE((!addition.slots || addition.slots < scratch_.data() + scratch_.size()));
    added += addition.count;
  }
  void cast_to(const std::byte*, std::byte*, std::int64_t, DType) override { alone(); }
  void cast_from(const std::byte*, std::byte*, std::int64_t, DType) override { alone(); }

  void begin_group() override {
    BOOST_TEST_REQUIRE(!in_group_);
    in_group_ = true;
    groups.emplace_back();
  }
  void end_group() override {
    BOOST_TEST_REQUIRE(in_group_);
    in_group_ = false;
  }
  void all_reduce(std::byte*, std::int64_t count, DType dtype) override {
    note({"all_reduce", count, -1, dtype});
  }
  void reduce_scatter(std::byte*, std::int64_t count, DType dtype) override {
    note({"reduce_scatter", count, -1, dtype});
  }
  void reduce(std::byte*, std::int64_t count, DType dtype, int root) override {
    note({"reduce", count, root, dtype});
  }
  void all_gather(std::byte*, std::size_t bytes) override {
    note({"all_gather", static_cast<std::int64_t>(bytes)});
  }
  void broadcast(std::byte*, std::size_t bytes, int root) override {
    note({"broadcast", static_cast<std::int64_t>(bytes), root});
  }
  void send(const std::byte*, std::size_t bytes, int to) override { message("send", bytes, to); }
  void receive(std::byte* data, std::size_t bytes, int from) override {
    const std::byte* const end = scratch_.data() + scratch_.size();
    BOOST_TEST_REQUIRE((data >= scratch_.data() && data + bytes <= end));
    message("receive", bytes, from);
  }

 private:
  void alone() {
    BOOST_TEST_REQUIRE(!in_group_);
    ++by_itself;
  }
  void note(const Call& call) {
    if (!in_group_) groups.emplace_back();
    groups.back().push_back(call);
  }
  void message(const char* name, std::size_t bytes, int peer) {
    BOOST_TEST_REQUIRE(in_group_);
    note({name, static_cast<std::int64_t>(bytes), peer});
  }

  bool in_group_ = false;
  std::vector<std::byte> scratch_;
};

enum class Kind { sum, reduce_scatter, all_gather };

struct Run {
  Kind kind = Kind::sum;
  int ranks = 1;
  int shards = 1;
  std::int64_t count = 0;
  DType comm_dtype = DType::float32;
  bool reproducible = true;
  comm::Slices slices = {};
};

/// Asks for the collective on one rank. Gives the elements that it adds.
std::int64_t ask(const Run& run, int rank, NotedCalls& calls) {
  const comm::DeviceSumPlan plan(comm::ShardMap(run.shards, run.ranks), rank);
  const int partials = plan.partials_of_group[static_cast<std::size_t>(rank)];
  const std::size_t accumulator_bytes = static_cast<std::size_t>(run.count) * sizeof(float) + 64;
  std::vector<std::byte> accumulators(accumulator_bytes * static_cast<std::size_t>(std::max(partials, 1)));
  comm::DeviceCollectives collectives(calls, rank, run.ranks, run.reproducible);
  const comm::DeviceVector vector{.values = accumulators.data(),
                                  .accumulator_bytes = accumulator_bytes,
                                  .count = run.count,
                                  .comm_dtype = run.comm_dtype};
  if (run.kind == Kind::sum) collectives.tree_sum(vector, plan);
  if (run.kind == Kind::reduce_scatter) collectives.reduce_scatter(vector, plan, run.slices);
  if (run.kind == Kind::all_gather) collectives.all_gather(vector, run.slices);

  std::int64_t received = 0;
  for (const auto& group : calls.groups) {
    for (const Call& call : group) received += call.name == "receive" ? call.amount : 0;
  }
  const bool along_tree = run.reproducible && run.kind != Kind::all_gather;
  const auto bytes =
      static_cast<std::int64_t>(bytes_of(run.comm_dtype));  // of each partial sum that others have of it
  BOOST_TEST_REQUIRE(received == (along_tree ? plan.received * calls.added * bytes : 0));
  if (!along_tree) {
    BOOST_TEST_REQUIRE(calls.added == (run.kind != Kind::all_gather && partials > 1 ? run.count : 0));
  } else if (run.kind == Kind::reduce_scatter) {
    BOOST_TEST_REQUIRE(calls.added == run.slices.count_of(rank));
  }
  return calls.added;
}

/// The groups with one number, of all ranks.
void check_group(const std::vector<NotedCalls>& calls, std::size_t group) {
  std::map<std::pair<int, int>, std::vector<std::int64_t>> sent, awaited;  // from a rank to another, in order
  std::vector<Call> together;
  for (int rank = 0; rank < static_cast<int>(calls.size()); ++rank) {
    const std::vector<Call>& held = calls[static_cast<std::size_t>(rank)].groups[group];
    BOOST_TEST_REQUIRE(held.size() <= static_cast<std::size_t>(comm::DeviceCalls::max_in_group));
    std::vector<Call> others;
    for (const Call& call : held) {
      if (call.name == "send") {
        BOOST_TEST_REQUIRE(call.peer != rank);
        sent[{rank, call.peer}].push_back(call.amount);
      } else if (call.name == "receive") {
        awaited[{call.peer, rank}].push_back(call.amount);
      } else {
        others.push_back(call);
      }
    }
    if (rank == 0) together = others;
    BOOST_TEST_REQUIRE((others == together));
  }
  BOOST_TEST_REQUIRE((sent == awaited));
  BOOST_TEST_REQUIRE((sent.empty() || together.empty()));
}

/// What each rank asks for, after it has been found to fit.
std::vector<NotedCalls> check(const Run& run) {
  std::vector<NotedCalls> calls(static_cast<std::size_t>(run.ranks));
  BOOST_TEST_CONTEXT("collective " << static_cast<int>(run.kind) << ", " << run.ranks << " ranks, "
                                   << run.shards << " shards, " << run.count << " elements, sent as "
                                   << std::string(to_string(run.comm_dtype))
                                   << (run.reproducible ? "" : ", in NCCL's order")) {
    std::int64_t added = 0;
    for (int rank = 0; rank < run.ranks; ++rank)
      added += ask(run, rank, calls[static_cast<std::size_t>(rank)]);
    if (run.reproducible && run.kind != Kind::all_gather) BOOST_TEST_REQUIRE(added == run.count);
    for (const NotedCalls& one : calls) BOOST_TEST_REQUIRE(one.groups.size() == calls[0].groups.size());
    for (std::size_t group = 0; group < calls[0].groups.size(); ++group) check_group(calls, group);
  }
  return calls;
}

BOOST_AUTO_TEST_CASE(a_world_of_one_makes_no_call) {
  const comm::DeviceSumPlan plan(comm::ShardMap(6, 1), 0);
  std::vector<float> values(10);
  for (const DType comm_dtype : {DType::float32, DType::float16}) {
    const comm::DeviceVector vector{
        .values = reinterpret_cast<std::byte*>(values.data()), .count = 10, .comm_dtype = comm_dtype};
    for (const bool reproducible : {true, false}) {
      NotedCalls calls;
      comm::DeviceCollectives collectives(calls, 0, 1, reproducible);
      collectives.tree_sum(vector, plan);
      collectives.reduce_scatter(vector, plan, comm::even_slices(10, 1));
      collectives.all_gather(vector, comm::even_slices(10, 1));
      BOOST_TEST(calls.groups.empty());
      BOOST_TEST(calls.by_itself == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(every_message_is_awaited_by_its_peer_for_any_slices_wire_and_order) {
  std::mt19937_64 random(5);
  for (int ranks = 5; ranks <= 9; ++ranks) {
    for (const DType comm_dtype : {DType::float32, DType::float16, DType::bfloat16}) {
      for (const bool reproducible : {true, false}) {
        for (int round = 0; round < 10; ++round) {
          Run run{.ranks = ranks,
                  .shards = 1 + static_cast<int>(random() % 20),
                  .count = static_cast<std::int64_t>(random() % 900),
                  .comm_dtype = comm_dtype,
                  .reproducible = reproducible};
          run.slices =
              round == 0 ? comm::even_slices(run.count, ranks) : random_slices(random, run.count, ranks, 7);
          for (const Kind kind : {Kind::sum, Kind::reduce_scatter, Kind::all_gather}) {
            run.kind = kind;
            check(run);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(many_ranks_stay_within_groups_of_1024_calls) {
  for (Run run :
       {Run{.ranks = 130, .shards = 130, .count = 4300}, Run{.ranks = 50, .shards = 170, .count = 1700}}) {
    std::vector<std::vector<comm::ElementRange>> ranges(static_cast<std::size_t>(run.ranks));
    for (std::int64_t i = 0; i < run.count; ++i)
      ranges[static_cast<std::size_t>(i) % ranges.size()].push_back({i, 1});
    run.slices = comm::Slices(run.count, ranges);
    for (const bool reproducible : {true, false}) {
      run.reproducible = reproducible;
      for (const Kind kind : {Kind::sum, Kind::reduce_scatter, Kind::all_gather}) {
        run.kind = kind;
        const auto calls = check(run);
        if (kind != Kind::sum) BOOST_TEST(calls[0].groups.size() > 1u);  // or one would have held more
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
