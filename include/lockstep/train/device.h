// Which device the ranks of a run compute on.
#pragma once

#include <span>
#include <string>

#include "lockstep/tensor/storage.h"

namespace lockstep::train {

/// Among `visible` GPUs (at least one), that of the rank with this place on its machine: ranks take them in
/// turn. Where a launcher shows each rank one GPU only it is that one.
int gpu_of_rank(int local_rank, int visible);

/// What one rank has.
struct RankDevices {
  int gpus = 0;         ///< visible to it, and good for what they are to do
  std::string problem;  ///< why those of its machine are not; empty where there are none
  std::string remedy;   ///< what helps against the problem
  std::string host;
};

struct DeviceChoice {
  Device::Kind kind = Device::Kind::cpu;
  std::string remark;  ///< to be said once; empty if there is nothing to say
};

/// asked: "auto" (GPUs if this build can use them and every rank has one of its own), "cpu" or "cuda". built:
/// this build computes on GPUs. sharing: why ranks that all have a GPU cannot use them together
/// (comm::sharing_problem), if so. A pure function: all ranks choose alike. Throws UsageError saying what is
/// missing, and where: with cuda, or if some ranks have a GPU and others none.
DeviceChoice choose_device(const std::string& asked, bool built, std::span<const RankDevices> of_rank,
                           const std::string& sharing = {});

}  // namespace lockstep::train
