// Parts that are computed again: the same gradients, told to the sink in the same order, from less memory.
#include "lockstep/autograd/recompute.h"

#include <array>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <deque>
#include <functional>
#include <stdexcept>

#include "autograd/recording_sink.h"
#include "lockstep/autograd/functions.h"
#include "support/meetings.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(recompute)

constexpr std::int64_t rows = 64, width = 48;

Tensor drawn(Shape shape, std::uint64_t purpose) {
  const Tensor tensor = Tensor::empty(shape);
  const Random random({.seed = 5, .purpose = purpose});
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<float>()[i] = random.normal(static_cast<std::uint64_t>(i));
  return tensor;
}

std::vector<float> elements(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

class Moments final : public Statistic {
 public:
  const std::string& name() const override { return name_; }
  std::int64_t elements() const override { return 2 * width + 1; }
  void apply(kernels::Backend&, const Tensor&) override {}

 private:
  std::string name_ = "moments";
};

struct Fixture {
  Fixture() {
    for (int i = 0; i < 6; ++i) {
      Param& param = params.emplace_back();
      param.name = std::string(1, static_cast<char>('a' + i));
      param.value = drawn(i < 4 ? Shape{width, width} : Shape{width}, static_cast<std::uint64_t>(i));
    }
  }

  void begin() {
    sink.events.clear();
    sink.statistics.clear();
    for (Param& param : params) param.gradient = {};
    tape.begin({.seed = 3, .step = 7, .sink = &sink, .layer_transport = &meetings});
  }

  Var use(int param) { return tape.parameter(params[static_cast<std::size_t>(param)]); }

  /// Dropout, a norm that meets other ranks, a parameter used twice, and one that is used outside, too.
  Var block(const Var& x) {
    const Var h = relu(batch_norm(linear(x, use(0)), use(4), use(5),
                                  {.running_mean = running_mean,
                                   .running_var = running_var,
                                   .transport = tape.pass().layer_transport,
                                   .statistic = &moments}));
    return x + dropout(linear(linear(h, use(1)), use(1)), 0.3f, purpose_of("block")) + linear(x, use(2));
  }

  struct Result {
    std::vector<std::string> events;
    std::vector<std::vector<float>> gradients;
    std::vector<double> statistics;
    int meetings = 0;
    bool operator==(const Result&) const = default;
  };

  template <class Run>
  Result result_of(const Run& run) {
    begin();
    meetings.count = 0;
    const Var x = tape.input(drawn({rows, width}, 9));
    const Loss loss = mse(run(linear(x, use(2))), drawn({rows, width}, 10));
    backward(loss);
    tape.finish_backward();
    Result result{
        .events = sink.events, .gradients = {}, .statistics = sink.statistics, .meetings = meetings.count};
    for (const Param& param : params)
      if (param.gradient) result.gradients.push_back(elements(param.gradient));
    result.gradients.push_back(elements(tape.gradient(x)));
    return result;
  }

  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  std::unique_ptr<comm::CpuCommunicator> self = comm::make_self_communicator();
  Meetings meetings{*self};
  RecordingSink sink{*backend};
  std::deque<Param> params;
  Moments moments;
  Tensor running_mean = Tensor::zeros({width}), running_var = drawn({width}, 8);
  Tape tape{*backend};
};

void check_equal(const Fixture::Result& found, const Fixture::Result& wanted) {
  BOOST_TEST(found.events == wanted.events, boost::test_tools::per_element());
  BOOST_TEST((found.gradients == wanted.gradients));
  BOOST_TEST((found.statistics == wanted.statistics));
  BOOST_TEST(found.meetings == wanted.meetings);
}

BOOST_FIXTURE_TEST_SUITE(recompute, Fixture)

BOOST_AUTO_TEST_CASE(gradients_events_statistics_and_meetings_are_those_of_kept_activations) {
  const Result kept = result_of([&](const Var& x) { return block(block(x)); });
  BOOST_TEST(kept.meetings == 4);  // each norm: moments, and the sums of its backward
  const auto again = [&](const Var& x) { return recomputed(tape, [&, x] { return block(x); }); };
  check_equal(result_of([&](const Var& x) { return again(again(x)); }), kept);
  check_equal(result_of([&](const Var& x) { return again(block(x)); }), kept);
  check_equal(result_of([&](const Var& x) { return block(again(x)); }), kept);
  check_equal(result_of([&](const Var& x) { return recomputed(tape, [&, x] { return again(block(x)); }); }),
              kept);
  check_equal(result_of([&](const Var& x) { return recomputed(tape, [&, x] { return again(again(x)); }); }),
              kept);
}

BOOST_AUTO_TEST_CASE(values_from_outside_may_be_captured) {
  const auto sum = [](const Var& x, const Var& h) { return relu(x + h) + gelu_tanh(h); };
  const Result kept = result_of([&](const Var& x) {
    const Var h = silu(x);
    return sum(relu(x), h) + h;
  });
  check_equal(result_of([&](const Var& x) {
                const Var h = silu(x);
                return recomputed(tape, [y = relu(x), h, sum] { return sum(y, h); }) + h;
              }),
              kept);
}

BOOST_AUTO_TEST_CASE(a_part_may_have_several_results_of_which_not_all_need_be_used) {
  const auto three = [&](const Var& x) {
    const Var h = relu(linear(x, use(0)));
    return std::array<Var, 3>{h, gelu_tanh(linear(h, use(1))), x};
  };
  const auto again = [&](const Var& x) { return recomputed(tape, [three, x] { return three(x); }); };
  const auto run = [&](const auto& part, int used) {
    return result_of([&](const Var& x) {
      const auto [h, branch, same] = part(x);
      return used == 0 ? relu(h) + same : used == 1 ? silu(branch) : h + branch + branch + same;
    });
  };
  for (const int used : {0, 1, 2}) check_equal(run(again, used), run(three, used));
}

BOOST_AUTO_TEST_CASE(a_chain_of_parts_holds_the_activations_of_one) {
  const auto chain_bytes = [&](bool again) {
    const auto own = kernels::make_cpu_backend();
    Tape own_tape(*own);
    own_tape.begin({});
    const auto part = [](const Var& x) {
      Var h = x;
      for (int i = 0; i < 8; ++i) h = gelu_tanh(h);
      return h;
    };
    Var h = own_tape.input(drawn({rows, width}, 9));
    for (int i = 0; i < 8; ++i) h = again ? recomputed(own_tape, [part, h] { return part(h); }) : part(h);
    backward(mse(h, drawn({rows, width}, 10)));
    return own->reserved_bytes() / (rows * width * sizeof(float));
  };
  BOOST_TEST(chain_bytes(false) >= 64u);
  BOOST_TEST(chain_bytes(true) <= 8u + 8u + 6u);  // inputs of parts, a part, and gradients on their way
}

BOOST_AUTO_TEST_CASE(a_part_that_nothing_reaches_leaves_its_parameters_without_a_gradient) {
  const auto run = [&](bool again) {
    return result_of([&](const Var& x) {
      const auto aside = [&](const Var& y) { return linear(y, use(3)); };
      again ? recomputed(tape, [aside, x] { return aside(x); }) : aside(x);
      return block(x);
    });
  };
  check_equal(run(true), run(false));
}

BOOST_AUTO_TEST_CASE(a_part_may_return_what_it_was_given) {
  check_equal(result_of([&](const Var& x) { return block(recomputed(tape, [x] { return x; })); }),
              result_of([&](const Var& x) { return block(x); }));
}

BOOST_AUTO_TEST_CASE(without_recording_the_body_is_called_once) {
  int calls = 0;
  tape.begin({.training = false, .record = false});
  const Var y = recomputed(tape, [&, x = tape.constant(drawn({rows, width}, 9))] {
    ++calls;
    return relu(x);
  });
  BOOST_TEST(calls == 1);
  BOOST_TEST(!y.needs_gradient());
}

BOOST_AUTO_TEST_CASE(a_body_that_does_something_else_the_second_time_is_an_error) {
  const auto changing = [&](const std::function<Var(const Var&, int)>& body) {
    int call = 0;
    result_of([&](const Var& x) { return recomputed(tape, [&, x] { return body(x, call++); }); });
  };
  BOOST_CHECK_EXCEPTION(changing([](const Var& x, int call) { return call == 0 ? relu(x) : silu(x); }),
                        UsageError, mentions("other operations"));
  BOOST_CHECK_EXCEPTION(changing([&](const Var& x, int call) { return linear(x, use(call == 0 ? 0 : 1)); }),
                        UsageError, mentions("other operations"));
  BOOST_CHECK_EXCEPTION(changing([](const Var& x, int call) { return call == 0 ? relu(x) : x; }), UsageError,
                        mentions("other operations"));
  // Draws under another key, and values that have changed.
  BOOST_CHECK_EXCEPTION(
      changing([](const Var& x, int call) { return dropout(x, 0.5f, static_cast<std::uint64_t>(call)); }),
      UsageError, mentions("other values"));
  BOOST_CHECK_EXCEPTION(changing([](const Var& x, int call) { return scale(x, call == 0 ? 1.f : -1.f); }),
                        UsageError, mentions("other values"));
}

BOOST_AUTO_TEST_CASE(a_value_from_inside_cannot_be_used_outside) {
  const auto leak = [&](bool in_loss) {
    result_of([&](const Var& x) {
      Var inside;
      const Var y = recomputed(tape, [&, x] {
        inside = relu(x);
        return gelu_tanh(inside);
      });
      return in_loss ? inside : y + inside;
    });
  };
  BOOST_CHECK_THROW(leak(false), UsageError);
  BOOST_CHECK_THROW(leak(true), UsageError);
}

BOOST_AUTO_TEST_CASE(an_error_in_either_run_leaves_the_tape_for_another_pass) {
  const Result wanted = result_of([&](const Var& x) { return block(x); });
  for (const int failing : {0, 1}) {
    int call = 0;
    BOOST_CHECK_THROW(result_of([&](const Var& x) {
                        return recomputed(tape, [&, x] {
                          const Var z = block(x);
                          if (call++ == failing) throw std::runtime_error("no");
                          return z;
                        });
                      }),
                      std::runtime_error);
    check_equal(result_of([&](const Var& x) { return block(x); }), wanted);
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
