// Optimizer steps against PyTorch's formulas in double, and cuts of ranges.
#include "kernels/reference.h"
#include "lockstep/ops/update.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(optimizer)

using kernels::make_cpu_backend;

/// Of one parameter.
template <class Rule>
void update(kernels::Backend& backend, const Rule& rule, const Tensor& value, const Tensor& gradient,
            const std::array<Tensor, Rule::states>& state, std::span<const ops::EmaTarget> ema = {}) {
  const ops::ParameterUpdate<Rule> one{rule, value, gradient, state, ema};
  backend.run(ops::Update<Rule>{{&one, 1}});
}

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
      const auto rule = ops::AdamW::of({.lr = 1e-2,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .eps = 1e-8,
                                        .weight_decay = 0.05,
                                        .step = t,
                                        .gradient_factor = 0.5f});
      const ops::EmaTarget target{average, 0.999};
      update(*backend, rule, value, gradient, {m, v}, {&target, 1});
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
      const Tensor value = draw.normal({count}), buffer = Tensor::zeros({count});
      std::vector<double> p = doubles(value), b(p.size());
      for (int t = 0; t < 3; ++t) {
        const Tensor gradient = draw.normal({count});
        constexpr float rate = 0.1f, decay = 0.01f, factor = 2;
        const auto m = static_cast<float>(momentum);
        if (momentum == 0)
          update(*backend, ops::Sgd{rate, decay, factor}, value, gradient, {});
        else if (nesterov)
          update(*backend, ops::SgdMomentum<true>{rate, m, decay, factor}, value, gradient, {buffer});
        else
          update(*backend, ops::SgdMomentum<false>{rate, m, decay, factor}, value, gradient, {buffer});
        for (std::size_t i = 0; i < p.size(); ++i) {
          double g = 2.0 * gradient.data<float>()[i] + 0.01 * p[i];
          if (momentum > 0) {
            b[i] = momentum * b[i] + g;
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
  const ops::EmaTarget inside{first, 0.9999};
  update(*backend, ops::Sgd{0.1f, 0, 1}, value, gradient, {}, {&inside, 1});
  backend->run(ops::Ema{value, second, 0.9999});
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
  const auto adamw = ops::AdamW::of({.lr = 1e-3, .weight_decay = 0.1, .step = 7});
  const ops::SgdMomentum<true> sgd{0.1f, 0.9f, 0.1f, 1};
  const Copies whole = copies(), cut = copies();
  const auto run = [&](kernels::Backend& backend, const Copies& on, std::int64_t begin, std::int64_t end) {
    const ops::EmaTarget target{on.average.rows(begin, end), 0.99};
    update(backend, adamw, on.value.rows(begin, end), gradient.rows(begin, end),
           {on.m.rows(begin, end), on.v.rows(begin, end)}, {&target, 1});
    update(backend, sgd, on.value.rows(begin, end), gradient.rows(begin, end), {on.m.rows(begin, end)},
           {&target, 1});
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
  BOOST_CHECK_THROW(ops::AdamW::of({.step = 0}), UsageError);
  BOOST_CHECK_THROW(update(*backend, ops::AdamW::of({}), value, value, {other, value}), UsageError);
  BOOST_CHECK_THROW(update(*backend, ops::SgdMomentum<false>{}, value, value, {Tensor()}), UsageError);
  const ops::EmaTarget target{other, 0.5};
  BOOST_CHECK_THROW(update(*backend, ops::Sgd{}, value, value, {}, {&target, 1}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
