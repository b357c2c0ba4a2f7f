// What transformers are made of: RMS norm and rotary positions. Values and gradients by PyTorch's cases are
// in golden_ops.cpp.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "autograd/gradient_check.h"
#include "lockstep/autograd/functions.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {

using Vars = std::vector<Var>;

struct OnTheCpu {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};
  OnTheCpu() { tape.begin({}); }
  Var input(Shape shape, std::uint64_t seed = 1) { return tape.input(normal_tensor(shape, seed)); }
};

void check_equal(const Tensor& a, const Tensor& b, float tolerance) {
  BOOST_REQUIRE(a.shape() == b.shape());
  for (std::int64_t i = 0; i < a.numel(); ++i)
    BOOST_TEST(std::abs(a.data<float>()[i] - b.data<float>()[i]) <= tolerance, "element " << i);
}

/// [B, T, heads * W] as [B, heads, T, W].
Tensor heads_apart(const Tensor& x, std::int64_t heads) {
  const std::int64_t batch = x.size(0), time = x.size(1), width = x.size(2) / heads;
  const Tensor y = Tensor::empty({batch, heads, time, width});
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    const std::int64_t d = i % width, t = i / width % time, h = i / width / time % heads,
                       b = i / width / time / heads;
    y.data<float>()[i] = x.data<float>()[((b * time + t) * heads + h) * width + d];
  }
  return y;
}

/// Each head of [B, K, T, W] `times` times in a row.
Tensor repeated_heads(const Tensor& x, std::int64_t times) {
  const Tensor y = Tensor::empty({x.size(0), x.size(1) * times, x.size(2), x.size(3)});
  const std::int64_t head = x.size(2) * x.size(3);
  for (std::int64_t i = 0; i < y.numel(); ++i)
    y.data<float>()[i] = x.data<float>()[i / head / times * head + i % head];
  return y;
}

/// The inverse, summed.
Tensor summed_heads(const Tensor& x, std::int64_t times) {
  const Tensor y = Tensor::zeros({x.size(0), x.size(1) / times, x.size(2), x.size(3)});
  const std::int64_t head = x.size(2) * x.size(3);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    y.data<float>()[i / head / times * head + i % head] += x.data<float>()[i];
  return y;
}

Tensor first_rows(const Tensor& x, std::int64_t count) {  // of [1, 1, T, W]
  return Tensor::view(x.data<float>(), {1, 1, count, x.size(3)}, DType::float32);
}

struct Attended {
  Tensor y, dq, dk, dv;
};

template <class Function>
Attended attended(Tape& tape, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dy,
                  const Function& function) {
  tape.begin({});
  const Var a = tape.input(q), b = tape.input(k), c = tape.input(v), y = function(a, b, c);
  tape.backward(y, dy);
  return {y.value(), tape.gradient(a), tape.gradient(b), tape.gradient(c)};
}

Attended attended(Tape& tape, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dy,
                  bool causal) {
  return attended(tape, q, k, v, dy,
                  [=](const Var& a, const Var& b, const Var& c) { return attention(a, b, c, causal); });
}

BOOST_FIXTURE_TEST_SUITE(sequences, OnTheCpu)

BOOST_AUTO_TEST_CASE(gradients_of_rms_norm) {
  for (const int rows : {3, 130}) {  // more than a block of rows whose sums are one
    const auto norm = [](Tape&, const Vars& x) { return rms_norm(x[0], x[1], 1e-5f); };
    check_gradients(norm, {normal_tensor({rows, 5}, 1), normal_tensor({5}, 2)});
  }
}

BOOST_AUTO_TEST_CASE(rms_norm_adds_to_the_gradient_that_its_input_has) {
  check_gradients([](Tape&, const Vars& x) { return add(rms_norm(x[0], x[1], 1e-5f), x[0]); },
                  {normal_tensor({3, 11}, 1), normal_tensor({11}, 2)});
}

