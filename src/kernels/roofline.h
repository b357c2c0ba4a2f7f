// Roofline: what operations move, compute and launch on a GPU, and the least time that takes, counted on any
// machine by a backend that carries nothing out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

/// The fixed GPU of every roofline: an H100's memory and tensor cores as kernels reach them, and the start of
/// a kernel.
struct RooflineConstants {
  double bytes_per_s = 3.0e12;
  double flops_per_s = 620e12;
  double launch_s = 2e-6;
};

/// All operations of one name.
struct RooflineFigures {
  enum class Kind { product, attention, other };
  std::string name;
  Kind kind = Kind::other;
  std::int64_t calls = 0;
  std::int64_t launches = 0;  ///< of kernels, and of fills of memory
  double bytes = 0;           ///< read and written, each pass over an operand counted
  double flops = 0;           ///< of products
  double ms = 0;              ///< of each call the larger of its bytes' and flops' time, and its launches'
};

/// The figures of operations by name.
class Roofline {
 public:
  /// Counts one call.
  void add(const std::string& name, std::int64_t launches, double bytes, double flops);
  void clear() { by_name_.clear(); }
  /// The longest first.
  std::vector<RooflineFigures> operations() const;

 private:
  std::map<std::string, RooflineFigures> by_name_;
};

/// What the GPU's function for an operation launches and moves (src/kernels/cuda): one kernel that touches
/// each operand once, unless this knows better.
struct GpuWork {
  std::int64_t launches = 1;
  double bytes = 0;
};
GpuWork gpu_work(const ops::AnyOperation& operation);

/// Address space that nothing backs: memory of a device that is not there.
class MetaMemory {
 public:
  MetaMemory();
  /// 512-byte aligned. Throws FailureError where the address space is used up.
  StorageRef allocate(std::size_t bytes) const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

/// A GPU that is not there: tensors have addresses, operations are checked and counted in `into`, and what
/// the CPU reads is ones. `into` must outlive it.
std::unique_ptr<Backend> make_meta_backend(Roofline& into);

}  // namespace lockstep::kernels
