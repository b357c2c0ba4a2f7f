// Times the tree sum and MPI's all-reduce.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/comm/gradient_transport.h"

namespace lockstep::comm {

/// Medians over alternating rounds of one run; the time of a round is that of its slowest rank.
struct AllReduceTime {
  std::size_t bytes = 0;
  int ranks = 0;
  double lockstep_ms = 0;
  double mpi_ms = 0;   ///< MPI_Allreduce in place on as many float32; 0 without MPI
  bool exact = false;  ///< every element has the bits of the serial fold over the shards
};

/// Times sums of each size in `bytes` of float32, with one shard a rank. Sizes are multiples of 4, with at
/// most as many elements as one MPI_Allreduce takes (INT_MAX). Takes seconds. Collective.
std::vector<AllReduceTime> time_all_reduce(GradientTransport& transport, std::span<const std::size_t> bytes);

}  // namespace lockstep::comm
