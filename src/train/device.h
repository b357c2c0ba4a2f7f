// Private to the module: the device that each rank of a run computes on, and the precision (train.device and
// train.precision, as far as the devices have them and are fast in it).
#pragma once

#include <span>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/tensor/storage.h"
#include "lockstep/train/session.h"

namespace lockstep::train {

/// The GPU, of at least one that is visible, for the rank with this number on its node. Ranks take them in
/// turn; if a launcher shows each rank one GPU only, it is that one.
int gpu_of_rank(int local_rank, int visible);

/// What one rank has.
struct RankDevices {
  int gpus = 0;         ///< visible to the rank and good enough for the run
  std::string problem;  ///< why the GPUs of the node cannot be used; empty if it has none
  std::string remedy;   ///< what helps against the problem
  std::string host;
  std::string gpu = {};   ///< the rank's own, as kernels::Gpu::name
  std::string code = {};  ///< remark and remedy of kernels::GpuCode
};

struct DeviceChoice {
  Device::Kind kind = Device::Kind::cpu;
  std::string remark;  ///< to be printed once; mostly empty
};

/// asked: "cpu", "cuda" or "auto" (GPUs if this build can use them and every rank has one of its own). built:
/// this build computes on GPUs. sharing: why ranks that all have a GPU cannot use them together
/// (comm::sharing_problem), or empty. All ranks choose the same, as this depends on its arguments only.
/// Throws UsageError saying what is missing, and where: with cuda, or if only some ranks have a GPU.
DeviceChoice choose_device(const std::string& asked, bool built, std::span<const RankDevices> of_rank,
                           const std::string& sharing = {});

struct RankDevice {
  Device device = Device::cpu();
  std::string description;  ///< of a GPU
  std::string remark;       ///< as in DeviceChoice
};

/// choose_device() for the ranks of `world`, from what each of them has. Collective. sums: they sum gradients
/// on these devices.
RankDevice choose_device(comm::HostGroup& world, const std::string& asked, bool sums);

/// bf16 on the device of one rank.
struct RankPrecision {
  std::string why_slow;  ///< kernels::Backend::why_slow_in_bf16()
  std::string host;
};

struct PrecisionChoice {
  DType compute = DType::float32;
  std::string remark;  ///< to be logged once; may be empty
};

/// asked: "fp32" or "bf16". Where bf16 would be slower than float32 on some rank, `fallback` decides for all:
/// "refuse" (UsageError saying where and why), "fp32", or "convert" (the same computation in software).
PrecisionChoice choose_precision(const std::string& asked, const std::string& fallback,
                                 std::span<const RankPrecision> of_rank);

/// The choice for the session's device; its remark is logged. Collective; errors are the same on every rank.
DType choose_session_precision(Session& session, const std::string& asked, const std::string& fallback);

/// As checkpoints store it: "fp32", "bf16", or "bf16 by conversion" where the device is no faster in it.
std::string precision_text(DType compute, const kernels::Backend& backend);

}  // namespace lockstep::train