BOOST_AUTO_TEST_CASE(rms_norm_of_a_frozen_weight_passes_the_gradient_on) {
  const Tensor x = normal_tensor({3, 9}, 1), weight = normal_tensor({9}, 2), dy = normal_tensor({3, 9}, 3);
  const Var trained = tape.input(x), frozen = tape.input(x);
  tape.backward(rms_norm(trained, tape.input(weight), 1e-5f), dy);
  tape.backward(rms_norm(frozen, tape.constant(weight), 1e-5f), dy);
  check_equal(tape.gradient(trained), tape.gradient(frozen), 0);
}

BOOST_AUTO_TEST_CASE(an_empty_batch_goes_through_rms_norm_and_rotary) {
  const Var x = input({0, 2, 3, 4}), weight = input({4});
  const Var y = rotary(rms_norm(x, weight, 1e-5f), RotaryLayout::pairs);
  tape.backward(y, Tensor::empty(y.shape()));
  BOOST_TEST((tape.gradient(x).shape() == x.shape()));
  for (int i = 0; i < 4; ++i) BOOST_TEST(tape.gradient(weight).data<float>()[i] == 0.0f);
}

BOOST_AUTO_TEST_CASE(rotary_from_a_later_position_is_the_end_of_a_longer_sequence) {
  const std::int64_t time = 7, first = 4;
  const Tensor x = normal_tensor({1, 1, time, 10}, 1);
  const Tensor tail = Tensor::view(x.data<float>() + first * 10, {1, 1, time - first, 10}, DType::float32);
  for (const RotaryLayout layout : {RotaryLayout::halves, RotaryLayout::pairs}) {
    const Tensor all = rotary(tape.constant(x), layout).value();
    const Tensor end = Tensor::view(all.data<float>() + first * 10, tail.shape(), DType::float32);
    check_equal(rotary(tape.constant(tail), layout, 10000, first).value(), end, 0);
  }
}

BOOST_AUTO_TEST_CASE(rotary_keeps_its_digits_at_far_positions) {
  const std::int64_t position = 1'000'003;
  const Tensor x = normal_tensor({1, 1, 1, 4}, 1);
  const Tensor y = rotary(tape.constant(x), RotaryLayout::pairs, 10000, position).value();
  for (int i = 0; i < 2; ++i) {
    const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * i / 4.0);
    const double a = x.data<float>()[2 * i], b = x.data<float>()[2 * i + 1];
    BOOST_TEST(std::abs(y.data<float>()[2 * i] - (a * std::cos(angle) - b * std::sin(angle))) < 1e-6);
    BOOST_TEST(std::abs(y.data<float>()[2 * i + 1] - (b * std::cos(angle) + a * std::sin(angle))) < 1e-6);
  }
}

BOOST_AUTO_TEST_CASE(wrong_arguments_of_rms_norm_and_rotary_are_usage_errors) {
  BOOST_CHECK_EXCEPTION(rms_norm(input({2, 3}), input({4}), 1e-5f), UsageError,
                        mentions("rms_norm", "[2, 3]", "[4]"));
  BOOST_CHECK_EXCEPTION(rms_norm(input({}), input({1}), 1e-5f), UsageError, mentions("rms_norm", "[]"));
  BOOST_CHECK_EXCEPTION(rotary(input({2, 3, 4}), RotaryLayout::halves), UsageError,
                        mentions("rotary", "[2, 3, 4]"));
  BOOST_CHECK_EXCEPTION(rotary(input({1, 2, 3, 5}), RotaryLayout::pairs), UsageError,
                        mentions("rotary", "[1, 2, 3, 5]", "even"));
  BOOST_CHECK_EXCEPTION(rotary(input({1, 2, 3, 4}), RotaryLayout::pairs, 0), UsageError,
                        mentions("rotary", "base"));
}

