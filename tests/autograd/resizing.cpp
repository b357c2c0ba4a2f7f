// Bilinear resizing: gradients against differences, layouts, what is known of it, errors.
#include <boost/test/unit_test.hpp>

#include "autograd/gradient_check.h"
#include "lockstep/autograd/functions.h"

namespace lockstep::test {
namespace {

struct ImagesOnTape {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};

  ImagesOnTape() { tape.begin({}); }
  Var input(Shape shape) { return tape.input(normal_tensor(shape, 1)); }
};

BOOST_FIXTURE_TEST_SUITE(resizing, ImagesOnTape)

BOOST_AUTO_TEST_CASE(gradients_of_resize_bilinear_in_any_layout) {
  for (const auto& [height, width] : {std::pair{8, 2}, {3, 11}, {1, 1}}) {
    for (const int block : {1, 8, 9}) {
      const std::int64_t h = height, w = width;
      check_gradients(
          [=](Tape&, const std::vector<Var>& x) {
            return to_channel_block(resize_bilinear(to_channel_block(x[0], block), h, w), 1);
          },
          {normal_tensor({2, 9, 3, 5}, 1)});
    }
  }
}

BOOST_AUTO_TEST_CASE(images_of_one_colour_keep_it) {
  const Tensor x = Tensor::empty({2, 3, 5, 4});
  std::fill_n(x.data<float>(), x.numel(), 0.75f);
  const Tensor y = resize_bilinear(tape.input(x), 13, 3).value();
  for (std::int64_t i = 0; i < y.numel(); ++i) BOOST_CHECK_CLOSE(y.data<float>()[i], 0.75f, 1e-4);
}

BOOST_AUTO_TEST_CASE(resizing_to_the_same_size_changes_nothing) {
  const Var x = input({2, 3, 5, 4});
  const Tensor y = resize_bilinear(x, 5, 4).value();
  for (std::int64_t i = 0; i < y.numel(); ++i) BOOST_TEST(y.data<float>()[i] == x.value().data<float>()[i]);
}

BOOST_AUTO_TEST_CASE(an_empty_batch_is_resized) {
  BOOST_TEST((resize_bilinear(input({0, 3, 5, 4}), 2, 9).shape() == Shape{0, 3, 2, 9}));
}

BOOST_AUTO_TEST_CASE(sizes_without_places_are_usage_errors) {
  BOOST_CHECK_THROW(resize_bilinear(input({1, 3, 5, 4}), 0, 9), UsageError);
  BOOST_CHECK_THROW(resize_bilinear(input({1, 3, 0, 4}), 2, 9), UsageError);
  BOOST_CHECK_THROW(resize_bilinear(input({3, 5, 4}), 2, 9), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
