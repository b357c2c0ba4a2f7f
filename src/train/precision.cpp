#include "train/precision.h"

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::train {

PrecisionChoice choose_precision(const std::string& asked, const std::string& fallback,
                                 std::span<const RankPrecision> of_rank) {
  if (asked == "fp32") return {};
  if (asked != "bf16") throw UsageError("precision '{}' is not known; one of fp32, bf16", asked);
  const auto slow = std::ranges::find_if(of_rank, [](const RankPrecision& r) { return !r.why_slow.empty(); });
  if (slow == of_rank.end()) return {.compute = DType::bfloat16, .remark = {}};
  const std::string why = of_rank.size() == 1 ? slow->why_slow
                                              : fmt::format("rank {} on {}: {}", slow - of_rank.begin(),
                                                            slow->host, slow->why_slow);
  if (fallback == "fp32") return {.remark = "precision bf16: computes in float32: " + why};
  if (fallback == "convert")
    return {.compute = DType::bfloat16, .remark = "precision bf16 by conversion, slower than fp32: " + why};
  if (fallback != "refuse")
    throw UsageError("a bf16 fallback of '{}' is not known; one of refuse, fp32, convert", fallback);
  throw UsageError(
      "precision bf16 would be slower than fp32: {}; use precision fp32, or set train.bf16_fallback "
      "(--bf16-fallback) to fp32, which computes in float32 here, or to convert, which computes the same in "
      "software",
      why);
}

DType settle_precision(Session& session, const std::string& asked, const std::string& fallback) {
  comm::HostGroup& world = session.world();
  std::vector<RankPrecision> of_rank;
  const comm::Topology& topology = world.topology();
  for (const std::string& why : world.all_gather_texts(session.backend().why_slow_in_bf16())) {
    const auto node = static_cast<std::size_t>(topology.node_of_rank[of_rank.size()]);
    of_rank.push_back({.why_slow = why, .host = topology.host_names[node]});
  }
  const PrecisionChoice choice = choose_precision(asked, fallback, of_rank);
  if (!choice.remark.empty() && world.rank() == 0) session.log().warning("{}", choice.remark);
  return choice.compute;
}

std::string precision_text(DType compute, const kernels::Backend& backend) {
  if (compute == DType::float32) return "fp32";
  return backend.why_slow_in_bf16().empty() ? "bf16" : "bf16 by conversion";
}

}  // namespace lockstep::train
