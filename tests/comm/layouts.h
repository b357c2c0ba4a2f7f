// Layouts of the ranks of one computer on emulated nodes.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

namespace lockstep::test {

/// Each is the node of each rank.
inline std::vector<std::vector<int>> layouts(int ranks) {
  std::vector<std::vector<int>> found(5, std::vector<int>(static_cast<std::size_t>(ranks)));
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
    found[0][rank] = 0;                                            // one node
    found[1][rank] = static_cast<int>(rank);                       // a node each
    found[2][rank] = rank + 1 == static_cast<std::size_t>(ranks);  // all but the last together: 2+1, 3+1, 4+1
    found[3][rank] = rank > 0;                                     // the first alone: 1+2, 1+3, 1+4
    found[4][rank] = static_cast<int>(rank % 2);                   // not node-major: 0, 1, 0, 1
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

inline std::string text_of(const std::vector<int>& layout) {
  return fmt::format("nodes {}", fmt::join(layout, " "));
}

}  // namespace lockstep::test
