// Optimizer steps against PyTorch's formulas in double, and cuts of ranges.
#include "kernels/reference.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(optimizer)

using kernels::AdamWStep;
using kernels::EmaTarget;
using kernels::make_cpu_backend;
using kernels::SgdStep;

void adamw(kernels::Backend& backend, const kernels::AdamWUpdate& update) { backend.adamw({&update, 1}); }
void sgd(kernels::Backend& backend, const kernels::SgdUpdate& update) { backend.sgd({&update, 1}); }

std::vector<double> doubles(const Tensor& tensor) { return {floats(tensor).begin(), floats(tensor).end()}; }

BOOST_AUTO_TEST_CASE(adamw_follows_its_formula_over_steps) {
  Draw draw(111);
  for (const int threads : {1, 2}) {
    const auto backend = make_cpu_backend(threads);
    const std::int64_t count = 20011;
    const Tensor value = draw.normal({count}), m = Tensor::zeros({count}), v = Tensor::zeros({count}),
                 average = copy_of(value);
    std::vector<double> p = doubles(value), em(p.size()), ev(p.size()), ema = p;
    for (int t = 1; t <= 4; ++t) {
      const Tensor gradient = draw.normal({count});
      const AdamWStep step{.lr = 1e-2,
                           .beta1 = 0.9,
                           .beta2 = 0.999,
                           .eps = 1e-8,
                           .weight_decay = 0.05,
                           .step = t,
                           .gradient_factor = 0.5f};
      const EmaTarget target{average, 0.999};
      adamw(*backend, {step, value, gradient, m, v, {&target, 1}});
      for (std::size_t i = 0; i < p.size(); ++i) {
        const double g = 0.5 * gradient.data<float>()[i];
        p[i] *= 1 - 1e-2 * 0.05;
        em[i] = 0.9 * em[i] + (1 - 0.9) * g;
        ev[i] = 0.999 * ev[i] + (1 - 0.999) * g * g;
        p[i] -= 1e-2 / (1 - std::pow(0.9, t)) * em[i] /
                (std::sqrt(ev[i]) / std::sqrt(1 - std::pow(0.999, t)) + 1e-8);
        ema[i] = 0.999 * ema[i] + (1 - 0.999) * p[i];
      }
    }
    check_close(value, p, "value");
    check_close(m, em, "exp_avg");
    check_close(v, ev, "exp_avg_sq");
    check_close(average, ema, "average");
    double most = 0;
    for (std::size_t i = 0; i < ev.size(); ++i)
      most = std::max(most, std::abs(v.data<float>()[i] / ev[i] - 1));
    BOOST_TEST(most < 1e-6);  // 1 - beta2 was not taken in float
  }
}

BOOST_AUTO_TEST_CASE(sgd_follows_its_formula_over_steps) {
  Draw draw(112);
  const auto backend = make_cpu_backend();
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      const std::int64_t count = 3001;
      const Tensor value = draw.normal({count}), buffer = Tensor::empty({count});
      backend->fill(buffer, NAN);  // not read at the first step
      std::vector<double> p = doubles(value), b(p.size());
      for (int t = 0; t < 3; ++t) {
        const Tensor gradient = draw.normal({count});
        const SgdStep step{.lr = 0.1,
                           .momentum = momentum,
                           .weight_decay = 0.01,
                           .nesterov = nesterov,
                           .first = t == 0,
                           .gradient_factor = 2};
        sgd(*backend, {step, value, gradient, momentum > 0 ? buffer : Tensor()});
        for (std::size_t i = 0; i < p.size(); ++i) {
          double g = 2.0 * gradient.data<float>()[i] + 0.01 * p[i];
          if (momentum > 0) {
            b[i] = t == 0 ? g : momentum * b[i] + g;
            g = nesterov ? g + momentum * b[i] : b[i];
          }
          p[i] -= 0.1 * g;
        }
      }
      check_close(value, p, "value");
      if (momentum > 0) check_close(buffer, b, "momentum");
    }
  }
}

BOOST_AUTO_TEST_CASE(ema_alone_equals_ema_in_the_step) {
  Draw draw(113);
  const auto backend = make_cpu_backend();
  const Tensor value = draw.normal({5003}), gradient = draw.normal({5003}), first = draw.normal({5003}),
               second = copy_of(first);
  const EmaTarget inside{first, 0.9999}, after{second, 0.9999};
  sgd(*backend, {{.lr = 0.1}, value, gradient, {}, {&inside, 1}});
  backend->ema(value, after);
  BOOST_TEST(same_bits(first, second));
}

BOOST_AUTO_TEST_CASE(a_cut_anywhere_changes_no_bit) {
  Draw draw(114);
  const std::int64_t count = 5000;
  const Tensor value = draw.normal({count}), gradient = draw.normal({count}), m = draw.normal({count}),
               average = draw.normal({count}), v = draw.normal({count});
  for (float& x : floats(v)) x *= x;
  struct Copies {
    Tensor value, m, v, average;
  };
  const auto copies = [&] { return Copies{copy_of(value), copy_of(m), copy_of(v), copy_of(average)}; };
  const AdamWStep adamw_step{.lr = 1e-3, .weight_decay = 0.1, .step = 7};
  const SgdStep sgd_step{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true};
  const Copies whole = copies(), cut = copies();
  const auto run = [&](kernels::Backend& backend, const Copies& on, std::int64_t begin, std::int64_t end) {
    const EmaTarget target{on.average.rows(begin, end), 0.99};
    adamw(backend, {adamw_step,
                    on.value.rows(begin, end),
                    gradient.rows(begin, end),
                    on.m.rows(begin, end),
                    on.v.rows(begin, end),
                    {&target, 1}});
    sgd(backend, {sgd_step,
                  on.value.rows(begin, end),
                  gradient.rows(begin, end),
                  on.m.rows(begin, end),
                  {&target, 1}});
  };
  const auto one = make_cpu_backend(1), two = make_cpu_backend(2);
  run(*one, whole, 0, count);
  for (std::int64_t begin = 0; begin < count;) {
    const std::int64_t end = std::min(count, begin + draw.below(97) + (begin == 0 ? 3001 : 1));
    run(*two, cut, begin, end);
    begin = end;
  }
  BOOST_TEST(same_bits(whole.value, cut.value));
  BOOST_TEST(same_bits(whole.m, cut.m));
  BOOST_TEST(same_bits(whole.v, cut.v));
  BOOST_TEST(same_bits(whole.average, cut.average));
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_refused) {
  const auto backend = make_cpu_backend();
  const Tensor value = Tensor::zeros({3}), other = Tensor::zeros({4});
  BOOST_CHECK_THROW(adamw(*backend, {{.step = 0}, value, value, value, value}), UsageError);
  BOOST_CHECK_THROW(adamw(*backend, {{}, value, value, other, value}), UsageError);
  BOOST_CHECK_THROW(sgd(*backend, {{.momentum = 0.9}, value, value}), UsageError);
  const EmaTarget target{other, 0.5};
  BOOST_CHECK_THROW(sgd(*backend, {{}, value, value, {}, {&target, 1}}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
