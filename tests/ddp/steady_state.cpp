// From step 4 on a step asks the system for no memory: every operator new and every pool growth is counted.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <new>

#include "ddp/toy.h"

namespace {

std::atomic<long> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* const memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace lockstep::test {
namespace {

class Sum final : public Statistic {
 public:
  const std::string& name() const override { return name_; }
  std::int64_t elements() const override { return 3; }
  void apply(std::span<const double>) override {}

 private:
  std::string name_ = "sum";
};

/// Allocations inside steps 4 to 7.
long steady_allocations(ddp::Unused unused, bool use_all) {
  Net net;
  Sum sum;
  ModelState state = net.state();
  state.params.pop_back();  // the one without elements
  state.statistics = {&sum};
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(
      state, world(), *backend,
      {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .shards = 7, .micro_batches = 2, .unused = unused});
  const ToyBatch batch = toy_batch(0, replicas);
  const auto loss_of = [&](Tape& tape, const ToyShard& shard, const ddp::Piece& piece) {
    const GradientSlot slot = tape.pass().sink->slot(sum);
    std::fill_n(slot.memory.data<double>(), 3, 1.0);
    tape.pass().sink->contributed(sum);
    Var h =
        relu(linear(tape.constant(piece.rows(shard.x)), tape.use(net.params[0]), tape.use(net.params[1])));
    if (use_all || shard.index % 2 == 0) h = relu(linear(h, tape.use(net.params[2])));
    return mse(linear(h, tape.use(net.params[3]), tape.use(net.params[4])), piece.rows(shard.y));
  };
  long before = 0;
  std::size_t pool_before = 0;
  for (int step = 1; step <= 7; ++step) {
    if (step == 4) {
      before = allocations;
      pool_before = backend->reserved_bytes();
    }
    replicas.step(batch, loss_of);
  }
  BOOST_TEST(backend->reserved_bytes() == pool_before);
  return allocations - before;
}

BOOST_AUTO_TEST_CASE(the_counter_counts) {
  const long before = allocations;
  delete new int;
  BOOST_TEST(allocations == before + 1);
}

BOOST_AUTO_TEST_CASE(a_steady_step_allocates_nothing) {
  BOOST_TEST(steady_allocations(ddp::Unused::error, true) == 0);
}

BOOST_AUTO_TEST_CASE(a_steady_step_with_unused_parameters_allocates_nothing) {
  BOOST_TEST(steady_allocations(ddp::Unused::allow, false) == 0);
}

}  // namespace
}  // namespace lockstep::test
