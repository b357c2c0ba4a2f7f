// Convolutions of any geometry: gradients against differences, what is known of them, errors.
#include <boost/test/unit_test.hpp>
#include <cstring>

#include "autograd/gradient_check.h"
#include "lockstep/autograd/functions.h"

namespace lockstep::test {
namespace {

struct OnTape {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};

  OnTape() { tape.begin({}); }
  Var input(Shape shape) { return tape.input(normal_tensor(shape, 1)); }
};

BOOST_FIXTURE_TEST_SUITE(convolutions, OnTape)

using Vars = std::vector<Var>;

BOOST_AUTO_TEST_CASE(gradients_of_rectangular_and_dilated_conv2d) {
  for (const int groups : {1, 2}) {
    check_gradients(
        [=](Tape&, const Vars& x) {
          return conv2d(x[0], x[1], x[2],
                        {.stride = {2, 1}, .padding = {0, 2}, .groups = groups, .dilation = {1, 2}});
        },
        {normal_tensor({2, 4, 5, 6}, 1), normal_tensor({2, 4 / groups, 3, 2}, 2), normal_tensor({2}, 3)});
  }
}

BOOST_AUTO_TEST_CASE(gradients_of_conv_transpose2d_in_groups_and_rectangles) {
  for (const int groups : {1, 2}) {
    check_gradients(
        [=](Tape&, const Vars& x) {
          return conv_transpose2d(x[0], x[1], x[2],
                                  {.stride = {2, 3}, .padding = {1, 0}, .groups = groups, .dilation = {2, 1}},
                                  {1, 2});
        },
        {normal_tensor({2, 4, 3, 2}, 1), normal_tensor({4, 2, 2, 3}, 2), normal_tensor({2 * groups}, 3)});
  }
}

BOOST_AUTO_TEST_CASE(gradients_of_conv2d_with_a_residual) {
  for (const int block : {1, 8})
    check_gradients(
        [block](Tape&, const Vars& x) {
          return conv2d(x[0], x[1], x[2], {.padding = 1}, to_channel_block(x[3], block));
        },
        {normal_tensor({2, 3, 4, 3}, 1), normal_tensor({8, 3, 3, 3}, 2), normal_tensor({8}, 3),
         normal_tensor({2, 8, 4, 3}, 4)});
}

BOOST_AUTO_TEST_CASE(conv1d_is_conv2d_of_one_row) {
  const Var x = input({2, 16, 9}), weight = input({8, 16, 3});
  const Tensor row = conv1d(x, weight, {}, {.padding = 1}).value(),
               image = to_channel_block(conv2d(reshape(x, {2, 16, 1, 9}), reshape(weight, {8, 16, 1, 3}), {},
                                               {.padding = {0, 1}}),
                                        1)
                           .value();
  BOOST_TEST(row.bytes() == image.bytes());
  BOOST_TEST(std::memcmp(row.raw(), image.raw(), row.bytes()) == 0);
}

BOOST_AUTO_TEST_CASE(an_empty_batch_goes_through_convolutions) {
  BOOST_TEST((conv1d(input({0, 3, 5}), input({4, 3, 3})).shape() == Shape{0, 4, 3}));
  BOOST_TEST((conv_transpose2d(input({0, 3, 5, 4}), input({3, 2, 3, 3}), input({2}), {.stride = 2}).shape() ==
              Shape{0, 2, 11, 9}));
}

BOOST_AUTO_TEST_CASE(geometries_that_fit_nothing_are_usage_errors) {
  BOOST_CHECK_THROW(conv2d(input({1, 2, 4, 4}), input({2, 2, 3, 3}), {}, {.dilation = {1, 2}}), UsageError);
  BOOST_CHECK_THROW(conv2d(input({1, 2, 4, 4}), input({2, 2, 3, 3}), {}, {.dilation = 0}), UsageError);
  BOOST_CHECK_THROW(conv2d(input({1, 2, 4, 4}), input({2, 2, 3, 3}), {}, {.stride = {1, 0}}), UsageError);
  BOOST_CHECK_THROW(conv1d(input({1, 2, 4, 4}), input({2, 2, 3})), UsageError);
  BOOST_CHECK_THROW(conv1d(input({1, 2, 4}), input({2, 3, 3})), UsageError);
  BOOST_CHECK_THROW(conv1d(input({1, 2, 4}), input({2, 2, 5})), UsageError);
  BOOST_CHECK_THROW(conv_transpose2d(input({1, 2, 4, 4}), input({3, 2, 3, 3})), UsageError);
  const auto names = [](const char* function) {
    return
        [function](const UsageError& error) { return std::string_view(error.what()).starts_with(function); };
  };
  BOOST_CHECK_EXCEPTION(conv_transpose2d(input({1, 2, 4, 4}), input({2, 5, 3, 3}), input({2})), UsageError,
                        names("conv_transpose2d: the bias has shape [2]"));
  BOOST_CHECK_EXCEPTION(conv2d(input({1, 2, 4, 4}), input({5, 2, 3, 3}), input({2})), UsageError,
                        names("conv2d: the bias has shape [2]"));
  BOOST_CHECK_THROW(conv_transpose2d(input({1, 2, 4, 4}), input({2, 2, 3, 3}), {}, {.groups = 3}),
                    UsageError);
  BOOST_CHECK_THROW(conv_transpose2d(input({1, 2, 4, 4}), input({2, 2, 3, 3}), {}, {.stride = 2}, 2),
                    UsageError);
  BOOST_CHECK_THROW(conv_transpose2d(input({1, 2, 1, 1}), input({2, 2, 1, 1}), {}, {.padding = 1}),
                    UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
