// AdamW and SGD against PyTorch, Muon against its formula in float32: every case of every optim*.h5 of the
// golden files.
#include "support/golden.h"

#include <boost/test/unit_test.hpp>
#include <memory>

#include "lockstep/optim/adamw.h"
#include "lockstep/optim/muon.h"
#include "lockstep/optim/sgd.h"
#include "optim/made_up_model.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_optim, *golden())

using namespace optim;

std::unique_ptr<Optimizer> make_optimizer(GradientSource& source, const nlohmann::json& what) {
  const std::string name = what.at("optimizer");
  if (name == "adamw")
    return std::make_unique<AdamW>(source, AdamWOptions{.lr = what.at("lr"),
                                                        .betas = {what.at("betas")[0], what.at("betas")[1]},
                                                        .eps = what.at("eps"),
                                                        .weight_decay = what.at("weight_decay")});
  if (name == "sgd")
    return std::make_unique<Sgd>(source, SgdOptions{.lr = what.at("lr"),
                                                    .momentum = what.at("momentum"),
                                                    .nesterov = what.at("nesterov"),
                                                    .weight_decay = what.at("weight_decay")});
  if (name == "muon")
    return std::make_unique<Muon>(source, MuonOptions{.lr = what.at("lr"),
                                                      .momentum = what.at("momentum"),
                                                      .nesterov = what.at("nesterov"),
                                                      .betas = {what.at("betas")[0], what.at("betas")[1]},
                                                      .eps = what.at("eps"),
                                                      .weight_decay = what.at("weight_decay")});
  throw UsageError("the golden files hold an unknown optimizer '{}'", name);
}

void run(const GoldenCase& golden) {
  MadeUpModel model;
  for (const std::string& name : golden.names("init")) {
    const Tensor initial = golden.tensor("init/" + name);
    copy_elements(initial, model.add(name, initial.shape()).value);
  }
  BOOST_REQUIRE(!model.params().empty());
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(model, golden.what());
  const nlohmann::json clip = golden.what().at("clip");
  const std::int64_t steps = golden.what().at("steps");
  const Tensor norms = Tensor::empty({steps}, DType::float64);
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::string gradients = fmt::format("grad/{}/", step), values = fmt::format("param/{}/", step);
    for (Param* const param : model.params()) param->gradient = golden.tensor(gradients + param->name);
    norms.data<double>()[step] =
        optimizer->step({.clip = clip.is_null() ? 0 : clip.get<double>(), .measure_norm = true})
            .gradient_norm;
    for (const Param* const param : model.params())
      BOOST_TEST(mismatch(golden, values + param->name, param->value, optimizer_tolerance) == "");
  }
  BOOST_TEST(mismatch(golden, "norm", norms, optimizer_tolerance) == "");
  for (const Slot& slot : optimizer->slots())
    for (const Slot::Entry& entry : slot.entries)
      if (const std::string path = slot.name + "/" + entry.name; golden.has(path))
        BOOST_TEST(mismatch(golden, path, entry.tensor, optimizer_tolerance) == "");
}

BOOST_AUTO_TEST_CASE(every_case_is_pytorchs) { for_each_golden_case("optim", run); }

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
