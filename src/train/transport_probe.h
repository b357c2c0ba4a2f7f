// Private to the module: asks a transport what it has found broken, in a separate thread, since the answer
// may never come.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "lockstep/comm/communicator.h"

namespace lockstep::train {

/// error() and turns() are any thread's, at any time. It is made, told what to look after, and ended by one
/// thread, or by threads that take turns.
class TransportProbe {
 public:
  /// every_s: between two questions. patience_s: the longest wait for an answer, where one has to be waited
  /// for; then the thread that asks is left behind.
  explicit TransportProbe(double every_s, double patience_s = 10);
  ~TransportProbe();
  TransportProbe(const TransportProbe&) = delete;
  TransportProbe& operator=(const TransportProbe&) = delete;

  /// None: from when this returns the one before may go. Throws FailureError if there is no thread to be had.
  void look_after(const comm::GradientTransport* transport);
  /// What the transport said last; nothing if it is whole, or has not answered.
  std::string error() const;
  /// How often the thread at hand has looked, whether or not there was a transport to ask.
  std::uint64_t turns() const;

 private:
  struct Shared;
  static void ask(Shared& shared, double every_s);
  std::shared_ptr<Shared> shared() const;
  void start();
  void leave_behind();

  double every_s_, patience_s_;
  mutable std::mutex changing_;  ///< held while shared_ itself is another: its owner alone reads it without
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace lockstep::train
