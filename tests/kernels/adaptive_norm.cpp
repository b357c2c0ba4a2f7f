// Adaptive group norm on the CPU against the composition of other operations that devices without it run.
#include "ops/norm.h"

#include "kernels/compositions.h"
#include "kernels/reference.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(adaptive_norm)

using kernels::Backend, kernels::make_cpu_backend;

struct Case {
  Shape shape;
  int groups = 1, channel_block = 1;
  bool has_addend = false, has_scale_shift = false, silu = false, has_residual = false, accumulate = false;

  std::string text() const {
    return fmt::format("{} in {} groups, channel block {}, addend {}, scale_shift {}, silu {}, residual {}",
                       to_string(shape), groups, channel_block, has_addend, has_scale_shift, silu,
                       has_residual);
  }
};

struct Given {
  Given(const Case& of, unsigned seed) {
    Draw draw(seed);
    const std::int64_t images = of.shape[0], channels = of.shape[1];
    x = draw.normal(of.shape, 3);
    for (float& value : floats(x)) value += 5;  // as activations are, not about 0
    dy = draw.normal(of.shape);
    weight = draw.normal({channels});
    bias = draw.normal({channels});
    if (of.has_addend) addend = draw.normal({images, channels});
    if (of.has_scale_shift) scale_shift = draw.normal({images, 2 * channels});
    if (of.has_residual) residual = draw.normal(of.shape);
    so_far = draw.normal({channels});
  }
  Tensor x, dy, weight, bias, addend, scale_shift, residual, so_far;
};

/// Named results, plain.
using Results = std::vector<std::pair<const char*, Tensor>>;

Results run(Backend& backend, const Case& of, const Given& given) {
  const auto in_block = [&](const Tensor& plain) {
    if (!plain) return plain;
    const Tensor images = backend.empty(plain.shape(), DType::float32, of.channel_block);
    backend.run(ops::ToLayout{plain, images});
    return images;
  };
  const auto like = [](const Tensor& tensor) { return tensor ? Tensor::empty(tensor.shape()) : Tensor(); };
  const auto images = [&] {
    const Tensor tensor = backend.empty(of.shape, DType::float32, of.channel_block);
    std::fill_n(tensor.data<float>(), tensor.stored_numel(), NAN);
    return tensor;
  };
  const Tensor x = in_block(given.x), y = images(), dx = images(),
               mean = Tensor::zeros({of.shape[0], of.groups}), inv_std = Tensor::zeros(mean.shape());
  backend.run(ops::AdaptiveGroupNorm{x, given.addend, of.groups, given.weight, given.bias, given.scale_shift,
                                     1e-5f, of.silu, y, mean, inv_std});
  const Tensor daddend = like(given.addend), dscale_shift = like(given.scale_shift),
               dweight = copy_of(given.so_far), dbias = copy_of(given.so_far);
  backend.run(ops::AdaptiveGroupNormBackward{in_block(given.dy), x, given.addend, of.groups, given.weight,
                                             given.bias, given.scale_shift, 1e-5f, of.silu, mean, inv_std,
                                             in_block(given.residual), dx, daddend, dscale_shift, dweight,
                                             dbias, of.accumulate});
  const auto plain = [&](const Tensor& tensor) {
    const Tensor copy = Tensor::empty(tensor.shape());
    backend.run(ops::ToLayout{tensor, copy});
    const Tensor again = images();
    backend.run(ops::ToLayout{copy, again});
    BOOST_TEST(same_bits(again, tensor), "padding lanes are zero");
    return copy;
  };
  Results results{{"y", plain(y)}, {"dx", plain(dx)}, {"mean", mean}, {"inv_std", inv_std}};
  if (daddend) results.emplace_back("daddend", daddend);
  if (dscale_shift) results.emplace_back("dscale_shift", dscale_shift);
  results.emplace_back("dweight", dweight);
  results.emplace_back("dbias", dbias);
  return results;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](const Shape& shape, int groups, std::initializer_list<int> blocks) {
    for (const int block : blocks) {
      for (int flags = 0; flags < 32; ++flags)
        cases.push_back({shape, groups, block, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0,
                         (flags & 8) != 0, (flags & 16) != 0});
    }
  };
  add({2, 32, 5, 7}, 8, {1, 8, 16, 32});
  add({3, 24, 4, 4}, 4, {1, 8, 24});  // 6 channels a group: a block has parts of two
  add({2, 6, 3, 5}, 3, {1, 6, 8});    // padding lanes
  add({1, 4, 1, 1}, 2, {1, 4});
  add({2, 64, 9, 9}, 32, {8, 64});
  return cases;
}

