// Whether gradients survived travelling as float16.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ddp/reducer.h"
#include "lockstep/autograd/sharding.h"

namespace lockstep::ddp {

/// float16 ends at 65504, which a sum over a batch may pass: it is infinite then, on every rank.
class OverflowCheck {
 public:
  /// params: of the model. sharding: with a sharded optimizer, where each rank has its part of the sums.
  OverflowCheck(std::span<Param* const> params, comm::Communicator& communicator, kernels::Backend& backend,
                const Sharding* sharding);
  /// Collective, after the sums of a step: if some are not finite, every rank throws the same TrainingError,
  /// naming the first such parameter.
  void check(const Reducer& reducer, std::uint64_t step);

 private:
  bool finite(const Tensor& vector);

  comm::Communicator& communicator_;
  kernels::Backend& backend_;
  const Sharding* sharding_;
  std::vector<std::size_t> trainable_;  // indices in the sharding
  std::vector<double> squares_;         // as read
  std::vector<std::int64_t> first_of_rank_;
};

}  // namespace lockstep::ddp
