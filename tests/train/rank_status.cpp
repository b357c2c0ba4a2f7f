// The status of every rank is known on every node, and is the same record everywhere.
#include "train/watch/rank_status.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "support/forwarding.h"
#include "support/ranks.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(rank_status, *ranks(1, 2, 3))

using progress::RankStatus;
using train::RankStatusTable;

/// The world, as if each of its ranks ran on a node of its own.
class NodeEach final : public Forwarding {
 public:
  explicit NodeEach(comm::CpuCommunicator& real) : Forwarding(real) {
    for (int rank = 0; rank < real.size(); ++rank) {
      topology_.node_of_rank.push_back(rank);
      topology_.local_rank_of_rank.push_back(0);
      topology_.host_names.push_back("node" + std::to_string(rank));
    }
  }
  const comm::Topology& topology() const override { return topology_; }

 private:
  comm::Topology topology_;
};

/// Heartbeats go to addresses that other nodes can reach.
bool has_network() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return false;
  bool found = false;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next)
    found |= entry->ifa_addr && entry->ifa_addr->sa_family == AF_INET && (entry->ifa_flags & IFF_UP) != 0 &&
             (entry->ifa_flags & IFF_LOOPBACK) == 0;
  ::freeifaddrs(list);
  return found;
}

BOOST_AUTO_TEST_CASE(a_snapshot_holds_every_field) {
  RankStatus::Snapshot snapshot;
  for (std::size_t i = 0; i < snapshot.size(); ++i) snapshot[i] = static_cast<std::int64_t>(100 + i);
  RankStatus status;
  status.store(snapshot);
  BOOST_TEST((status.load() == snapshot));
  for (const RankStatus::Word* const word :
       {&status.ticks, &status.step, &status.phase, &status.phase_since_ns, &status.waiting, &status.polling,
        &status.polls, &status.bucket, &status.step_us, &status.heartbeats, &status.pid})
    BOOST_TEST(word->load() >= 100);
}

BOOST_AUTO_TEST_CASE(ranks_of_a_node_read_each_others_rows) {
  const RankStatusTable table(world());
  progress::at_step(7 + world().rank(), 0);
  world().barrier();
  for (int rank = 0; rank < world().size(); ++rank) {
    BOOST_TEST(table[rank].step.load() == 7 + rank);
    BOOST_TEST(table[rank].pid.load() > 0);
    BOOST_TEST(table.is_local(rank));
  }
  world().barrier();
}

BOOST_AUTO_TEST_CASE(a_process_keeps_its_status_after_the_table_is_gone) {
  {
    const RankStatusTable table(world());
    progress::at_step(5, 0);
  }
  BOOST_TEST(progress::status().step.load() == 5);
}

BOOST_AUTO_TEST_CASE(rows_of_other_nodes_arrive_as_they_are_and_so_does_the_end_of_the_job) {
  if (!has_network()) return;
  NodeEach nodes(world());
  RankStatusTable table(nodes);
  const int own = world().rank();
  progress::at_step(7 + own, 2.5);
  progress::enter(progress::Phase::sums);
  progress::at_bucket(3);
  table[own].heartbeats = 1;
  const auto receive_until = [&](const auto& condition) {
    for (; !condition(); std::this_thread::sleep_for(std::chrono::milliseconds(1))) table.receive();
    world().barrier();
  };
  table.send();
  receive_until([&] {
    for (int rank = 0; rank < world().size(); ++rank) {
      if (table[rank].heartbeats.load() == 0) return false;
    }
    return true;
  });
  for (int rank = 0; rank < world().size(); ++rank) {
    const RankStatusTable::Row& row = table[rank];
    BOOST_TEST(row.step.load() == 7 + rank);
    BOOST_TEST((row.current_phase() == progress::Phase::sums));
    BOOST_TEST(row.bucket.load() == 3);
    BOOST_TEST(row.step_us.load() == 2500);
    BOOST_TEST(table.is_local(rank) == (rank == own));
    BOOST_TEST(table.has_heard(rank));
  }
  BOOST_TEST((table.job_end() == RankStatusTable::JobEnd::none));
  world().barrier();
  if (own == 0) {
    table.job_end() = RankStatusTable::JobEnd::reported;
    table.send(true);
  }
  receive_until([&] { return table.job_end() == RankStatusTable::JobEnd::reported; });
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
