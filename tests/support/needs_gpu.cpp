// A program whose cases need a GPU on every rank.
#include <algorithm>
#include <vector>

#include "comm/nccl/on_gpu.h"
#include "support/place.h"
#include "support/world.h"

namespace lockstep::test {

std::string reason_to_skip() {
  const int mine = visible_gpus();
  std::vector<int> all(static_cast<std::size_t>(world().size()));
  world().all_gather(&mine, sizeof mine, all.data());
  return *std::min_element(all.begin(), all.end()) > 0 ? "" : "no GPU, or no driver for it";
}

}  // namespace lockstep::test
