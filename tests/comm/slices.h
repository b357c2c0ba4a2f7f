// Slices at random.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "lockstep/comm/slices.h"

namespace lockstep::test {

/// Up to `max_ranges` ranges a rank, of any length (0 too), given to ranks at random; some rank may own
/// nothing, or everything.
inline comm::Slices random_slices(std::mt19937_64& random, std::int64_t count, int ranks, int max_ranges) {
  std::vector<std::int64_t> cuts{0, count};
  const auto ranges = random() % static_cast<std::uint64_t>(ranks * max_ranges);
  for (std::uint64_t i = 0; i < ranges; ++i)
    cuts.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count + 1)));
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::vector<comm::ElementRange>> owned(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
    owned[random() % owned.size()].push_back({cuts[i], cuts[i + 1] - cuts[i]});
  return comm::Slices(count, owned);
}

}  // namespace lockstep::test
