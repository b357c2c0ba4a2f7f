// Losses and their gradients against double precision.
#include "lockstep/ops/loss.h"
#include "kernels/reference.h"
#include "lockstep/ops/elementwise.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(loss)

using kernels::make_cpu_backend;
using ops::CountedSum;
using ops::CrossEntropyOptions;

/// What a loss wrote.
ops::CountedSum read(const Tensor& total) { return {total.data<double>()[0], total.data<double>()[1]}; }

ops::CountedSum cross_entropy(kernels::Backend& backend, const Tensor& logits, const Tensor& targets,
                              const ops::CrossEntropyOptions& options, const Tensor& logs) {
  const Tensor total = Tensor::empty({2}, DType::float64);
  backend.run(ops::CrossEntropy{logits, targets, options, logs, total});
  return read(total);
}

std::int64_t count_correct(kernels::Backend& backend, const Tensor& logits, const Tensor& targets) {
  const Tensor count = Tensor::empty({}, DType::int64);
  backend.run(ops::CountCorrect{logits, targets, count});
  return *count.data<std::int64_t>();
}

Tensor factor(float value) {
  const Tensor tensor = Tensor::empty({});
  *tensor.data<float>() = value;
  return tensor;
}

struct Reference {
  double sum = 0, count = 0;
  std::vector<double> gradient;
};

Reference reference(const Tensor& logits, const Tensor& targets, const ops::CrossEntropyOptions& options,
                    double factor) {
  Reference out;
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  const double s = options.label_smoothing;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* x = logits.data<float>() + r * classes;
    const std::int64_t target = targets.data<std::int64_t>()[r];
    double total = 0;
    const double most = *std::max_element(x, x + classes);
    for (std::int64_t c = 0; c < classes; ++c) total += std::exp(x[c] - most);
    const double log = most + std::log(total);
    const bool counted = target != options.ignore_index;
    for (std::int64_t c = 0; c < classes; ++c) {
      const double wanted = (c == target ? 1 - s : 0) + s / static_cast<double>(classes);
      if (counted) out.sum += wanted * (log - x[c]);
      out.gradient.push_back(counted ? factor * (std::exp(x[c] - log) - wanted) : 0);
    }
    out.count += counted;
  }
  return out;
}

