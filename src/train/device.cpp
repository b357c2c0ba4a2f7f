#include "train/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/nccl.h"
#include "kernels/gpus.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::train {
namespace {

std::string location(std::span<const RankDevices> of_rank, std::size_t rank) {
  return of_rank.size() == 1 ? of_rank[rank].host : fmt::format("rank {} on {}", rank, of_rank[rank].host);
}

[[noreturn]] void throw_no_gpu(const std::string& name, std::span<const RankDevices> of_rank,
                               std::size_t rank) {
  const RankDevices& here = of_rank[rank];
  const bool others = std::ranges::any_of(of_rank, [](const RankDevices& other) { return other.gpus > 0; });
  if (here.problem.empty())
    throw UsageError(
        "device {}: {} has no GPU{}; ask the scheduler for as many a node as it has ranks (sbatch "
        "--gpus-per-node), or choose device cpu",
        name, location(of_rank, rank), others ? ", but other ranks have one" : "");
  throw UsageError("device {}: {} can use no GPU{}: {}; {}, or choose device cpu", name,
                   location(of_rank, rank), others ? ", but other ranks can" : "", here.problem, here.remedy);
}

/// A warning if ranks have GPUs of several kinds; otherwise empty.
std::string mixed_gpus(std::span<const RankDevices> of_rank) {
  const auto other =
      std::ranges::find_if(of_rank, [&](const RankDevices& rank) { return rank.gpu != of_rank.front().gpu; });
  if (other == of_rank.end()) return {};
  return fmt::format(
      "rank {} computes on {}, and rank 0 on {}: their products may have other last bits, so results may "
      "depend on the number of ranks; use GPUs of one kind (sbatch --constraint)",
      other - of_rank.begin(), other->gpu, of_rank.front().gpu);
}

/// A remark on GPUs whose kernels are compiled at the start; otherwise empty.
std::string uncompiled(std::span<const RankDevices> of_rank) {
  const auto first =
      std::ranges::find_if(of_rank, [](const RankDevices& rank) { return !rank.code.empty(); });
  if (first == of_rank.end()) return {};
  return fmt::format("{}: {}", location(of_rank, static_cast<std::size_t>(first - of_rank.begin())),
                     first->code);
}

/// The GPUs that this rank can use. sums: only if NCCL can sum on them.
kernels::Gpus usable_gpus(bool sums) {
  kernels::Gpus gpus = kernels::find_gpus();
  if (!sums || gpus.visible.empty()) return gpus;
  if (const comm::NcclFound nccl = comm::find_nccl(); !nccl.problem.empty()) {
    gpus.problem = nccl.problem;
    gpus.remedy = nccl.remedy;
    gpus.visible.clear();
  }
  return gpus;
}

/// The devices of each rank; `index`: its own GPU. Collective.
std::vector<RankDevices> gather_devices(comm::HostGroup& world, const kernels::Gpus& gpus, int index) {
  nlohmann::json own = {{"gpus", gpus.visible.size()},
                        {"problem", gpus.problem},
                        {"remedy", gpus.remedy},
                        {"gpu", ""},
                        {"code", ""}};
  if (!gpus.visible.empty()) {
    const kernels::Gpu& gpu = gpus.visible[static_cast<std::size_t>(index)];
    own["gpu"] = gpu.name;
    if (!gpu.code.remark.empty()) own["code"] = gpu.code.remark + "; " + gpu.code.remedy;
  }
  const comm::Topology& topology = world.topology();
  std::vector<RankDevices> of_rank;
  for (const nlohmann::json& record : comm::all_gather_json(world, own)) {
    const auto node = static_cast<std::size_t>(topology.node_of_rank[of_rank.size()]);
    of_rank.push_back({.gpus = record["gpus"],
                       .problem = record["problem"],
                       .remedy = record["remedy"],
                       .host = topology.host_names[node],
                       .gpu = record["gpu"],
                       .code = record["code"]});
  }
  return of_rank;
}

}  // namespace

int gpu_of_rank(int local_rank, int visible) { return local_rank % visible; }

