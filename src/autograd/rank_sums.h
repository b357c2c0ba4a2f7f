// RankSums: small vectors that layers add over the ranks in the middle of a pass.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

/// The vectors travel from and to where they are, through a flat buffer of the transport: on a GPU no CPU
/// waits for them. One sum at a time; in the steady state (lengths seen before) nothing is allocated but the
/// result, from the backend's pool.
class RankSums {
 public:
  /// `transport` must outlive this. Destruction is collective, once there was a sum.
  explicit RankSums(comm::GradientTransport& transport) : transport_(transport) {}

  /// Every rank's `mine` (float64, as many elements on each), added in rank order: the same bits on every
  /// rank. Collective. Shape as `mine`.
  Tensor sum(kernels::Backend& backend, const Tensor& mine);

  comm::GradientTransport& transport() const noexcept { return transport_; }

 private:
  void reserve(std::int64_t elements);
  /// Elements [r n, (r + 1) n) are rank r's.
  const comm::Slices& slices_of(std::int64_t elements);

  comm::GradientTransport& transport_;
  std::unique_ptr<comm::FlatBuffer> flat_buffer_;  // every rank's vector, one after another
  std::map<std::int64_t, comm::Slices> slices_;    // by n
};

}  // namespace lockstep
