// Weights only: from checkpoints, from their EMA, and from HDF5 files that others wrote.
#include <fmt/format.h>

#include <boost/test/unit_test.hpp>

#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/hdf5/file.h"
#include "lockstep/optim/ema.h"
#include "support/standard_error.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(weights, *ranks(1, 2, 3))

namespace lc = checkpoint;
namespace h5 = hdf5;

/// weight [2, 3], running_mean [3], num_batches_tracked.
struct SmallModel {
  Param weight;
  Buffer mean{"norm.running_mean", Tensor::zeros({3})};
  Buffer batches{"norm.num_batches_tracked", Tensor::zeros({}, DType::int64)};
  SmallModel() {
    weight.name = "norm.weight";
    weight.value = Tensor::zeros({2, 3});
  }
  operator ModelState() { return {{&weight}, {&mean, &batches}, {}}; }

  void set(float value) {
    for (int i = 0; i < 6; ++i) weight.value.data<float>()[i] = value;
    for (int i = 0; i < 3; ++i) mean.value.data<float>()[i] = value + 1;
    *batches.value.data<std::int64_t>() = static_cast<std::int64_t>(value) + 2;
  }
};

struct Files {
  comm::HostGroup& world = test::world();
  SharedFolder folder{world};
  std::string path = folder.file("a.h5");
  SmallModel model;

  /// A file that rank 0 makes by itself, when nobody reads the one before.
  template <class Make>
  void make(const Make& make) {
    world.barrier();
    if (world.rank() == 0) {
      h5::File file = h5::File::create(path, {.existing = h5::CreateOptions::Existing::replace});
      make(file);
      file.close();
    }
    world.barrier();
  }
};

BOOST_FIXTURE_TEST_CASE(weights_come_from_the_model_or_from_an_ema_whose_missing_buffers_are_the_models,
                        Files) {
  model.set(10);
  lc::StateDict state_dict;
  lc::add(state_dict, model);
  Tensor shadow = Tensor::zeros({2, 3});
  shadow.data<float>()[5] = 0.5f;
  state_dict.sections.push_back({"ema/0.9", {{"norm.weight", shadow}}, {{"updates", std::int64_t{1}, {}}}});
  lc::save_file(path, state_dict, world);

  model.set(0);
  BOOST_TEST(lc::load_weights(path, model, world).warnings.empty());
  BOOST_TEST(model.weight.value.data<float>()[5] == 10.0f);
  BOOST_TEST(*model.batches.value.data<std::int64_t>() == 12);

  model.set(0);
  lc::load_weights(path, model, world, "ema/0.9");
  BOOST_TEST(model.weight.value.data<float>()[5] == 0.5f);
  BOOST_TEST(model.mean.value.data<float>()[2] == 11.0f);

  BOOST_CHECK_EXCEPTION(lc::load_weights(path, model, world, "ema/0.99"), DataError,
                        mentions("'ema/0.99'", "model, ema/0.9"));
}

BOOST_FIXTURE_TEST_CASE(a_checkpoint_of_another_model_is_refused_with_all_names, Files) {
  lc::StateDict state_dict;
  state_dict.sections.push_back(
      {"model", {{"hidden.weight", Tensor::zeros({4})}, {"norm.weight", Tensor::zeros({3, 2})}}, {}});
  lc::save_file(path, state_dict, world);
  BOOST_CHECK_EXCEPTION(
      lc::load_weights(path, model, world), DataError,
      mentions("a.h5", "missing: model/norm.running_mean, model/norm.num_batches_tracked",
               "unexpected: model/hidden.weight", "model/norm.weight is [3, 2] in the file, [2, 3] here"));
}

