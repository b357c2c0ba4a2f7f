// A rank's GPU, what sums between those of all ranks, and toy.h's network there.
#pragma once

#include <memory>

#include "comm/nccl/on_gpu.h"
#include "ddp/toy.h"

namespace lockstep::test {

struct Gpu {
  explicit Gpu(bool reproducible = true, comm::HostGroup& ranks = world())
      : backend(kernels::make_cuda_backend(own_gpu())),
        sums(comm::make_nccl_transport(
            ranks,
            {.device = backend->device().index, .stream = backend->stream(), .reproducible = reproducible})) {
  }
  std::shared_ptr<kernels::Backend> backend;
  std::unique_ptr<comm::GradientTransport> sums;
};

struct GpuRun : ToyRun {
  GpuRun(Gpu& gpu, const ddp::Options& options) : GpuRun(gpu, options, *gpu.sums) {}
  GpuRun(Gpu& gpu, const ddp::Options& options, comm::GradientTransport& sums)
      : ToyRun(options, {.transport = &sums, .backend = gpu.backend}) {}
};

}  // namespace lockstep::test
