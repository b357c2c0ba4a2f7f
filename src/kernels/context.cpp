#include "lockstep/kernels/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep {
namespace {

std::string to_string(const RunShape& shape) {
  return fmt::format("a global batch of {}, {} shards and seed {}", shape.global_batch, shape.shards,
                     shape.seed);
}

void check(const RunShape& shape, int ranks) {
  if (shape.global_batch < 0 || shape.shards < 0)
    throw UsageError("the shape of the run is {}: no value may be negative", to_string(shape));
  if (shape.global_batch % shape.shards != 0)
    throw UsageError("{} shards do not divide a global batch of {}", shape.shards, shape.global_batch);
  if (shape.shards < ranks)
    throw UsageError("{} ranks but only {} shards: start at most {} ranks, or start a run with more shards",
                     ranks, shape.shards, shape.shards);
}

}  // namespace

void Context::set_run(const RunShape& shape) {
  const comm::NamedCall call(world(), "calls Session::set_run");
  const int ranks = world().size();
  RunShape mine = shape;
  if (mine.shards == 0) mine.shards = ranks;
  if (const auto differing = comm::first_difference(world(), to_string(mine)))
    throw UsageError("the ranks set different shapes of the run: {}", differing->text());
  check(mine, ranks);
  if (read_ && mine != run_)
    throw UsageError(
        "the run has {}: set_run() comes too late; call it once, before a DataParallel, Loader or Store is "
        "made",
        run_.shards == 0 ? "no shape" : to_string(run_));
  run_ = mine;
}

comm::FlatBuffer& Context::sum_memory(comm::GradientTransport& transport, std::size_t bytes) {
  constexpr std::size_t min_bytes = std::size_t{64} << 10;
  const comm::GradientTransport& of_cpus = world();
  auto& [last, buffer] = sum_memory_[&transport == &of_cpus ? 0 : 1];
  if (!buffer || last != &transport || buffer->accumulator_bytes() < bytes) {
    buffer.reset();
    buffer = transport.allocate_buffer(std::bit_ceil(std::max(bytes, min_bytes)), 1);
    last = &transport;
  }
  return *buffer;
}

}  // namespace lockstep
