// Which group holds what of a sum, and the program that it adds by, carried out here: in registers, as a GPU
// adds, and block by block, as a CPU does.
#include "comm/sum_plan.h"

#include <fmt/ranges.h>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>

#include "comm/cpu_sums.h"
#include "comm/sums.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(sum_plan)

/// The partial sums of `group`, left to right: the largest tree nodes within `node` whose shards it has
/// alone.
std::vector<comm::ShardRange> partials_of(const comm::ShardMap& map, std::span<const int> groups, int group,
                                          comm::ShardRange node) {
  bool all = true, any = false;
  for (int shard = node.first; shard < node.end(); ++shard) {
    const bool has = groups[static_cast<std::size_t>(map.owner(shard))] == group;
    all = all && has;
    any = any || has;
  }
  if (all) return {node};
  if (!any) return {};
  const int left = comm::left_leaves(node.count);
  auto partials = partials_of(map, groups, group, {node.first, left});
  const auto right = partials_of(map, groups, group, {node.first + left, node.count - left});
  partials.insert(partials.end(), right.begin(), right.end());
  return partials;
}

struct Layout {
  comm::ShardMap map;
  std::vector<int> groups;  // by rank
  int group;
  comm::SumPlan plan{map, groups, group};

  /// The shards of a step's source.
  comm::ShardRange shards_of(int source) const {
    if (source >= 0) {
      const auto& [rank, index] = plan.accumulators[static_cast<std::size_t>(source)];
      return map.subtrees(rank)[static_cast<std::size_t>(index)];
    }
    if (~source >= plan.received) return own_partials()[static_cast<std::size_t>(~source - plan.received)];
    std::size_t of = 0;
    int partial = -1;
    for (; partial < 0 || partial >= plan.partials_of_group[of - 1]; ++of)
      partial = plan.first_slot_of_group[of] < 0 ? -1 : ~source - plan.first_slot_of_group[of];
    return partials_of(map, groups, static_cast<int>(of - 1),
                       {0, map.shards()})[static_cast<std::size_t>(partial)];
  }
  std::vector<comm::ShardRange> own_partials() const {
    return partials_of(map, groups, group, {0, map.shards()});
  }

  template <class T>
  void check(const comm::SumProgram& program, comm::ShardRange sum) const {
    constexpr std::int64_t elements = 3;
    std::vector<std::array<T, elements>> sources;
    std::vector<const std::byte*> addresses;
    for (const comm::SumStep& step : program.steps) {
      auto& values = sources.emplace_back();
      for (std::int64_t i = 0; i < elements; ++i)
        values[static_cast<std::size_t>(i)] = serial_sum<T>(7, shards_of(step.source), i);
    }
    for (const auto& values : sources) addresses.push_back(reinterpret_cast<const std::byte*>(values.data()));
    std::array<std::array<T, elements>, 3> sums{};
    std::array<std::byte*, 3> destinations;
    for (std::size_t i = 0; i < sums.size(); ++i)
      destinations[i] = reinterpret_cast<std::byte*>(sums[i].data());
    std::vector<std::byte> scratch(comm::scratch_bytes(program.depth));
    comm::add_along_tree(program, dtype_of<T>, elements, addresses, destinations, scratch.data());

    BOOST_TEST_REQUIRE(program.depth <= comm::deepest_tree);
    for (std::int64_t i = 0; i < elements; ++i) {
      const T expected = serial_sum<T>(7, sum, i);
      const auto load = [&](int source) { return serial_sum<T>(7, shards_of(source), i); };
      const T in_registers = comm::sum_along_tree<comm::deepest_tree>(
          program.steps.data(), static_cast<int>(program.steps.size()), load,
          [](T left, T right) { return left + right; });
      const auto where =
          fmt::format("{} shards, ranks of groups {}, group {}", map.shards(), fmt::join(groups, " "), group);
      BOOST_TEST_REQUIRE(in_registers == expected, where);
      for (const auto& values : sums)
        BOOST_TEST_REQUIRE(values[static_cast<std::size_t>(i)] == expected, where);
    }
  }
};

template <class T>
void check(int shards, const std::vector<int>& groups) {
  for (int group = 0; group <= groups.back(); ++group) {
    const Layout layout{comm::ShardMap(shards, static_cast<int>(groups.size())), groups, group};
    const auto own = layout.own_partials();
    BOOST_TEST_REQUIRE(layout.plan.partials.size() == own.size());
    for (std::size_t i = 0; i < own.size(); ++i) layout.check<T>(layout.plan.partials[i], own[i]);
    layout.check<T>(layout.plan.whole, {0, shards});
    layout.check<T>(layout.plan.whole_of_partials, {0, shards});
  }
}

std::vector<int> groups_of(int ranks, int ranks_of_group) {
  std::vector<int> groups;
  for (int rank = 0; rank < ranks; ++rank) groups.push_back(rank / ranks_of_group);
  return groups;
}

BOOST_AUTO_TEST_CASE(every_group_adds_to_the_bits_of_the_serial_fold) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (int shards = 1; shards <= 20; ++shards) {
      for (const int ranks_of_group : {1, 2, 3, ranks})
        check<float>(shards, groups_of(ranks, ranks_of_group));
      check<double>(shards, groups_of(ranks, 1));
    }
  }
  check<float>(130, groups_of(130, 40));
  check<float>(170, groups_of(50, 1));
}

BOOST_AUTO_TEST_CASE(computed_steps_of_a_tree_are_those_of_its_program) {
  for (int count = 1; count <= 70; ++count) {
    const comm::SumProgram program({0, count}, [](comm::ShardRange node, std::int32_t& source) {
      source = node.first;
      return node.count == 1;
    });
    for (int i = 0; i < count; ++i) {
      const comm::SumStep step = comm::TreeSteps{count}[i],
                          &wanted = program.steps[static_cast<std::size_t>(i)];
      BOOST_TEST((step.source == wanted.source && step.merges == wanted.merges), i << " of " << count);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_fold_adds_accumulators_from_left_to_right) {
  for (const int count : {1, 2, 5}) {
    const comm::SumProgram fold = comm::SumProgram::fold(count);
    const auto text = comm::sum_along_tree<comm::deepest_tree>(
        fold.steps.data(), count, [](int source) { return std::string(1, static_cast<char>('a' + source)); },
        [](const std::string& left, const std::string& right) { return "(" + left + right + ")"; });
    BOOST_TEST(text == std::string(static_cast<std::size_t>(count - 1), '(') + "a" + (count > 1 ? "b)" : "") +
                           (count > 2 ? "c)d)e)" : ""));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