BOOST_FIXTURE_TEST_CASE(named_arrays_of_any_file_are_loaded_and_widened_but_narrowed_only_when_asked, Files) {
  make([](h5::File& file) {
    h5::Group group = file.create_group("case");
    group.create_group("within");
    const std::vector<float> values = {1, 2, 3, 4, 5, -6};
    group.create_dataset("module.norm.weight", DType::bfloat16, {2, 3})
        .write(DType::float32, std::as_bytes(std::span(values)));
    group.create_dataset("norm.running_mean", DType::float32, {3}).write<float>(std::vector<float>{7, 8, 9});
    group.create_dataset("norm.num_batches_tracked", DType::int32, {})
        .write<std::int32_t>(std::vector<std::int32_t>{11});
  });
  const lc::LoadReport report = lc::load_weights(path, model, world, "case");
  BOOST_TEST(model.weight.value.data<float>()[5] == -6.0f);
  BOOST_TEST(model.mean.value.data<float>()[2] == 9.0f);
  BOOST_TEST(*model.batches.value.data<std::int64_t>() == 11);
  BOOST_TEST(report.warnings.empty());
  BOOST_TEST(report.notes.empty());

  make([](h5::File& file) {
    h5::Group group = file.create_group("case");
    group.create_dataset("norm.weight", DType::float64, {2, 3}).write<double>(std::vector<double>(6));
  });
  BOOST_CHECK_EXCEPTION(
      lc::load_weights(path, model, world, "case"), DataError,
      mentions("case/norm.weight is float64 in the file, float32 here", "missing: case/norm.running_mean"));
  BOOST_CHECK_EXCEPTION(lc::load_weights(path, model, world, "none"), DataError,
                        mentions("/none does not exist"));

  const auto make_wide = [&](double value) {
    make([value](h5::File& file) {
      const std::vector<double> values(6, value);
      file.create_dataset("norm.weight", DType::float64, {2, 3}).write<double>(values);
      file.create_dataset("norm.running_mean", DType::float16, {3})
          .write(DType::float64, std::as_bytes(std::span(values).first(3)));
      file.create_dataset("norm.num_batches_tracked", DType::uint8, {})
          .write<std::uint8_t>(std::vector<std::uint8_t>{200});
    });
  };
  make_wide(0.1);  // at the root, where no /model is
  BOOST_CHECK_EXCEPTION(
      lc::load_weights(path, model, world), DataError,
      mentions("wrong type: norm.weight is float64 in the file, float32 here", "checkpoint.narrow = true"));
  lc::load_weights(path, model, world, {}, {.strict = true, .narrow = true});
  BOOST_TEST(model.weight.value.data<float>()[5] == 0.1f);
  BOOST_TEST(model.mean.value.data<float>()[2] == 0.0999755859375f);  // the float16 nearest to 0.1
  BOOST_TEST(*model.batches.value.data<std::int64_t>() == 200);
  make_wide(1e39);
  BOOST_CHECK_EXCEPTION(lc::load_weights(path, model, world, {}, {.strict = true, .narrow = true}), DataError,
                        mentions("norm.weight has numbers out of the range of float32"));
}

BOOST_FIXTURE_TEST_CASE(integers_are_no_float_parameters_whose_scale_they_would_lack, Files) {
  for (const DType integer :
       {DType::int8, DType::uint8, DType::int16, DType::uint16, DType::int32, DType::int64}) {
    make([integer](h5::File& file) {
      const std::vector<double> values(6, 3);
      file.create_dataset("norm.weight", integer, {2, 3})
          .write(DType::float64, std::as_bytes(std::span(values)));
      file.create_dataset("norm.running_mean", DType::float32, {3}).write<float>(std::vector<float>(3));
      file.create_dataset("norm.num_batches_tracked", DType::uint8, {})
          .write<std::uint8_t>(std::vector<std::uint8_t>{9});
    });
    const std::string what = fmt::format("norm.weight is {} in the file, float32 here", to_string(integer));
    for (const bool narrow : {false, true})
      BOOST_CHECK_EXCEPTION(lc::load_weights(path, model, world, {}, {.narrow = narrow}), DataError,
                            mentions("wrong type: ", what.c_str()));
  }
}

BOOST_FIXTURE_TEST_CASE(rank_0_writes_what_a_program_does_not_read_of_the_report, Files) {
  make([](h5::File& file) {
    file.create_group("model")
        .create_dataset("other", DType::float32, {3})
        .write<float>(std::vector<float>{7, 8, 9});
    file.open_group("model")
        .create_dataset("norm.running_mean", DType::float32, {3})
        .write<float>(std::vector<float>{7, 8, 9});
  });
  const std::string text = said_by([&] { lc::load_weights(path, model, world, {}, {.strict = false}); });
  BOOST_TEST((text.find("unexpected: model/other") != text.npos) == (world.rank() == 0));
  BOOST_TEST(said_by([&] { lc::load_weights(path, model, world, {}, {.strict = false, .log = false}); }) ==
             "");
}

