// The tape: order of the walk, uses of parameters, life of closures.
#include "lockstep/autograd/tape.h"

#include <boost/test/unit_test.hpp>
#include <optional>

#include "autograd/recording_sink.h"
#include "lockstep/autograd/functions.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(tape)

using Events = std::vector<std::string>;

Tensor scalar(float value) {
  const Tensor tensor = Tensor::empty({1});
  *tensor.data<float>() = value;
  return tensor;
}

float value_of(const Tensor& tensor) { return *tensor.data<float>(); }

Param parameter(const std::string& name, float value) {
  Param param;
  param.name = name;
  param.value = scalar(value);
  return param;
}

struct Fixture {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  RecordingSink sink{*backend};
  Tape tape{*backend};

  void begin(bool record = true) { tape.begin({.record = record, .sink = &sink}); }

  /// y = x, noting its name when walked and holding `token` until then.
  Var step(const Var& x, const std::string& name, std::shared_ptr<int> token = nullptr) {
    return tape.record(x.value(), {&x}, [this, x, name, token](Tape& t, const Tensor& dy) {
      sink.events.push_back(name);
      t.add_gradient(x, dy);
    });
  }
};

BOOST_FIXTURE_TEST_SUITE(tape, Fixture)

BOOST_AUTO_TEST_CASE(backward_walks_in_reverse_order_of_execution) {
  begin();
  const Var x = tape.input(scalar(1));
  const Var a = step(x, "a");
  const Var b = step(a, "b");
  const Var c = step(a, "c");
  tape.backward(b + c, scalar(3));
  BOOST_TEST(sink.events == (Events{"c", "b", "a"}), boost::test_tools::per_element());
  BOOST_TEST(value_of(tape.gradient(x)) == 6);
  BOOST_TEST(sink.progress_calls == 4);
}