BOOST_AUTO_TEST_CASE(gradients_of_attention_between_sequences_with_grouped_queries) {
  const auto attend = [](Tape&, const Vars& x) { return attention(x[0], x[1], x[2], false); };
  check_gradients(attend, {normal_tensor({2, 4, 3, 2}, 1), normal_tensor({2, 2, 5, 2}, 2),
                           normal_tensor({2, 2, 5, 2}, 3)});
  const auto causal = [](Tape&, const Vars& x) { return attention(x[0], x[1], x[2], 4, true); };
  check_gradients(causal,
                  {normal_tensor({1, 3, 8}, 1), normal_tensor({1, 3, 4}, 2), normal_tensor({1, 3, 4}, 3)});
}

BOOST_AUTO_TEST_CASE(attention_of_heads_apart_is_that_of_heads_side_by_side) {
  const Tensor q = normal_tensor({2, 70, 24}, 1), k = normal_tensor({2, 70, 12}, 2),
               v = normal_tensor({2, 70, 12}, 3), dy = normal_tensor({2, 70, 24}, 4);
  for (const bool causal : {false, true}) {
    const Attended beside = attended(tape, q, k, v, dy, [=](const Var& a, const Var& b, const Var& c) {
      return attention(a, b, c, 4, causal);
    });
    const Attended apart =
        attended(tape, heads_apart(q, 4), heads_apart(k, 2), heads_apart(v, 2), heads_apart(dy, 4), causal);
    check_equal(apart.y, heads_apart(beside.y, 4), 1e-6f);
    check_equal(apart.dq, heads_apart(beside.dq, 4), 1e-5f);
    check_equal(apart.dk, heads_apart(beside.dk, 2), 1e-5f);
    check_equal(apart.dv, heads_apart(beside.dv, 2), 1e-5f);
  }
}

BOOST_AUTO_TEST_CASE(grouped_queries_read_as_repeated_keys_and_sum_their_gradients) {
  for (const auto& [queries, keys, causal] :
       {std::tuple<int, int, bool>{60, 60, true}, {50, 520, false}, {520, 520, true}}) {
    const Tensor q = normal_tensor({2, 6, queries, 5}, 1), k = normal_tensor({2, 2, keys, 5}, 2),
                 v = normal_tensor({2, 2, keys, 5}, 3), dy = normal_tensor({2, 6, queries, 5}, 4);
    const Attended grouped = attended(tape, q, k, v, dy, causal),
                   repeated = attended(tape, q, repeated_heads(k, 3), repeated_heads(v, 3), dy, causal);
    check_equal(grouped.y, repeated.y, 0);
    check_equal(grouped.dq, repeated.dq, 0);
    check_equal(grouped.dk, summed_heads(repeated.dk, 3), 2e-5f);
    check_equal(grouped.dv, summed_heads(repeated.dv, 3), 2e-5f);
  }
}

BOOST_AUTO_TEST_CASE(fewer_queries_give_the_first_rows_of_more) {
  for (const int all : {100, 600}) {  // of short rows probabilities are saved, of long ones logarithms
    const std::int64_t some = 53;
    const Tensor q = normal_tensor({1, 1, all, 6}, 1), k = normal_tensor({1, 1, all, 6}, 2),
                 v = normal_tensor({1, 1, all, 6}, 3), dy = Tensor::zeros({1, 1, all, 6});
    const Tensor upstream = normal_tensor({1, 1, some, 6}, 4);
    copy_elements(upstream, first_rows(dy, some));
    const Attended more = attended(tape, q, k, v, dy, false),
                   fewer = attended(tape, first_rows(q, some), k, v, upstream, false);
    check_equal(fewer.y, first_rows(more.y, some), 1e-6f);
    check_equal(fewer.dq, first_rows(more.dq, some), 1e-6f);
    check_equal(fewer.dk, more.dk, 1e-6f);
    check_equal(fewer.dv, more.dv, 1e-6f);
  }
}