BOOST_FIXTURE_TEST_CASE(partial_loading_says_what_does_not_fit_and_takes_the_rest_but_never_a_collision,
                        Files) {
  const auto make_file = [&](const char* extra) {
    make([extra](h5::File& file) {
      h5::Group group = file.create_group("model");
      group.create_dataset("norm.weight", DType::float32, {6}).write<float>(std::vector<float>(6, 1.0f));
      group.create_dataset("norm.running_mean", DType::float32, {3})
          .write<float>(std::vector<float>{7, 8, 9});
      group.create_dataset(extra, DType::float32, {3}).write<float>(std::vector<float>{7, 8, 9});
    });
  };
  make_file("other");
  model.set(0.25f);
  const lc::LoadReport report = lc::load_weights(path, model, world, {}, {.strict = false});
  BOOST_REQUIRE_EQUAL(report.warnings.size(), 3u);
  BOOST_TEST(report.warnings[0] == path + ": missing: model/norm.num_batches_tracked");
  BOOST_TEST(report.warnings[1] == path + ": unexpected: model/other");
  BOOST_TEST(report.warnings[2] == path + ": wrong shape: model/norm.weight is [6] in the file, [2, 3] here");
  BOOST_TEST(report.notes.back() ==
             path + ": 0 of 1 parameters loaded; new, with their initial values: norm.weight");
  BOOST_TEST(model.weight.value.data<float>()[0] == 0.25f);
  BOOST_TEST(model.mean.value.data<float>()[0] == 7.0f);
  make_file("module._orig_mod.module.norm.running_mean");
  BOOST_CHECK_EXCEPTION(
      lc::load_weights(path, model, world, {}, {.strict = false}), DataError,
      mentions("model/norm.running_mean and model/module._orig_mod.module.norm.running_mean"));
}

BOOST_FIXTURE_TEST_CASE(a_file_of_which_nothing_belongs_to_the_model_is_refused_even_partially, Files) {
  make([](h5::File& file) {
    file.create_group("model")
        .create_dataset("other", DType::float32, {3})
        .write<float>(std::vector<float>{7, 8, 9});
  });
  BOOST_CHECK_EXCEPTION(lc::load_weights(path, model, world, {}, {.strict = false}), DataError,
                        mentions("no tensor belongs to this model"));
}

BOOST_FIXTURE_TEST_CASE(parameters_that_are_not_finite_are_no_start_unless_asked_for_and_buffers_are_named,
                        Files) {
  const auto save = [&](float in_weight, float in_mean) {
    model.set(1);
    model.weight.value.data<float>()[4] = in_weight;
    model.mean.value.data<float>()[0] = in_mean;
    lc::StateDict state_dict;
    lc::add(state_dict, model);
    lc::save_file(path, state_dict, world, {.allow_non_finite = true});
  };
  constexpr float infinite = std::numeric_limits<float>::infinity();
  save(std::numeric_limits<float>::quiet_NaN(), 0);
  for (const bool strict : {true, false}) {
    BOOST_CHECK_EXCEPTION(lc::load_weights(path, model, world, {}, {.strict = strict}), DataError,
                          mentions("has numbers that are not finite: norm.weight (1 of 6)"));
  }
  const lc::LoadReport asked = lc::load_weights(path, model, world, {}, {.finite = false});
  BOOST_TEST(asked.warnings.size() == 1u);
  BOOST_TEST(asked.warnings.at(0).find("norm.weight (1 of 6)") != std::string::npos);
  save(2, -infinite);
  BOOST_TEST(lc::load_weights(path, model, world).warnings.at(0).find("norm.running_mean (1 of 3)") !=
             std::string::npos);
  save(2, 0);
  BOOST_TEST(lc::load_weights(path, model, world).warnings.empty());
}

struct OtherFiles : Files {
  /// A .safetensors file of the model's tensors, which have the value, under prefixed names; and `more`.
  std::string write(const std::string& name, const std::string& prefix, float value, bool buffers = true,
                    const std::vector<lc::NamedTensor>& more = {}) {
    model.set(value);
    const std::string file = folder.file(name);
    world.barrier();
    if (world.rank() == 0) {
      lc::Weights weights;
      weights.tensors = {{prefix + "norm.weight", model.weight.value}};
      if (buffers) {
        weights.tensors.push_back({prefix + "norm.running_mean", model.mean.value});
        weights.tensors.push_back({prefix + "norm.num_batches_tracked", model.batches.value});
      }
      weights.tensors.insert(weights.tensors.end(), more.begin(), more.end());
      lc::write_weights(file, weights, true);
    }
    world.barrier();
    model.set(0);
    return file;
  }
};