Results composed(const Case& of, const Given& given) {
  const auto backend = make_cpu_backend();
  backend->enter<&kernels::adaptive_group_norm, &kernels::adaptive_group_norm_backward>();
  return run(*backend, of, given);
}

BOOST_AUTO_TEST_CASE(every_layout_and_every_option_is_as_composed_of_other_operations) {
  const auto backend = make_cpu_backend();
  for (const Case& of : all_cases()) {
    const Given given(of, 71);
    const Results found = run(*backend, of, given), wanted = composed(of, given);
    BOOST_TEST_CONTEXT(of.text()) {
      BOOST_REQUIRE(found.size() == wanted.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        const auto values = floats(wanted[i].second);
        check_close(found[i].second, {values.begin(), values.end()}, found[i].first);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(does_not_depend_on_threads) {
  const auto one = make_cpu_backend(1), three = make_cpu_backend(3);
  for (const int block : {1, 8, 64}) {
    const Case of{{5, 64, 9, 9}, 32, block, true, true, true, true, true};
    const Given given(of, 72);
    const Results by_one = run(*one, of, given), by_three = run(*three, of, given);
    for (std::size_t i = 0; i < by_one.size(); ++i)
      BOOST_TEST(same_bits(by_one[i].second, by_three[i].second), by_one[i].first);
  }
}

BOOST_AUTO_TEST_CASE(a_far_mean_does_not_cost_the_digits_of_the_deviation) {
  const Case of{{1, 8, 16, 16}, 2, 8};
  Given given(of, 73);
  for (float& value : floats(given.x)) value += 3000;
  const auto backend = make_cpu_backend();
  const Results found = run(*backend, of, given);
  for (std::int64_t group = 0; group < 2; ++group) {
    const auto x = floats(given.x).subspan(static_cast<std::size_t>(group * 1024), 1024);
    double mean = 0, variance = 0;
    for (const float value : x) mean += static_cast<double>(value) / 1024;
    for (const float value : x) variance += std::pow(static_cast<double>(value) - mean, 2) / 1024;
    const double inverse = 1 / std::sqrt(variance + 1e-5);
    BOOST_TEST(std::abs(found[3].second.data<float>()[group] / inverse - 1) <= 1e-5);
  }
}

BOOST_AUTO_TEST_CASE(images_of_nothing_have_zero_gradients) {
  const auto backend = make_cpu_backend();
  for (const Shape& shape : {Shape{0, 8, 4, 4}, Shape{2, 8, 0, 4}}) {
    const Case of{shape, 2, 8, true, true, true, false, false};
    const Results found = run(*backend, of, Given(of, 74));
    for (const auto& [name, tensor] : found) {
      if (std::string(name).starts_with("d"))
        for (const float value : floats(tensor)) BOOST_TEST(value == 0, name);
    }
  }
}

BOOST_AUTO_TEST_CASE(operands_that_do_not_fit_are_usage_errors) {
  const auto backend = make_cpu_backend();
  const Tensor x = Tensor::zeros({1, 6, 2, 2}), six = Tensor::zeros({6}), two = Tensor::zeros({1, 2}),
               pairs = Tensor::zeros({1, 6});
  const auto refused = [&](const ops::AdaptiveGroupNorm& op) {
    BOOST_CHECK_THROW(backend->run(op), UsageError);
  };
  refused({x, {}, 4, six, six, {}, 0, false, x, Tensor::zeros({1, 4}), Tensor::zeros({1, 4})});
  refused({x, two, 2, six, six, {}, 0, false, x, two, two});
  refused({x, {}, 2, six, six, pairs, 0, false, x, two, two});
  refused({x, {}, 2, six, two, {}, 0, false, x, two, two});
  BOOST_CHECK_THROW(backend->run(ops::AdaptiveGroupNormBackward{
                        x, x, pairs, 2, six, six, {}, 0, false, two, two, {}, x, {}, {}, six, six}),
                    UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
