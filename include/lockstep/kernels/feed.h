// Feed: brings what one thread fills in CPU memory to the device, beside what another computes there.
#pragma once

#include <memory>
#include <span>

#include "lockstep/tensor/tensor.h"

namespace lockstep::kernels {

/// A place on both sides. On the CPU both are the same memory.
struct FeedRoom {
  Tensor host;    ///< CPU memory that the device copies from at full speed
  Tensor device;  ///< of the same shape and type
};

/// Goes round: begin_fill() and send() by the thread that fills, then receive() and release() by the one that
/// computes; what orders the two threads is the callers' own. Must not outlive its Backend; rooms may.
class Feed {
 public:
  virtual ~Feed() = default;
  /// Zeroed. Before the first begin_fill().
  virtual FeedRoom make_room(Shape shape, DType dtype) = 0;

  /// Filling: returns when the host's side may be written again.
  virtual void begin_fill() = 0;
  /// Filling: starts the copies, once whoever computed with what was there before is through with it.
  virtual void send(std::span<const FeedRoom> rooms) = 0;
  /// Computing: operations asked for from now on find what was sent.
  virtual void receive() = 0;
  /// Computing: no operation asked for from now on, until the next receive(), uses it.
  virtual void release() = 0;
};

/// For a CPU: nothing is copied.
std::unique_ptr<Feed> make_host_feed();

}  // namespace lockstep::kernels