BOOST_FIXTURE_TEST_CASE(the_count_of_an_averaged_model_is_left_out_and_recorded, OtherFiles) {
  Tensor count = Tensor::zeros({}, DType::int64);
  *count.data<std::int64_t>() = 12;
  const lc::NamedTensor averaged{"n_averaged", count};
  const std::string file = write("ema.safetensors", "module.", 3, true, {averaged});
  const lc::LoadReport report = lc::load_weights(file, model, world);
  BOOST_TEST(report.notes.at(0).find("n_averaged = 12 is the number of updates") != std::string::npos);
  BOOST_TEST(report.provenance.at("n_averaged") == "12");
  BOOST_TEST(model.weight.value.data<float>()[5] == 3.0f);
  // Beside names that no wrapper has, it is the model's own.
  BOOST_CHECK_EXCEPTION(lc::load_weights(write("own.safetensors", "", 3, true, {averaged}), model, world),
                        DataError, mentions("unexpected: n_averaged"));
  if (world.rank() != 0) return;
  const lc::Weights average = lc::read_weights(folder.file("ema.safetensors"));
  BOOST_TEST(average.tensors.size() == 3u);
  lc::Weights weights = lc::read_weights(folder.file("ema.safetensors"));
  lc::add_average(weights, "a", optim::EmaProfile::named("0.9"), average, "b");
  BOOST_TEST(std::get<std::int64_t>(weights.averages.at(0).attributes.at(1).value) == 12);
}

BOOST_FIXTURE_TEST_CASE(a_prefix_of_all_names_is_stripped_if_names_fit_only_without_it, OtherFiles) {
  for (const char* const prefix : {"model.", "module.model.net.", "net.module."}) {
    const lc::LoadReport report =
        lc::load_weights(write("a.safetensors", prefix, 3), model, world, {}, {.strict = true});
    BOOST_TEST(model.weight.value.data<float>()[5] == 3.0f);
    BOOST_TEST(report.notes.at(0).find("without their common prefix") != std::string::npos);
  }
  // Not a prefix of all names; and what else is wrong is still an error.
  const lc::NamedTensor other{"head.weight", Tensor::zeros({2})};
  BOOST_CHECK_EXCEPTION(lc::load_weights(write("b.safetensors", "model.", 3, true, {other}), model, world, {},
                                         {.strict = true}),
                        DataError, mentions("missing: norm.weight", "unexpected: "));
  BOOST_CHECK_EXCEPTION(lc::load_weights(write("c.safetensors", "model.", 3, false), model, world), DataError,
                        mentions("missing: norm.running_mean", "without their common prefix model."));
}

BOOST_FIXTURE_TEST_CASE(averages_of_parameters_alone_leave_the_buffers, OtherFiles) {
  const std::string file = write("average.safetensors", "", 3, false);
  model.set(8);
  BOOST_CHECK_THROW(lc::load_weights(file, model, world), DataError);
  const lc::LoadReport report = lc::load_weights(file, model, world, {}, {.params_only = true});
  BOOST_TEST(report.notes.at(0).find("lacks norm.running_mean, norm.num_batches_tracked") !=
             std::string::npos);
  BOOST_TEST(model.weight.value.data<float>()[0] == 3.0f);
  BOOST_TEST(model.mean.value.data<float>()[0] == 9.0f);

  const std::string whole = write("whole.safetensors", "", 5);
  if (world.rank() != 0) return;
  lc::Weights weights = lc::read_weights(whole);
  lc::add_average(weights, whole, optim::EmaProfile::named("0.9"), lc::read_weights(file), file);
  BOOST_TEST(weights.averages.at(0).tensors.size() == 3u);
  for (const lc::NamedTensor& tensor : weights.averages.at(0).tensors) {
    if (tensor.name == "norm.weight") BOOST_TEST(tensor.value.data<float>()[0] == 3.0f);
    if (tensor.name == "norm.running_mean") BOOST_TEST(tensor.value.data<float>()[0] == 6.0f);
  }
}