BOOST_AUTO_TEST_CASE(an_empty_batch_goes_through_attention_between_sequences) {
  const Var q = input({0, 4, 3, 2}), k = input({0, 2, 5, 2}), v = input({0, 2, 5, 2});
  const Var y = attention(q, k, v, false);
  BOOST_TEST((y.shape() == q.shape()));
  tape.backward(y, Tensor::empty(y.shape()));
  BOOST_TEST((tape.gradient(k).shape() == k.shape()));
}

BOOST_AUTO_TEST_CASE(wrong_arguments_of_attention_are_usage_errors) {
  const auto refused = [&](Shape q, Shape k, Shape v, bool causal, const std::vector<std::string>& text) {
    BOOST_CHECK_EXCEPTION(attention(input(q), input(k), input(v), causal), UsageError, mentions(text));
  };
  refused({1, 2, 3, 4}, {1, 2, 5, 4}, {1, 2, 5, 4}, true, {"attention: a causal mask", "not 5 for 3"});
  refused({1, 3, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}, false, {"attention: k", "[1, 3, 3, 4]", "[1, 2, 3, 4]"});
  refused({1, 2, 3, 4}, {1, 2, 3, 5}, {1, 2, 3, 5}, false, {"attention: k", "[1, 2, 3, 5]"});
  refused({2, 2, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}, false, {"attention: k", "[2, 2, 3, 4]"});
  refused({1, 2, 3, 4}, {1, 2, 5, 4}, {1, 2, 4, 4}, false, {"attention: v", "[1, 2, 4, 4]"});
  refused({1, 2, 3, 4}, {1, 2, 0, 4}, {1, 2, 0, 4}, false, {"attention", "3 queries", "0 keys"});
  refused({2, 3, 4}, {2, 3, 4}, {2, 3, 4}, false, {"attention", "[2, 3, 4]", "4 dimensions"});
  BOOST_CHECK_EXCEPTION(attention(input({1, 3, 8}), input({1, 3, 8}), input({1, 3, 8}), 3, false), UsageError,
                        mentions("attention: q", "[1, 3, 8]", "3 heads"));
}

/// Rows [first, first + count) of the time of [1, T, C].
Tensor part_of(const Tensor& x, std::int64_t first, std::int64_t count) {
  return Tensor::view(x.data<float>() + first * x.size(2), {1, count, x.size(2)}, DType::float32);
}

BOOST_AUTO_TEST_CASE(attention_of_documents_in_a_row_is_that_of_each_alone) {
  for (const std::int64_t time : {90, 700}) {  // probabilities are kept of short rows only
    OnTheCpu on;
    const Tensor q = normal_tensor({1, time, 32}, 1), k = normal_tensor({1, time, 16}, 2),
                 v = normal_tensor({1, time, 16}, 3), dy = normal_tensor({1, time, 32}, 4),
                 positions = Tensor::empty({1, time}, DType::int64);
    const std::int64_t second = time / 3, third = time - 5;
    for (std::int64_t t = 0; t < time; ++t)
      positions.data<std::int64_t>()[t] = t < second ? t : t < third ? t - second : t - third;
    const Attended together = attended(on.tape, q, k, v, dy, [&](const Var& a, const Var& b, const Var& c) {
      return attention(a, b, c, 4, true, positions);
    });
    for (const auto& [first, count] :
         {std::pair(std::int64_t{0}, second), {second, third - second}, {third, time - third}}) {
      const Attended alone =
          attended(on.tape, part_of(q, first, count), part_of(k, first, count), part_of(v, first, count),
                   part_of(dy, first, count),
                   [](const Var& a, const Var& b, const Var& c) { return attention(a, b, c, 4, true); });
      check_equal(alone.y, part_of(together.y, first, count), 1e-5f);
      check_equal(alone.dq, part_of(together.dq, first, count), 1e-5f);
      check_equal(alone.dk, part_of(together.dk, first, count), 2e-5f);
      check_equal(alone.dv, part_of(together.dv, first, count), 2e-5f);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
