// Weights only: from checkpoints, from their EMA, and from HDF5 files that others wrote.
#include <boost/test/unit_test.hpp>

#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/checkpoint/save.h"
#include "lockstep/hdf5/file.h"
#include "support/world.h"

namespace ls = lockstep;
namespace lc = lockstep::checkpoint;
namespace h5 = lockstep::hdf5;
using ls::test::mentions;

namespace {

/// weight [2, 3], running_mean [3], num_batches_tracked.
struct SmallModel {
  ls::Param weight;
  ls::Buffer mean{"norm.running_mean", ls::Tensor::zeros({3})};
  ls::Buffer batches{"norm.num_batches_tracked", ls::Tensor::zeros({}, ls::DType::int64)};
  SmallModel() {
    weight.name = "norm.weight";
    weight.value = ls::Tensor::zeros({2, 3});
  }
  operator ls::ModelState() { return {{&weight}, {&mean, &batches}, {}}; }

  void set(float value) {
    for (int i = 0; i < 6; ++i) weight.value.data<float>()[i] = value;
    for (int i = 0; i < 3; ++i) mean.value.data<float>()[i] = value + 1;
    *batches.value.data<std::int64_t>() = static_cast<std::int64_t>(value) + 2;
  }
};

struct Files {
  ls::comm::Communicator& world = ls::test::world();
  ls::test::SharedFolder folder{world};
  std::string path = folder.file("a.h5");
  SmallModel model;

  /// A file that rank 0 makes by itself.
  template <class Make>
  void make(const Make& make) {
    if (world.rank() == 0) {
      h5::File file = h5::File::create(path, {.existing = h5::CreateOptions::Existing::replace});
      make(file);
      file.close();
    }
    world.barrier();
  }
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(weights_come_from_the_model_or_from_an_ema_whose_missing_buffers_are_the_models,
                        Files) {
  model.set(10);
  lc::Contents contents;
  lc::add(contents, model);
  ls::Tensor shadow = ls::Tensor::zeros({2, 3});
  shadow.data<float>()[5] = 0.5f;
  contents.sections.push_back({"ema/0.9", {{"norm.weight", shadow}}, {{"updates", std::int64_t{1}, {}}}});
  lc::save_file(path, contents, world);

  model.set(0);
  BOOST_TEST(lc::load_weights(path, model, world).warnings.empty());
  BOOST_TEST(model.weight.value.data<float>()[5] == 10.0f);
  BOOST_TEST(*model.batches.value.data<std::int64_t>() == 12);

  model.set(0);
  lc::load_weights(path, model, world, "ema/0.9");
  BOOST_TEST(model.weight.value.data<float>()[5] == 0.5f);
  BOOST_TEST(model.mean.value.data<float>()[2] == 11.0f);

  BOOST_CHECK_EXCEPTION(lc::load_weights(path, model, world, "ema/0.99"), ls::DataError,
                        mentions("'ema/0.99'", "model, ema/0.9"));
}

BOOST_FIXTURE_TEST_CASE(a_checkpoint_of_another_model_is_refused_with_all_names, Files) {
  lc::Contents contents;
  contents.sections.push_back(
      {"model", {{"hidden.weight", ls::Tensor::zeros({4})}, {"norm.weight", ls::Tensor::zeros({3, 2})}}, {}});
  lc::save_file(path, contents, world);
  BOOST_CHECK_EXCEPTION(
      lc::load_weights(path, model, world), ls::DataError,
      mentions("a.h5", "missing: model/norm.running_mean, model/norm.num_batches_tracked",
               "unexpected: model/hidden.weight", "model/norm.weight is [3, 2] in the file, [2, 3] here"));
}

BOOST_FIXTURE_TEST_CASE(named_arrays_of_any_file_are_loaded_and_widened_but_never_narrowed, Files) {
  make([](h5::File& file) {
    h5::Group group = file.create_group("case");
    group.create_group("within");
    const std::vector<float> values = {1, 2, 3, 4, 5, -6};
    group.create_dataset("module.norm.weight", h5::ElementType::bfloat16, {2, 3})
        .write(h5::ElementType::float32, std::as_bytes(std::span(values)));
    group.create_dataset("norm.running_mean", h5::ElementType::float32, {3})
        .write<float>(std::vector<float>{7, 8, 9});
    group.create_dataset("norm.num_batches_tracked", h5::ElementType::int32, {})
        .write<std::int32_t>(std::vector<std::int32_t>{11});
  });
  const lc::LoadReport report = lc::load_weights(path, model, world, "case");
  BOOST_TEST(model.weight.value.data<float>()[5] == -6.0f);
  BOOST_TEST(model.mean.value.data<float>()[2] == 9.0f);
  BOOST_TEST(*model.batches.value.data<std::int64_t>() == 11);
  BOOST_TEST(report.warnings.size() == 1u);

  make([](h5::File& file) {
    h5::Group group = file.create_group("case");
    group.create_dataset("norm.weight", h5::ElementType::float64, {2, 3})
        .write<double>(std::vector<double>(6));
  });
  BOOST_CHECK_EXCEPTION(
      lc::load_weights(path, model, world, "case"), ls::DataError,
      mentions("case/norm.weight is float64 in the file, float32 here", "missing: case/norm.running_mean"));
  BOOST_CHECK_EXCEPTION(lc::load_weights(path, model, world, "none"), ls::DataError,
                        mentions("/none does not exist"));
}
