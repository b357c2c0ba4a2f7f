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

struct GpuRun {
  GpuRun(Gpu& gpu, const ddp::Options& options) : GpuRun(gpu, options, *gpu.sums) {}
  GpuRun(Gpu& gpu, const ddp::Options& options, comm::GradientTransport& sums)
      : backend((net.to(*gpu.backend), *gpu.backend)), replicas(net.state(), sums, backend, options) {}

  ddp::StepResult step(std::uint64_t step, const LossOf& loss_of = plain_loss) {
    return replicas.step(toy_batch(step, replicas),
                         [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
                           const ToyShard there = on_device(shard, backend);
                           return loss_of(net, tape, {shard.index, piece.rows(there.x), piece.rows(there.y)});
                         });
  }
  /// A step, whose gradients must have the bits of the same shards run here alone.
  void check_step(std::uint64_t number, const LossOf& loss_of = plain_loss) {
    step(number, loss_of);
    check_gradients(net,
                    reference_on(backend, number, replicas.shard_map().shards(),
                                 replicas.options().micro_batches, loss_of),
                    &backend);
  }

  Net net;
  kernels::Backend& backend;
  ddp::DataParallel replicas;
};

}  // namespace lockstep::test
