// Private to the module: the device that each rank of a run computes on, and the precision (train.device and
// train.precision, if the devices have and accelerate them).
#pragma once

#include <span>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/tensor/storage.h"
#include "lockstep/train/session.h"

namespace lockstep::train {

/// The GPU for the rank with this number on its node; at least one must be visible. Ranks use them in turn;
/// if a launcher shows each rank one GPU only, it is that one.
int gpu_of_rank(int local_rank, int visible);

/// The devices of one rank.
struct RankDevices {
  int gpus = 0;         ///< visible to the rank and good enough for the run
  std::string problem;  ///< why the GPUs of the node cannot be used; empty if it has none
  std::string remedy;   ///< the remedy for the problem
  std::string host;
  std::string gpu = {};   ///< the rank's own, as kernels::Gpu::name
  std::string code = {};  ///< remark and remedy of kernels::GpuCode
};

struct DeviceChoice {
  Device::Kind kind = Device::Kind::cpu;
  std::string remark;  ///< printed once; usually empty
};

/// name: "cpu", "cuda" or "auto" (GPUs if this build can use them and every rank has one of its own). built:
/// this build computes on GPUs. sharing: why ranks that all have a GPU cannot use them together
/// (comm::sharing_problem), or empty. All ranks choose the same, as this depends on its arguments only.
/// Throws UsageError that names the missing device and its node, with cuda, or if only some ranks have a GPU.
DeviceChoice choose_device(const std::string& name, bool built, std::span<const RankDevices> of_rank,
                           const std::string& sharing = {});

struct RankDevice {
  Device device = Device::cpu();
  std::string description;  ///< of a GPU
  std::string remark;       ///< as in DeviceChoice
};

/// choose_device() for the ranks of `world` and their devices. Collective. sums: they sum gradients on these
/// devices.
RankDevice choose_device(comm::HostGroup& world, const std::string& name, bool sums);

/// bf16 on the device of one rank.
struct RankPrecision {
  std::string why_slow;  ///< kernels::Backend::why_slow_in_bf16()
  std::string host;
};

struct PrecisionChoice {
  DType compute = DType::float32;
  std::string remark;  ///< logged once; may be empty
};

/// name: "fp32" or "bf16". If bf16 would be slower than float32 on some rank, `fallback` decides for all:
/// "refuse" (UsageError with the rank and the reason), "fp32", or "convert" (the same computation in
/// software).
PrecisionChoice choose_precision(const std::string& name, const std::string& fallback,
                                 std::span<const RankPrecision> of_rank);

/// The choice for the session's device; its remark is logged. Collective; errors are the same on every rank.
DType choose_session_precision(Session& session, const std::string& name, const std::string& fallback);

/// The precision in checkpoints: "fp32", "bf16", or "bf16 by conversion" if the device is not faster in it.
std::string precision_text(DType compute, const kernels::Backend& backend);

}  // namespace lockstep::train
