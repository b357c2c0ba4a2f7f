// AdamW and SGD against PyTorch: every case of every optim*.h5 in LOCKSTEP_GOLDEN.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/hdf5/file.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/sgd.h"
#include "optim/made_up_model.h"

namespace lockstep::optim {
namespace {

using Json = nlohmann::json;
using test::MadeUpModel;

std::filesystem::path golden_folder() {
  if (const char* const folder = std::getenv("LOCKSTEP_GOLDEN")) return folder;
  const char* const source = std::getenv("LOCKSTEP_SOURCE_DIR");
  if (source == nullptr) throw UsageError("set LOCKSTEP_GOLDEN to the folder of the reference cases");
  return std::filesystem::path(source) / "tests/golden";
}

std::vector<std::filesystem::path> golden_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("optim") && name.ends_with(".h5")) files.push_back(entry.path());
  }
  return files;
}

Tensor read_tensor(const hdf5::Group& group, const std::string& name) {
  const hdf5::Dataset dataset = group.open_dataset(name);
  const Tensor tensor = Tensor::empty(Shape(std::span<const std::int64_t>(dataset.shape())));
  dataset.read(std::span(tensor.data<float>(), static_cast<std::size_t>(tensor.numel())));
  return tensor;
}

std::unique_ptr<Optimizer> make_optimizer(GradientSource& source, const Json& what) {
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
  throw UsageError("the reference cases hold an unknown optimizer '{}'", name);
}

/// |a - b| in units of the tolerance 1e-6 + 1e-5 |b|; above 1 is wrong, and so is NaN.
double off(double a, double b) { return std::abs(a - b) / (1e-6 + 1e-5 * std::abs(b)); }

void check_values(const std::string& where, const Tensor& ours, const Tensor& reference) {
  BOOST_REQUIRE(ours.shape() == reference.shape());
  double worst = 0;
  for (std::int64_t i = 0; i < ours.numel(); ++i) {
    const double here = off(ours.data<float>()[i], reference.data<float>()[i]);
    if (!(here <= worst)) worst = here;
  }
  BOOST_TEST(worst <= 1, where << " is off by " << worst << " times the tolerance");
}

void run_case(const std::string& where, const hdf5::Group& group) {
  const Json what = Json::parse(group.text_attribute("case"));
  MadeUpModel model;
  for (const hdf5::Link& link : group.open_group("init").links()) {
    const Tensor initial = read_tensor(group, "init/" + link.name);
    copy_elements(initial, model.add(link.name, initial.shape()).value);
  }
  BOOST_REQUIRE(!model.params().empty());
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(model, what);
  const double clip = what.at("clip").is_null() ? 0 : what.at("clip").get<double>();
  const Tensor norms = read_tensor(group, "norm");
  const int steps = what.at("steps");
  BOOST_REQUIRE(norms.numel() == steps);
  for (int step = 0; step < steps; ++step) {
    const std::string s = std::to_string(step);
    for (Param* const param : model.params())
      param->gradient = read_tensor(group, "grad/" + s + "/" + param->name);
    const double norm = optimizer->step({.clip = clip, .measure_norm = true}).gradient_norm;
    BOOST_TEST(off(norm, norms.data<float>()[step]) <= 1, where << "/norm[" << s << "] is " << norm);
    for (Param* const param : model.params()) {
      const std::string name = "param/" + s + "/" + param->name;
      check_values(where + "/" + name, param->value, read_tensor(group, name));
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_case_is_pytorchs) {
  int cases = 0;
  for (const std::filesystem::path& path : golden_files()) {
    const hdf5::File file = hdf5::File::open(path.string());
    for (const hdf5::Link& link : file.links()) {
      const std::string where = path.filename().string() + "/" + link.name;
      BOOST_TEST_CONTEXT(where) { run_case(where, file.open_group(link.name)); }
      ++cases;
    }
  }
  BOOST_TEST(cases > 0, "no optim*.h5 with a case in it under " << golden_folder());
  BOOST_TEST_MESSAGE(cases << " cases");
}

}  // namespace lockstep::optim