BOOST_AUTO_TEST_CASE(operations_that_the_output_does_not_need_are_not_walked) {
  begin();
  const Var x = tape.input(scalar(1));
  step(x, "aside");
  tape.backward(step(x, "on the way"), scalar(1));
  BOOST_TEST(sink.events == Events{"on the way"}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_tied_parameter_is_ready_once_after_its_last_use) {
  Param w = parameter("w", 2);
  begin();
  const Var first = step(tape.parameter(w), "first");
  const Var second = step(first + tape.parameter(w), "second");
  tape.backward(second + tape.parameter(w), scalar(1));
  tape.finish_backward();
  BOOST_TEST(sink.events == (Events{"view w", "second", "first", "ready w"}),
             boost::test_tools::per_element());
  BOOST_TEST(value_of(w.gradient) == 3);
  BOOST_TEST(tape.used_params().size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_sum_with_itself_counts_twice_and_leaves_the_given_gradient_alone) {
  begin();
  const Var x = tape.input(scalar(1));
  const Tensor dy = scalar(5);
  tape.backward(x + x, dy);
  BOOST_TEST(value_of(tape.gradient(x)) == 10);
  BOOST_TEST(value_of(dy) == 5);
}

BOOST_AUTO_TEST_CASE(an_operation_that_takes_two_gradients_gets_the_last_one_apart) {
  for (const int uses : {1, 2, 3}) {
    begin();
    const Var x = tape.input(scalar(1));
    float first = 0, second = 0;
    Var h = tape.record(x.value(), {&x}, [&](Tape& t, const Tensor& dy, const Tensor& beside) {
      first = value_of(dy);
      second = beside ? value_of(beside) : 0;
      t.add_gradient(x, dy);
    });
    Var sum = step(h, "1");
    for (int use = 2; use <= uses; ++use) sum = sum + scale(h, static_cast<float>(use));
    tape.backward(sum, scalar(1));
    BOOST_TEST(first == (uses == 3 ? 5 : uses));  // the last use gives first
    BOOST_TEST(second == (uses == 1 ? 0 : 1));
  }
}

BOOST_AUTO_TEST_CASE(a_backward_may_add_to_what_its_input_has_received) {
  begin();
  const Var x = tape.input(scalar(1)), constant = tape.constant(scalar(1));
  const Var y = tape.record(x.value(), {&x, &constant}, [&](Tape& t, const Tensor& dy) {
    BOOST_TEST(!t.gradient_so_far(constant));
    const Tensor so_far = t.gradient_so_far(x);
    t.set_gradient(x, scalar(value_of(so_far) + 10 * value_of(dy)));
    t.set_gradient(constant, dy);
  });
  tape.backward(y + scale(x, 3), scalar(1));
  BOOST_TEST(value_of(tape.gradient(x)) == 13);
}

BOOST_AUTO_TEST_CASE(gradients_of_a_second_pass_add_where_the_sink_says_so) {
  Param w = parameter("w", 2);
  for (int pass = 0; pass < 2; ++pass) {
    begin();
    tape.backward(step(tape.parameter(w), "step"), scalar(4));
    tape.finish_backward();
  }
  BOOST_TEST(value_of(w.gradient) == 8);
}

BOOST_AUTO_TEST_CASE(a_parameter_that_no_output_reaches_is_closed_without_a_gradient) {
  Param used = parameter("used", 1), aside = parameter("aside", 1), unused = parameter("unused", 1);
  begin();
  const Var y = step(tape.parameter(used), "y");
  step(tape.parameter(aside), "aside");
  BOOST_TEST(tape.used_params().size() == 2u);
  tape.backward(y, scalar(1));
  BOOST_TEST(aside.on_tape.open_uses == 1);
  tape.finish_backward();
  BOOST_TEST(aside.on_tape.open_uses == 0);
  BOOST_TEST(!aside.on_tape.written);
  BOOST_TEST(used.on_tape.written);
  BOOST_TEST(!aside.gradient);
  BOOST_TEST(!unused.on_tape.tape);
  BOOST_TEST(sink.events == (Events{"y", "view used", "ready used"}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_parameter_with_one_use_reached_and_one_not_is_ready_at_the_end) {
  Param w = parameter("w", 1);
  begin();
  const Var reached = step(tape.parameter(w), "reached");
  step(tape.parameter(w), "aside");
  tape.backward(reached, scalar(1));
  BOOST_TEST(sink.events.back() == "view w");
  tape.finish_backward();
  BOOST_TEST(sink.events.back() == "ready w");
}

BOOST_AUTO_TEST_CASE(a_frozen_parameter_is_a_constant) {
  Param frozen = parameter("frozen", 2), w = parameter("w", 3);
  frozen.trainable = false;
  begin();
  const Var f = tape.parameter(frozen);
  BOOST_TEST(!f.needs_gradient());
  tape.backward(f + tape.parameter(w), scalar(1));
  tape.finish_backward();
  BOOST_TEST(!frozen.gradient);
  BOOST_TEST(value_of(w.gradient) == 1);
  BOOST_TEST(tape.used_params().size() == 1u);
}

BOOST_AUTO_TEST_CASE(two_outputs_may_be_walked_one_after_the_other) {
  Param w = parameter("w", 1);
  begin();
  const Var left = step(tape.parameter(w), "left"), right = step(tape.parameter(w), "right");
  tape.backward(left, scalar(2));
  tape.backward(right, scalar(3));
  tape.finish_backward();
  BOOST_TEST(value_of(w.gradient) == 5);
  BOOST_TEST(sink.events == (Events{"left", "view w", "right", "ready w"}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(walking_an_operation_twice_is_refused) {
  begin();
  const Var x = tape.input(scalar(1));
  const Var shared = step(x, "shared");
  const Var left = step(shared, "left"), right = step(shared, "right");
  tape.backward(left, scalar(1));
  BOOST_CHECK_THROW(tape.backward(right, scalar(1)), UsageError);
}

BOOST_AUTO_TEST_CASE(a_pass_without_record_keeps_nothing) {
  Param w = parameter("w", 1);
  const auto token = std::make_shared<int>();
  begin(false);
  const Var y = step(tape.parameter(w), "y", token);
  BOOST_TEST(token.use_count() == 1);
  BOOST_TEST(!y.needs_gradient());
  BOOST_TEST(!tape.input(scalar(1)).needs_gradient());
  BOOST_TEST(tape.used_params().empty());
  tape.backward(y, scalar(1));
  BOOST_TEST(sink.events.empty());
}

BOOST_AUTO_TEST_CASE(operations_on_constants_are_not_recorded) {
  const auto token = std::make_shared<int>();
  begin();
  step(tape.constant(scalar(1)), "y", token);
  BOOST_TEST(token.use_count() == 1);
}

BOOST_AUTO_TEST_CASE(a_closure_goes_when_it_has_been_walked) {
  const auto token = std::make_shared<int>();
  begin();
  const Var y = step(tape.input(scalar(1)), "y", token);
  BOOST_TEST(token.use_count() == 2);
  tape.backward(y, scalar(1));
  BOOST_TEST(token.use_count() == 1);
}

BOOST_AUTO_TEST_CASE(closures_that_were_not_walked_go_with_the_next_pass_or_the_tape) {
  const auto token = std::make_shared<int>();
  begin();
  step(tape.input(scalar(1)), "y", token);
  BOOST_TEST(token.use_count() == 2);
  begin();
  BOOST_TEST(token.use_count() == 1);
  {
    Tape other(*backend);
    other.begin({});
    const Var x = other.input(scalar(1));
    other.record(scalar(1), {&x}, [token](Tape&, const Tensor&) {});
    BOOST_TEST(token.use_count() == 2);
  }
  BOOST_TEST(token.use_count() == 1);
}

BOOST_AUTO_TEST_CASE(many_closures_outgrow_one_chunk_and_survive) {
  begin();
  const Var x = tape.input(scalar(1));
  Var y = x;
  for (int i = 0; i < 3000; ++i) y = step(y, "s");
  tape.backward(y, scalar(7));
  BOOST_TEST(value_of(tape.gradient(x)) == 7);
  BOOST_TEST(sink.events.size() == 3000u);
}

BOOST_AUTO_TEST_CASE(values_of_two_tapes_do_not_mix) {
  begin();
  Tape other(*backend);
  other.begin({});
  const Var x = tape.input(scalar(1)), y = other.input(scalar(1));
  const auto says_what_to_do = mentions("a value of another tape", "tape.constant(kept.value())");
  BOOST_CHECK_EXCEPTION(x + y, UsageError, says_what_to_do);
  BOOST_CHECK_EXCEPTION(x + other.constant(scalar(1)), UsageError, says_what_to_do);
  BOOST_CHECK_EXCEPTION(tape.backward(y, scalar(1)), UsageError, says_what_to_do);
  BOOST_CHECK_EXCEPTION(static_cast<void>(tape.gradient(y)), UsageError, says_what_to_do);
  tape.backward(x + tape.constant(y.value()), scalar(1));
}

BOOST_AUTO_TEST_CASE(a_value_kept_from_an_earlier_pass_is_refused_whatever_its_number) {
  const auto says_what_to_do = mentions("a value of an earlier pass", "tape.constant(kept.value())");
  for (const int before : {0, 1, 5, 40}) {  // smaller than the numbers of the next pass, and beyond them
    begin();
    Var kept = tape.input(scalar(3));
    for (int i = 0; i < before; ++i) kept = step(kept, "s");
    for (const bool record : {true, false}) {
      begin(record);
      const Var x = tape.input(scalar(1));
      Var y = x;
      for (int i = 0; i < 5; ++i) y = step(y, "s");
      BOOST_CHECK_EXCEPTION(y * kept, UsageError, says_what_to_do);
      BOOST_CHECK_EXCEPTION(kept * kept, UsageError, says_what_to_do);
      BOOST_CHECK_EXCEPTION(tape.backward(kept, scalar(1)), UsageError, says_what_to_do);
      BOOST_CHECK_EXCEPTION(static_cast<void>(tape.gradient(kept)), UsageError, says_what_to_do);
      tape.backward(y * tape.constant(kept.value()), scalar(1));
      if (record) BOOST_TEST(value_of(tape.gradient(x)) == 3);
    }
  }
}

BOOST_AUTO_TEST_CASE(
    numbers_of_a_batch_kept_from_an_earlier_pass_are_refused) {  // the loader fills their memory again
  begin();
  const Var kept = tape.batch(scalar(3));
  begin();
  const auto refused = mentions("tape.batch() of an earlier pass");
  BOOST_CHECK_EXCEPTION(tape.input(scalar(1)) * kept, UsageError, refused);
  BOOST_CHECK_EXCEPTION(kept + kept, UsageError, refused);
}

BOOST_AUTO_TEST_CASE(a_constant_kept_from_an_earlier_pass_is_still_one) {
  begin();
  const Var mask = tape.constant(scalar(3));
  begin();
  const Var x = tape.input(scalar(1));
  tape.backward(x * mask, scalar(1));
  BOOST_TEST(value_of(tape.gradient(x)) == 3);
}

BOOST_AUTO_TEST_CASE(a_value_of_a_tape_that_was_at_the_same_address_is_refused) {
  std::optional<Tape> local(std::in_place, *backend);
  local->begin({});
  const Var kept = local->input(scalar(3));
  local.reset();
  local.emplace(*backend);
  local->begin({});
  BOOST_CHECK_EXCEPTION(local->input(scalar(1)) * kept, UsageError, mentions("a value of an earlier pass"));
}

BOOST_AUTO_TEST_CASE(a_parameter_is_recorded_by_one_tape_at_a_time) {
  Param w = parameter("w", 1);
  begin();
  tape.parameter(w);
  Tape other(*backend);
  other.begin({.sink = &sink});
  BOOST_CHECK_THROW(other.parameter(w), UsageError);
  begin();  // forgets the use
  BOOST_CHECK_NO_THROW(other.parameter(w));
}

BOOST_AUTO_TEST_CASE(a_recorded_parameter_needs_a_sink) {
  Param w = parameter("w", 1);
  tape.begin({});
  BOOST_CHECK_THROW(tape.parameter(w), UsageError);
}

BOOST_AUTO_TEST_CASE(a_value_without_memory_still_takes_its_gradient) {
  begin();
  const Var x = tape.input(scalar(1));
  const Var thin = x.without_value();
  BOOST_TEST(!thin.value());
  BOOST_TEST((thin.shape() == x.shape()));
  const Var y = tape.record(scalar(2), {&thin}, [thin](Tape& t, const Tensor& dy) {
    t.write_gradient(thin, [&](const Tensor& dx, bool) { t.backend().copy(dy, dx); });
  });
  tape.backward(y, scalar(3));
  BOOST_TEST(value_of(tape.gradient(x)) == 3);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
