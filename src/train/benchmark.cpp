#include "train/benchmark.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::train {

const std::vector<StandardWorkload>& standard_workloads() {
  static const std::vector<StandardWorkload> workloads{
      {"gpt-cpu", 8,
       "[model]\nname = gpt\nlayers = 4\nheads = 4\nchannels = 256\ncontext = 128\nvocab = 256\n"
       "[optimizer]\nname = adamw\nlr = 1e-3\nweight_decay = 0.1\n"},
      {"resnet-cpu", 32,
       "[model]\nname = resnet\nblocks = 2 2 2\nwidth = 32\nin_channels = 3\nclasses = 10\n"
       "[optimizer]\nname = sgd\nlr = 0.01\nmomentum = 0.9\n"},
      {"mlp-wide", 32,
       "[model]\nname = mlp\nsizes = 1024 4096 4096 1024\n"
       "[optimizer]\nname = sgd\nlr = 0.01\n"},
      {"gpt-gpu", 16,
       "[model]\nname = gpt\nlayers = 12\nheads = 12\nchannels = 768\ncontext = 1024\nvocab = 50304\n"
       "[optimizer]\nname = adamw\nlr = 6e-4\nweight_decay = 0.1\n"},
      {"resnet-gpu", 128,
       "[model]\nname = resnet\nstem = 7x7\nblocks = 2 2 2 2\nwidth = 64\nin_channels = 3\nclasses = 1000\n"
       "[optimizer]\nname = sgd\nlr = 0.1\nmomentum = 0.9\n",
       224},
  };
  return workloads;
}

const StandardWorkload& workload_named(const std::string& name) {
  std::vector<std::string> names;
  for (const StandardWorkload& workload : standard_workloads()) {
    if (workload.name == name) return workload;
    names.push_back(workload.name);
  }
  throw UsageError("unknown workload '{}'; one of {}", name, fmt::join(names, ", "));
}

}  // namespace lockstep::train