BOOST_FIXTURE_TEST_CASE(an_index_reads_the_files_that_it_names_and_one_of_them_names_the_index, OtherFiles) {
  model.set(7);
  const std::string index = folder.file("model.safetensors.index.json"),
                    shard = folder.file("model-00001-of-00002.safetensors");
  const auto write_index = [&](const std::string& text) {
    world.barrier();
    if (world.rank() == 0) write_bytes(index, text);
    world.barrier();
  };
  if (world.rank() == 0) {
    lc::Weights first, second;
    first.tensors = {{"norm.weight", model.weight.value}};
    second.tensors = {{"norm.running_mean", model.mean.value},
                      {"norm.num_batches_tracked", model.batches.value}};
    lc::write_weights(shard, first);
    lc::write_weights(folder.file("model-00002-of-00002.safetensors"), second);
  }
  const std::string one = "\"model-00001-of-00002.safetensors\"",
                    two = "\"model-00002-of-00002.safetensors\"";
  write_index("{\"metadata\": {}, \"weight_map\": {\"norm.weight\": " + one +
              ", \"norm.running_mean\": " + two + ", \"norm.num_batches_tracked\": " + two + "}}");
  model.set(0);
  const lc::LoadReport report = lc::load_weights(index, model, world);
  BOOST_TEST(report.notes.at(0).find("reads 3 tensors in 2 files") != std::string::npos);
  BOOST_TEST(model.weight.value.data<float>()[5] == 7.0f);
  BOOST_TEST(model.mean.value.data<float>()[1] == 8.0f);
  BOOST_TEST(*model.batches.value.data<std::int64_t>() == 9);

  BOOST_CHECK_EXCEPTION(
      lc::load_weights(shard, model, world), DataError,
      mentions("missing: norm.running_mean", "it is 1 of 2 files: give model.safetensors.index.json"));
  const auto refused = [&](const std::string& text, const char* why) {
    write_index(text);
    BOOST_CHECK_EXCEPTION(lc::load_weights(index, model, world), DataError, mentions("index.json", why));
  };
  refused("{\"weight_map\": {\"norm.weight\": \"../a.safetensors\"}}", "no file beside it");
  refused("{\"weight_map\": {\"norm.weight\": \"gone.safetensors\"}}", "which is not there");
  refused("{\"weight_map\": {\"norm.bias\": " + one + "}}", "lacks \"norm.bias\"");
  refused("{\"weight_map\": {\"norm.bias\": 3}}", "names no file");
  refused("[]", "no object weight_map");
  refused("{", "no object weight_map");
}

BOOST_FIXTURE_TEST_CASE(a_text_that_is_named_as_a_file_of_pytorch_is_called_none, OtherFiles) {
  if (world.rank() == 0) write_bytes(folder.file("a.pt"), "these are no weights\n");
  world.barrier();
  BOOST_CHECK_EXCEPTION(lc::load_weights(folder.file("a.pt"), model, world), DataError,
                        mentions("a.pt: is not a PyTorch file"));
}

BOOST_FIXTURE_TEST_CASE(safetensors_load_at_any_number_of_ranks_by_stripped_names, Files) {
  model.set(3);
  if (world.rank() == 0) {
    lc::Weights weights;
    const std::string prefix = "module._orig_mod.module.";
    weights.tensors = {{prefix + "norm.weight", model.weight.value},
                       {prefix + "norm.running_mean", model.mean.value},
                       {"norm.num_batches_tracked", model.batches.value}};
    weights.position.step = 77;
    lc::cast_floats(weights, DType::bfloat16);
    lc::write_weights(folder.file("a.safetensors"), weights);
  }
  world.barrier();
  model.set(0);
  const lc::LoadReport report = lc::load_weights(folder.file("a.safetensors"), model, world);
  BOOST_TEST(report.warnings.empty());
  BOOST_TEST(report.notes.empty());
  BOOST_TEST(report.index.position.step == 77);
  BOOST_TEST(model.weight.value.data<float>()[5] == 3.0f);
  BOOST_TEST(model.mean.value.data<float>()[1] == 4.0f);
  BOOST_TEST(*model.batches.value.data<std::int64_t>() == 5);
  world.barrier();
  if (world.rank() == 0) std::filesystem::resize_file(folder.file("a.safetensors"), 90);
  world.barrier();
  BOOST_CHECK_EXCEPTION(lc::load_weights(folder.file("a.safetensors"), model, world), DataError,
                        mentions("a.safetensors: claims a header"));
}

BOOST_FIXTURE_TEST_CASE(a_converted_checkpoint_of_16_bit_floats_loads_as_weights_and_as_a_checkpoint, Files) {
  model.set(3);
  lc::StateDict state_dict;
  lc::add(state_dict, model);
  if (world.rank() == 0) {
    lc::Weights weights;
    weights.tensors = state_dict.sections[0].tensors;
    lc::cast_floats(weights, DType::bfloat16);
    lc::write_weights(path, weights, true);
  }
  world.barrier();
  model.set(0);
  lc::load_weights(path, model, world);
  BOOST_TEST(model.mean.value.data<float>()[1] == 4.0f);
  model.set(0);
  BOOST_TEST(lc::load_file(path, state_dict, world).warnings.empty());
  BOOST_TEST(model.weight.value.data<float>()[5] == 3.0f);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
