// Functions of shape: gradients against differences where no reference case reaches, and errors.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <limits>
#include <string>

#include "autograd/gradient_check.h"
#include "lockstep/autograd/functions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(shapes)

using Vars = std::vector<Var>;

BOOST_AUTO_TEST_CASE(gradients_of_more_parts_than_an_operation_has_inputs) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 11; ++i) tensors.push_back(normal_tensor({2, 3}, static_cast<std::uint64_t>(i + 1)));
  check_gradients([](Tape&, const Vars& x) { return concat(x, 1); }, tensors);
  check_gradients([](Tape&, const Vars& x) { return stack(x, -1); }, tensors);
}

BOOST_AUTO_TEST_CASE(gradients_of_one_part_used_twice_and_of_constants) {
  check_gradients(
      [](Tape& tape, const Vars& x) {
        return concat({x[0], tape.constant(normal_tensor({2, 2}, 5)), x[0]}, 1);
      },
      {normal_tensor({2, 3}, 1)});
}

BOOST_AUTO_TEST_CASE(gradients_of_parts_that_overlap) {
  check_gradients(
      [](Tape&, const Vars& x) {
        return concat({narrow(x[0], 1, 0, 4), x[0], narrow(x[0], 1, 2, 3), narrow(x[0], -1, 5, 0)}, 1);
      },
      {normal_tensor({2, 5}, 1)});
}

BOOST_AUTO_TEST_CASE(gradients_that_two_values_share_stay_whole) {
  // a + b hands one gradient to both: a part that is added to a's must not show in b's.
  check_gradients(
      [](Tape&, const Vars& x) {
        const Var a = scale(x[0], 2), b = scale(x[1], 3), cut = narrow(a, 0, 1, 2);
        return concat({a + b, cut}, 0);
      },
      {normal_tensor({4, 3}, 1), normal_tensor({4, 3}, 2)});
}

BOOST_AUTO_TEST_CASE(gradients_of_expansions_and_pads) {
  check_gradients(
      [](Tape&, const Vars& x) {
        return expand(x[0], {2, 3, 4, 5});
      },
      {normal_tensor({3, 1, 5}, 1)});
  check_gradients([](Tape&, const Vars& x) { return expand(x[0], {2, 2}); }, {normal_tensor({}, 1)});
  check_gradients(
      [](Tape&, const Vars& x) {
        return pad(x[0], {{2, 0}, {1, 3}}, 7);
      },
      {normal_tensor({2, 2, 3}, 1)});
}

BOOST_AUTO_TEST_CASE(gradients_of_channel_blocks) {
  check_gradients(
      [](Tape&, const Vars& x) {
        const Var blocked = to_channel_block(x[0], 8);
        return concat({blocked, narrow(blocked, 1, 1, 2)}, 1);
      },
      {normal_tensor({2, 3, 2, 2}, 1)});
}

BOOST_AUTO_TEST_CASE(images_whose_channel_blocks_are_full_are_joined_in_them) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({.record = false});
  const auto images = [&](std::int64_t channels) {
    return tape.constant(normal_tensor({2, channels, 3, 5}, static_cast<std::uint64_t>(channels)));
  };
  const auto block = [](const Var& x) { return to_channel_block(x, 8); };
  const Var plain = concat({images(16), images(8)}, 1),
            full = concat({block(images(16)), block(images(8))}, 1),
            partly = concat({block(images(16)), block(images(3))}, 1);
  BOOST_TEST(full.value().channel_block() == 8);
  BOOST_TEST(partly.value().channel_block() == 1);
  const Tensor found = to_channel_block(full, 1).value();
  BOOST_TEST(std::memcmp(found.raw(), plain.value().raw(), found.bytes()) == 0);
  check_gradients(
      [&](Tape&, const Vars& x) {
        return concat({block(x[0]), block(x[1])}, 1);
      },
      {normal_tensor({2, 16, 2, 3}, 1), normal_tensor({2, 8, 2, 3}, 2)});
}

BOOST_AUTO_TEST_CASE(a_sequence_of_positions_is_the_images_with_channels_last) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({.record = false});
  for (const int block : {1, 8}) {
    for (const std::int64_t channels : {1, 5, 16}) {
      const Var images = tape.constant(normal_tensor({2, channels, 3, 4}, 1));
      const Var sequence = to_sequence(to_channel_block(images, block)),
                wanted = transpose(reshape(images, {2, channels, 12}), 1, 2);
      BOOST_REQUIRE(sequence.shape() == wanted.shape());
      BOOST_TEST(std::memcmp(sequence.value().raw(), wanted.value().raw(), wanted.value().bytes()) == 0);
      const Var back = to_channel_block(from_sequence(sequence, 3, 4), 1);
      BOOST_REQUIRE(back.shape() == images.shape());
      BOOST_TEST(std::memcmp(back.value().raw(), images.value().raw(), images.value().bytes()) == 0);
    }
  }
  check_gradients([](Tape&, const Vars& x) { return to_sequence(to_channel_block(x[0], 8)); },
                  {normal_tensor({2, 3, 2, 2}, 1)});
  check_gradients([](Tape&, const Vars& x) { return from_sequence(x[0], 2, 3); },
                  {normal_tensor({2, 6, 5}, 1)});
  const Var rows = tape.constant(normal_tensor({2, 12, 3}, 1));
  BOOST_CHECK_THROW(to_sequence(rows), UsageError);
  BOOST_CHECK_THROW(from_sequence(rows, 3, 5), UsageError);
  BOOST_CHECK_THROW(from_sequence(rows, -3, -4), UsageError);
}

