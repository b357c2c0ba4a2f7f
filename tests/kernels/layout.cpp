// Channel blocks and the way of images into them.
#include "kernels/images.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(layout)

BOOST_AUTO_TEST_CASE(to_layout_places_every_element_and_comes_back) {
  Draws draws;
  SEEDED {
    for (int round = 0; round < 120; ++round) {
      const auto backend = kernels::make_cpu_backend(draws.one_of({1, 1, 3}));
      const Images images =
          draws.images(draws.between(0, 3), draws.between(1, 70), draws.between(0, 6), draws.between(1, 6));
      const int from_block = draws.block(images.c), to_block = draws.block(images.c);
      BOOST_TEST_CONTEXT(to_string(images.shape())
                         << " from blocks of " << from_block << " to " << to_block) {
        const Tensor from = stored(*backend, images, from_block);
        const Tensor to = unwritten(*backend, images.shape(), to_block);
        backend->run(ops::ToLayout{from, to});
        BOOST_TEST(loaded(to).values == images.values);
        const Tensor back = unwritten(*backend, images.shape(), from_block);
        backend->run(ops::ToLayout{to, back});
        BOOST_TEST(loaded(back).values == images.values);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(to_layout_copies_plain_tensors_of_any_rank) {
  const auto backend = kernels::make_cpu_backend();
  Draws draws;
  SEEDED {
    const std::vector<double> values = draws.normals(12);
    const Tensor to = unwritten(*backend, {3, 4});
    backend->run(ops::ToLayout{stored(*backend, values, {3, 4}), to});
    BOOST_TEST(plain_values(to) == values);
    BOOST_CHECK_THROW(backend->run(ops::ToLayout{to, unwritten(*backend, {4, 3})}), UsageError);
  }
}

BOOST_AUTO_TEST_CASE(images_are_normalised_per_channel_in_any_layout) {
  Draws draws;
  const auto backend = kernels::make_cpu_backend();
  SEEDED {
    for (int round = 0; round < 40; ++round) {
      Images pixels(draws.between(0, 3), draws.between(1, 9), draws.between(1, 9), draws.between(1, 9));
      const int block = draws.block(pixels.c);
      const std::vector<double> scale = draws.normals(pixels.c), shift = draws.normals(pixels.c);
      const Tensor x = backend->empty(pixels.shape(), DType::uint8, 1);
      Images expected = pixels;
      for (std::size_t i = 0; i < pixels.values.size(); ++i) {
        x.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(draws.between(0, 255));
        pixels.values[i] = x.data<std::uint8_t>()[i];
      }
      for_each_place(pixels, [&](auto n, auto c, auto h, auto w) {
        const auto channel = static_cast<std::size_t>(c);
        expected.at(n, c, h, w) = pixels.at(n, c, h, w) * scale[channel] + shift[channel];
      });
      const Tensor y = unwritten(*backend, pixels.shape(), block);
      backend->run(ops::NormalizeImages{x, stored(*backend, scale, {pixels.c}),
                                        stored(*backend, shift, {pixels.c}), y});
      check_close(loaded(y), expected);
    }
    const Tensor x = backend->empty({1, 3, 2, 2}, DType::uint8, 1), y = unwritten(*backend, {1, 3, 2, 2});
    const Tensor three = unwritten(*backend, {3}), two = unwritten(*backend, {2});
    BOOST_CHECK_THROW(backend->run(ops::NormalizeImages{x, two, three, y}), UsageError);
    BOOST_CHECK_THROW(backend->run(ops::NormalizeImages{y, three, three, y}), UsageError);
    BOOST_CHECK_THROW(backend->run(ops::NormalizeImages{x, three, three, unwritten(*backend, {1, 3, 2, 3})}),
                      UsageError);
  }
}

BOOST_AUTO_TEST_CASE(few_channels_stay_plain_and_many_are_blocked) {
  const auto backend = kernels::make_cpu_backend();
  BOOST_TEST(backend->preferred_channel_block(1) == 1);
  BOOST_TEST(backend->preferred_channel_block(3) == 1);
  for (const std::int64_t channels : {32, 64, 128}) {
    const int block = backend->preferred_channel_block(channels);
    BOOST_TEST((block == 8 || block == 16));
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
