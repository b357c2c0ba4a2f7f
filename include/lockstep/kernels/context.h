// Context: the ranks and the device that a program computes with, and the shape of its run. A Session
// (lockstep/train/session.h) is one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/backend.h"

namespace lockstep {

/// The numbers that determine the samples of each step and the order of every sum. They stay the same for a
/// whole run: checkpoint::Store::resume() checks it.
struct RunShape {
  std::int64_t global_batch = 0;  ///< samples of a step, over all ranks; 0: unknown
  int shards = 0;                 ///< of the global batch; 0: unknown
  std::uint64_t seed = 0;         ///< of the order of samples and of all random draws; known if shards is

  bool operator==(const RunShape&) const = default;
};

/// The surroundings of a program's objects: ranks, a device, and the shape of the run.
class Context {
 public:
  virtual ~Context() = default;

  /// The group of ranks, which also sums between their CPUs.
  virtual comm::CpuCommunicator& world() const = 0;
  /// Sums between the devices of the ranks: world() itself between CPUs.
  virtual comm::GradientTransport& transport() const = 0;
  virtual kernels::Backend& backend() = 0;  ///< runs the operations

  /// Sets the shape of the run once, for the DataParallel, the Loader and the Store that use this context.
  /// shards = 0: one per rank. Collective. Throws the same UsageError on every rank if ranks set different
  /// shapes, if the shards do not divide the batch, if there are more ranks than shards, or if run() was read
  /// before and had another shape.
  void set_run(const RunShape& shape);
  /// The shape of the run; unknown until set_run() is called.
  const RunShape& run() const {
    read_ = true;
    return run_;
  }

  /// An accumulator of at least `bytes` in memory of this transport, which is world() or transport(). It is
  /// kept for the next call. Collective.
  comm::FlatBuffer& sum_memory(comm::GradientTransport& transport, std::size_t bytes);

 protected:
  /// Called before a transport ends. Collective.
  void release_sum_memory() { sum_memory_ = {}; }

 private:
  struct SumMemory {
    comm::GradientTransport* transport = nullptr;
    std::unique_ptr<comm::FlatBuffer> buffer;
  };

  RunShape run_;
  mutable bool read_ = false;
  std::array<SumMemory, 2> sum_memory_;  // of world() and, if it is another, of transport()
};

}  // namespace lockstep