BOOST_AUTO_TEST_CASE(a_batch_of_nothing) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({});
  const Var x = tape.input(Tensor::empty({0, 4, 2}));
  BOOST_TEST((concat({x, x}, 1).shape() == Shape{0, 8, 2}));
  BOOST_TEST((stack({x, x}, 0).shape() == Shape{2, 0, 4, 2}));
  BOOST_TEST((permute(x, {2, 0, 1}).shape() == Shape{2, 0, 4}));
  BOOST_TEST((pad(x, {{0, 0}, {1, 1}}).shape() == Shape{0, 6, 2}));
  BOOST_TEST((expand(x, {3, 0, 4, 2}).shape() == Shape{3, 0, 4, 2}));
  const Var y = narrow(flip(x, 1), 1, 1, 2);
  tape.backward(y, Tensor::empty(y.shape()));
  tape.finish_backward();
  BOOST_TEST((tape.gradient(x).shape() == Shape{0, 4, 2}));
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_refused_by_name) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({});
  const Var x = tape.input(Tensor::zeros({2, 3})), y = tape.input(Tensor::zeros({2, 4})),
            half = tape.input(Tensor::zeros({2, 3}, DType::bfloat16)),
            six = tape.input(Tensor::zeros({1, 1, 1, 1, 1, 1}));
  const auto refused = [](const auto& body, const std::string& text) {
    BOOST_CHECK_EXCEPTION(body(), UsageError,
                          [&](const UsageError& error) { return std::string(error.what()) == text; });
  };
  refused([&] { concat({}, 0); }, "concat: there is nothing to join");
  refused(
      [&] {
        concat({x, y}, 0);
      },
      "concat: part 1 of shape [2, 4] does not fit the first, of shape [2, 3]");
  refused([&] { concat({x, half}, 0); }, "concat: part 1 is bfloat16, but the first is float32");
  refused([&] { concat({x, x}, 2); }, "concat: shape [2, 3] has no axis 2");
  refused([&] { stack({x, y}, 0); }, "stack: part 1 of shape [2, 4] does not fit the first, of shape [2, 3]");
  refused([&] { stack({x, x}, 3); }, "stack: shape [2, 3] cannot get a new axis 3");
  refused([&] { stack({six, six}, 0); }, "stack: shape [1, 1, 1, 1, 1, 1] cannot get a new axis 0");
  refused([&] { narrow(x, 1, 2, 2); }, "narrow: axis 1 of shape [2, 3] does not contain [2, 4)");
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto named = [](const char* function) {
    return [function](const UsageError& error) { return std::string(error.what()).starts_with(function); };
  };
  BOOST_CHECK_EXCEPTION(narrow(x, 1, most, 1), UsageError, named("narrow: "));
  BOOST_CHECK_EXCEPTION(narrow(x, 1, 1, most), UsageError, named("narrow: "));
  BOOST_CHECK_EXCEPTION(pad(x, {{most, most}}), UsageError, named("pad: "));
  refused([&] { narrow(x, -3, 0, 1); }, "narrow: shape [2, 3] has no axis -3");
  refused([&] { chunk<2>(x, 1); }, "chunk: 2 parts do not divide axis 1 of shape [2, 3]");
  refused([&] { permute(x, {0, 0}); }, "permute: the order of shape [2, 3] must name each of its axes once");
  refused([&] { permute(x, {0}); }, "permute: the order of shape [2, 3] must name each of its axes once");
  refused([&] { transpose(x, 0, 2); }, "transpose: shape [2, 3] has no axis 2");
  refused([&] { expand(x, {2, 2, 2}); }, "expand: [2, 3] does not broadcast to [2, 2, 2]");
  refused([&] { flip(x, 2); }, "flip: shape [2, 3] has no axis 2");
  refused([&] { flip(x, {0, -2}); }, "flip: axis 0 is named twice");
  refused([&] { pad(x, {{0, 0}, {0, 0}, {0, 0}}); }, "pad: shape [2, 3] has fewer than 3 axes");
  refused([&] { pad(x, {{0, -1}}); }, "pad: 0 before and -1 after axis 0 of shape [2, 3] are out of range");
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