BOOST_AUTO_TEST_CASE(cross_entropy_equals_double_precision) {
  Draw draw(91);
  for (const int threads : {1, 2}) {
    const auto backend = make_cpu_backend(threads);
    for (const auto& [rows, classes] : {std::pair<int, int>{0, 3}, {1, 1}, {5, 10}, {300, 33}, {7, 1500}}) {
      for (const float smoothing : {0.0f, 0.1f}) {
        const ops::CrossEntropyOptions options{.label_smoothing = smoothing, .ignore_index = -100};
        const Tensor logits = draw.normal({rows, classes}, 4), targets = draw.indices({rows}, classes);
        for (int r = 0; r < rows; r += 4)
          targets.data<std::int64_t>()[r] = r % 8 ? -100 : targets.data<std::int64_t>()[r];
        const Reference expected = reference(logits, targets, options, 0.37);
        const Tensor logs = Tensor::empty({rows}), gradient = Tensor::empty(logits.shape());
        const ops::CountedSum loss = cross_entropy(*backend, logits, targets, options, logs);
        BOOST_TEST(std::abs(loss.sum - expected.sum) <= 1e-6 * std::max(1.0, expected.sum));
        BOOST_TEST(loss.count == expected.count);
        backend->run(ops::CrossEntropyBackward{logits, targets, options, logs, factor(0.37f), gradient});
        check_close(gradient, expected.gradient, "dlogits");
        backend->run(ops::CrossEntropyBackward{logits, targets, options, logs, factor(0.37f), logits});
        BOOST_TEST(same_bits(logits, gradient));  // in place
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(cross_entropy_survives_huge_logits) {
  const auto backend = make_cpu_backend();
  const Tensor logits = Tensor::zeros({1, 3}), targets = Tensor::zeros({1}, DType::int64),
               logs = Tensor::empty({1});
  logits.data<float>()[0] = 1e30f;
  logits.data<float>()[1] = -1e30f;
  BOOST_TEST(cross_entropy(*backend, logits, targets, {}, logs).sum == 0);
  targets.data<std::int64_t>()[0] = 2;
  BOOST_TEST(cross_entropy(*backend, logits, targets, {}, logs).sum == 1e30,
             boost::test_tools::tolerance(1e-6));
  logits.data<float>()[2] = NAN;
  BOOST_TEST(std::isnan(cross_entropy(*backend, logits, targets, {}, logs).sum));
}

BOOST_AUTO_TEST_CASE(cross_entropy_does_not_depend_on_threads) {
  Draw draw(92);
  const Tensor logits = draw.normal({999, 20}), targets = draw.indices({999}, 20),
               logs = Tensor::empty({999});
  BOOST_TEST(cross_entropy(*make_cpu_backend(1), logits, targets, {}, logs).sum ==
             cross_entropy(*make_cpu_backend(3), logits, targets, {}, logs).sum);
}

BOOST_AUTO_TEST_CASE(a_target_that_is_no_class_is_named_with_its_row) {
  const auto backend = make_cpu_backend();
  const Tensor logits = Tensor::zeros({4, 3}), targets = Tensor::zeros({4}, DType::int64),
               logs = Tensor::zeros({4});
  targets.data<std::int64_t>()[2] = 3;
  const auto names_it = mentions("target 3", "row 2");
  BOOST_CHECK_EXCEPTION(cross_entropy(*backend, logits, targets, {}, logs), DataError, names_it);
  BOOST_CHECK_EXCEPTION(backend->run(ops::CrossEntropyBackward{logits, targets, {}, logs, factor(1), logits}),
                        DataError, names_it);
  BOOST_CHECK_NO_THROW(
      cross_entropy(*backend, logits, targets, {.label_smoothing = 0, .ignore_index = 3}, logs));
}

BOOST_AUTO_TEST_CASE(count_correct_takes_the_first_of_equal_logits) {
  const auto backend = make_cpu_backend();
  const Tensor logits = Tensor::zeros({3, 11}), targets = Tensor::zeros({3}, DType::int64);
  logits.data<float>()[11 + 4] = logits.data<float>()[11 + 9] = 2;  // row 1: classes 4 and 9
  logits.data<float>()[22 + 10] = 1;
  targets.data<std::int64_t>()[1] = 4;
  targets.data<std::int64_t>()[2] = 10;
  BOOST_TEST(count_correct(*backend, logits, targets) == 3);
  targets.data<std::int64_t>()[1] = 9;
  targets.data<std::int64_t>()[2] = -100;
  BOOST_TEST(count_correct(*backend, logits, targets) == 1);
}

BOOST_AUTO_TEST_CASE(squared_error_equals_double_precision) {
  Draw draw(93);
  const auto backend = make_cpu_backend(2);
  for (const std::int64_t count : {0, 1, 7, 4096, 9001}) {
    const Tensor x = draw.normal({count}), target = draw.normal({count}), dx = Tensor::empty({count});
    double sum = 0;
    std::vector<double> gradient;
    for (std::int64_t i = 0; i < count; ++i) {
      const double off = static_cast<double>(x.data<float>()[i]) - target.data<float>()[i];
      sum += off * off;
      gradient.push_back(0.3 * 2 * off);
    }
    const Tensor total = Tensor::empty({2}, DType::float64);
    backend->run(ops::squared_error(x, target, total));
    const ops::CountedSum loss = read(total);
    BOOST_TEST(std::abs(loss.sum - sum) <= 1e-12 * std::max(1.0, sum));
    BOOST_TEST(loss.count == static_cast<double>(count));
    backend->run(ops::squared_error_backward(x, target, factor(0.3f), dx));
    check_close(dx, gradient, "dx");
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
