#include "lockstep/train/device.h"

#include <algorithm>
#include <cstddef>

#include "lockstep/base/error.h"

namespace lockstep::train {
namespace {

std::string place_of(std::span<const RankDevices> of_rank, std::size_t rank) {
  return of_rank.size() == 1 ? of_rank[rank].host : fmt::format("rank {} on {}", rank, of_rank[rank].host);
}

[[noreturn]] void throw_no_gpu(const std::string& asked, std::span<const RankDevices> of_rank,
                               std::size_t rank) {
  const RankDevices& here = of_rank[rank];
  const bool others = std::ranges::any_of(of_rank, [](const RankDevices& other) { return other.gpus > 0; });
  if (here.problem.empty())
    throw UsageError(
        "device {}: {} has no GPU{}; ask the scheduler for as many a node as it has ranks (sbatch "
        "--gpus-per-node), or choose device cpu",
        asked, place_of(of_rank, rank), others ? ", but other ranks have one" : "");
  throw UsageError("device {}: {} can use no GPU{}: {}; {}, or choose device cpu", asked,
                   place_of(of_rank, rank), others ? ", but other ranks can" : "", here.problem, here.remedy);
}

}  // namespace

int gpu_of_rank(int local_rank, int visible) { return local_rank % visible; }

DeviceChoice choose_device(const std::string& asked, bool built, std::span<const RankDevices> of_rank,
                           const std::string& sharing) {
  if (asked == "cpu") return {};
  const bool wanted = asked == "cuda";
  if (!wanted && asked != "auto") throw UsageError("device '{}' is not known; one of auto, cpu, cuda", asked);
  if (!built) {
    if (!wanted) return {};
    throw UsageError(
        "device cuda: this build computes on CPUs only; build it with -DLOCKSTEP_CUDA=ON (see INSTALL), or "
        "choose device cpu or auto");
  }
  const auto lacks = [](const RankDevices& rank) { return rank.gpus == 0; };
  const auto without = std::ranges::find_if(of_rank, lacks);
  const auto rank_without = static_cast<std::size_t>(without - of_rank.begin());
  if (wanted && without != of_rank.end()) throw_no_gpu(asked, of_rank, rank_without);
  if (std::ranges::all_of(of_rank, lacks)) {
    if (of_rank[0].problem.empty()) return {};
    return {.remark = fmt::format("computes on CPUs: no GPU can be used: {}; {}", of_rank[0].problem,
                                  of_rank[0].remedy)};
  }
  if (without != of_rank.end()) throw_no_gpu(asked, of_rank, rank_without);
  if (sharing.empty()) return {.kind = Device::Kind::cuda, .remark = {}};
  if (!wanted) return {.remark = "computes on CPUs: " + sharing};
  throw UsageError("device cuda: {}; or choose device cpu", sharing);
}

}  // namespace lockstep::train