DeviceChoice choose_device(const std::string& name, bool built, std::span<const RankDevices> of_rank,
                           const std::string& sharing) {
  if (name == "cpu") return {};
  const bool needs_gpu = name == "cuda";
  if (!needs_gpu && name != "auto") throw UsageError("device '{}' is unknown; one of auto, cpu, cuda", name);
  if (!built) {
    if (!needs_gpu) return {};
    throw UsageError(
        "device cuda: this build computes on CPUs only; build it with -DLOCKSTEP_CUDA=ON (see INSTALL), or "
        "choose device cpu or auto");
  }
  const auto lacks = [](const RankDevices& rank) { return rank.gpus == 0; };
  const auto without = std::ranges::find_if(of_rank, lacks);
  const auto rank_without = static_cast<std::size_t>(without - of_rank.begin());
  if (needs_gpu && without != of_rank.end()) throw_no_gpu(name, of_rank, rank_without);
  if (std::ranges::all_of(of_rank, lacks)) {
    if (of_rank[0].problem.empty()) return {};
    return {.remark = fmt::format("computes on CPUs: no GPU can be used: {}; {}", of_rank[0].problem,
                                  of_rank[0].remedy)};
  }
  if (without != of_rank.end()) throw_no_gpu(name, of_rank, rank_without);
  if (sharing.empty()) {
    const std::string mixed = mixed_gpus(of_rank), compiled_first = uncompiled(of_rank);
    return {.kind = Device::Kind::cuda,
            .remark = mixed + (mixed.empty() || compiled_first.empty() ? "" : "; ") + compiled_first};
  }
  if (!needs_gpu) return {.remark = "computes on CPUs: " + sharing};
  throw UsageError("device cuda: {}; or choose device cpu", sharing);
}

RankDevice choose_device(comm::HostGroup& world, const std::string& name, bool sums) {
  kernels::Gpus gpus;
  sums = sums && world.size() > 1;
  if (name != "cpu") gpus = usable_gpus(sums);
  const int local_rank = world.topology().local_rank_of_rank[static_cast<std::size_t>(world.rank())];
  const int index = gpu_of_rank(local_rank, std::max(1, static_cast<int>(gpus.visible.size())));
  if (!gpus.visible.empty()) {
    if (const kernels::GpuCode& code = gpus.visible[static_cast<std::size_t>(index)].code; !code.runs) {
      gpus.problem = code.remark;
      gpus.remedy = code.remedy;
      gpus.visible.clear();
    }
  }
  const std::string sharing =
      sums && name != "cpu" ? comm::sharing_problem(world, gpus.visible.empty() ? -1 : index) : "";
  const DeviceChoice choice = choose_device(name, gpus.built, gather_devices(world, gpus, index), sharing);
  if (choice.kind == Device::Kind::cpu) return {.description = {}, .remark = choice.remark};
  return {.device = Device::cuda(index),
          .description = gpus.visible[static_cast<std::size_t>(index)].describe(),
          .remark = choice.remark};
}

PrecisionChoice choose_precision(const std::string& name, const std::string& fallback,
                                 std::span<const RankPrecision> of_rank) {
  if (name == "fp32") return {};
  if (name != "bf16") throw UsageError("precision '{}' is unknown; one of fp32, bf16", name);
  const auto slow = std::ranges::find_if(of_rank, [](const RankPrecision& r) { return !r.why_slow.empty(); });
  if (slow == of_rank.end()) return {.compute = DType::bfloat16, .remark = {}};
  const std::string why = of_rank.size() == 1 ? slow->why_slow
                                              : fmt::format("rank {} on {}: {}", slow - of_rank.begin(),
                                                            slow->host, slow->why_slow);
  if (fallback == "fp32") return {.remark = "precision bf16: computes in float32: " + why};
  if (fallback == "convert")
    return {.compute = DType::bfloat16, .remark = "precision bf16 by conversion, slower than fp32: " + why};
  if (fallback != "refuse")
    throw UsageError("the bf16 fallback '{}' is unknown; one of refuse, fp32, convert", fallback);
  throw UsageError(
      "precision bf16 would be slower than fp32: {}; use precision fp32, or set train.bf16_fallback "
      "(--bf16-fallback) to fp32, which computes in float32 here, or to convert, which computes the same in "
      "software",
      why);
}

DType choose_session_precision(Session& session, const std::string& name, const std::string& fallback) {
  comm::HostGroup& world = session.world();
  std::vector<RankPrecision> of_rank;
  const comm::Topology& topology = world.topology();
  for (const std::string& why : world.all_gather_texts(session.backend().why_slow_in_bf16())) {
    const auto node = static_cast<std::size_t>(topology.node_of_rank[of_rank.size()]);
    of_rank.push_back({.why_slow = why, .host = topology.host_names[node]});
  }
  const PrecisionChoice choice = choose_precision(name, fallback, of_rank);
  if (!choice.remark.empty() && world.rank() == 0) session.log().warning("{}", choice.remark);
  return choice.compute;
}

std::string precision_text(DType compute, const kernels::Backend& backend) {
  if (compute == DType::float32) return "fp32";
  return backend.why_slow_in_bf16().empty() ? "bf16" : "bf16 by conversion";
}

}  // namespace lockstep::train
