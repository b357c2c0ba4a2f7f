// The U-Net against guided-diffusion (golden/diffusion.py), on the CPU or on a GPU: names, results and
// gradients of each case unet/NAME in diffusion*.h5.
#include <boost/test/unit_test.hpp>

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/models/unet.h"
#include "support/backend_under_test.h"
#include "support/golden.h"
#include "support/golden_unet.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_unet, *golden())

using models::Unet;

/// A U-Net has some forty layers one after another.
constexpr Tolerance deep_bf16_tolerance{.of_largest = 1e-1};

void check_unet(const GoldenCase& golden, bool recompute, DType compute, const Tolerance& within) {
  Unet::Options options = unet_options_of(golden.what().at("unet"));
  options.recompute = recompute;
  Unet unet(options, 1);
  const auto backend = make_backend_under_test();
  unet.to(*backend);
  load_unet(golden, unet);
  LocalGradients gradients(unet, *backend);
  Tape tape(*backend);
  tape.begin({.training = options.dropout == 0, .sink = &gradients, .compute = compute});
  const auto there = [&](const char* name) { return kernels::on_device(golden.tensor(name), *backend); };
  const auto check = [&](const std::string& name, const Tensor& found) {
    const Tensor here = kernels::on_cpu(in_float32(*backend, found), backend.get());
    const std::string text = mismatch(golden, name, here, within);
    BOOST_CHECK_MESSAGE(text.empty(), text);
  };
  const Var x = tape.input(tape.batch(there("x")).value());
  const Var output = unet.predict(x, there("t"), golden.has("y") ? there("y") : Tensor());
  check("output", output.value());
  tape.backward(output, backend->in_type(there("grad_output"), output.value().dtype()));
  tape.finish_backward();
  check("grad_x", tape.gradient(x));
  if (compute != DType::float32) return;  // a group of one channel makes gradients of 0, but for rounding
  for (const Param* const param : gradients.params()) check("grad_param/" + param->name, param->gradient);
}

BOOST_AUTO_TEST_CASE(every_unet_computes_what_guided_diffusion_does) {
  const auto check = [](const GoldenCase& golden) {
    check_unet(golden, false, DType::float32, layer_tolerance);
  };
  for_each_golden_case("diffusion", check, "unet");
}

BOOST_AUTO_TEST_CASE(recomputed_blocks_do_so_too) {
  const auto check = [](const GoldenCase& golden) {
    check_unet(golden, true, DType::float32, layer_tolerance);
  };
  for_each_golden_case("diffusion", check, "unet");
}

BOOST_AUTO_TEST_CASE(in_bf16_unets_stay_near) {
  const auto check = [](const GoldenCase& golden) {
    check_unet(golden, false, DType::bfloat16, deep_bf16_tolerance);
  };
  for_each_golden_case("diffusion", check, "unet");
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
