// The U-Net against guided-diffusion (golden/diffusion.py), on the CPU or on a GPU: names, results and
// gradients of each case unet/NAME in diffusion*.h5.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/models/unet.h"
#include "support/backend_under_test.h"
#include "support/golden.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_unet, *golden())

using models::Unet;

/// A U-Net has some forty layers one after another.
constexpr Tolerance deep_bf16_tolerance{.of_largest = 1e-1};

/// From the arguments of UNetModel.
Unet::Options options_of(const nlohmann::json& arguments) {
  Unet::Options options;
  const auto rows = Unet::Options::options();
  for (const auto& [key, value] : arguments.items()) {
    const auto row = std::ranges::find(rows, key, &Option<Unet::Options>::name);
    if (row == rows.end()) throw DataError("unknown argument {}", key);
    if (value.is_null()) continue;
    std::string text = value.dump();  // "[4,3]": a list has blanks between its numbers
    std::erase_if(text, [](char letter) { return letter == '[' || letter == ']'; });
    std::ranges::replace(text, ',', ' ');
    row->set(options, text);
  }
  return options;
}

void load(const GoldenCase& golden, Unet& unet) {
  const ModelState state = unet;
  const std::vector<std::string> names = golden.names("param");
  BOOST_REQUIRE_EQUAL(names.size(), state.params.size());
  for (Param* const param : state.params) {
    BOOST_REQUIRE_MESSAGE(std::ranges::count(names, param->name) == 1, param->name << " is not in the file");
    kernels::transfer(golden.tensor("param/" + param->name), param->value, state.backend);
  }
}

void check_unet(const GoldenCase& golden, bool recompute, DType compute, const Tolerance& within) {
  Unet::Options options = options_of(golden.what().at("unet"));
  options.recompute = recompute;
  Unet unet(options, 1);
  const auto backend = make_backend_under_test();
  unet.to(*backend);
  load(golden, unet);
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
