// Private to the module: which device each rank of a run computes on.
#pragma once

#include <span>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/tensor/storage.h"

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

}  // namespace lockstep::train
