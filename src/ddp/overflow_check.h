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
  /// Asks the device about the sums of a step, behind them. What it says must be read before check().
  kernels::Transfer ask(const Reducer& reducer);
  /// Collective: if some are not finite, every rank throws the same TrainingError, naming the first such
  /// parameter. trainable: those of the model, in its order.
  void check(std::span<Param* const> trainable, std::uint64_t step);

 private:
  struct Part {
    std::size_t param = 0;                     // index in the sharding
    std::int64_t first_block = 0, blocks = 0;  // of what this rank has of its sum
  };
  comm::Communicator& communicator_;
  kernels::Backend& backend_;
  const Sharding* sharding_;
  std::vector<Part> parts_;   // by trainable parameter
  Tensor squares_;            // float64, by block
  std::vector<double> read_;  // squares_ on the CPU
  std::vector<std::int64_t> first_of_rank_;
};

}  // namespace lockstep::ddp
