// An operation of a test's own on a GPU: a capture takes it if it would repeat, and refuses it if not.
#include <boost/test/unit_test.hpp>
#include <string>

#include "kernels/cuda/twins.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(own_operation_on_a_gpu)

using kernels::Backend;

/// y = x + x, or, as the attribute says, something else at every step.
struct Doubled {
  static constexpr const char* name = "doubled";
  Tensor x, y;
  bool by_chance = false;

  static void operands(auto& op, auto&& each) { each(ops::in("x", op.x), ops::out("y", op.y)); }
  const char* changes_between_runs() const {
    return by_chance ? "doubled throws a coin at every step" : nullptr;
  }
};

void doubled(Backend& backend, const Doubled& op) { backend.run(ops::add(op.x, op.x, op.y)); }

BOOST_AUTO_TEST_CASE(what_repeats_is_captured_and_what_does_not_is_refused_by_its_own_words) {
  const auto gpu = kernels::make_cuda_backend(0);
  gpu->enter<&doubled>();
  const Tensor x = gpu->empty({5}), y = gpu->empty({5}), back = Tensor::zeros({5});
  gpu->fill(x, 1);
  gpu->run(Doubled{x, y, true});  // outside of a capture anything goes
  {
    const auto capture = gpu->capture_graph(0);
    BOOST_CHECK_EXCEPTION(gpu->run(Doubled{x, y, true}), UsageError, [](const UsageError& error) {
      return std::string(error.what()) == "doubled throws a coin at every step, which a graph cannot repeat";
    });
  }
  const auto capture = gpu->capture_graph(0);
  gpu->run(Doubled{x, y});
  const auto graph = capture->finish();
  gpu->fill(x, 3);
  graph->launch(0);
  gpu->copy(y, back);
  for (int i = 0; i < 5; ++i) BOOST_TEST(back.data<float>()[i] == 6);
}

BOOST_AUTO_TEST_CASE(a_tensor_of_the_cpu_is_refused_by_name) {
  const auto gpu = kernels::make_cuda_backend(0);
  gpu->enter<&doubled>();
  BOOST_CHECK_EXCEPTION(
      gpu->run(Doubled{Tensor::zeros({5}), gpu->empty({5})}), UsageError,
      [](const UsageError& error) { return std::string(error.what()) == "doubled on cuda:0: x is on cpu"; });
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
