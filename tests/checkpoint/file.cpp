// A checkpoint file: the same whatever the number of ranks that write it, and read back bit by bit at any
// other.
#include <boost/test/unit_test.hpp>

#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/inspect.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(file, *ranks(1, 2, 3, 4))

namespace lc = checkpoint;

BOOST_FIXTURE_TEST_CASE(what_is_saved_comes_back_bit_by_bit, Sample) {
  lc::save_file(path, state_dict, world);
  const lc::StateDict loaded = awkward_state_dict();
  const lc::LoadReport report = lc::load_file(path, loaded, world);
  BOOST_TEST(same_bytes(state_dict, loaded));
  BOOST_TEST(report.warnings.empty());
  BOOST_TEST((report.index.position == state_dict.position));
  BOOST_TEST(report.index.config == state_dict.config);
  BOOST_TEST((report.index.provenance == state_dict.provenance));
  BOOST_TEST(report.index.world_size == world.size());
  BOOST_TEST(lc::verify(path, world).whole());
}

BOOST_FIXTURE_TEST_CASE(digests_do_not_depend_on_the_number_of_ranks, Sample) {
  lc::save_file(path, state_dict, world);
  const lc::FileIndex together = lc::read_index(path, world);
  const auto alone = world.split(world.rank(), 0);
  const std::string own = folder.file("alone" + std::to_string(world.rank()) + ".h5");
  lc::save_file(own, state_dict, *alone);
  const lc::FileIndex single = lc::read_index(own, *alone);
  BOOST_TEST(single.digest == together.digest);
  BOOST_REQUIRE(single.tensors.size() == together.tensors.size());
  for (std::size_t t = 0; t < single.tensors.size(); ++t) {
    BOOST_TEST(single.tensors[t].path() == together.tensors[t].path());
    BOOST_TEST(single.tensors[t].digest == together.tensors[t].digest);
    BOOST_TEST(single.tensors[t].offset == together.tensors[t].offset);
  }
}

BOOST_FIXTURE_TEST_CASE(a_file_is_read_at_any_other_number_of_ranks, Sample) {
  lc::save_file(path, state_dict, world);
  for (int readers = 1; readers <= world.size(); ++readers) {
    const auto part = world.split(world.rank() < readers ? 0 : 1, world.rank());
    const lc::StateDict loaded = awkward_state_dict();
    lc::load_file(path, loaded, *part);
    BOOST_TEST(same_bytes(state_dict, loaded));
    BOOST_TEST(lc::verify(path, *part).whole());
  }
}

BOOST_FIXTURE_TEST_CASE(attributes_are_restored_and_those_that_must_be_equal_are_compared, Sample) {
  lc::save_file(path, state_dict, world);
  lc::StateDict loaded = awkward_state_dict();
  std::int64_t updates = 0, steps = 0;
  loaded.sections[1].attributes[1].restore = [&](const lc::AttributeValue& value) {
    updates = std::get<std::int64_t>(value);
  };
  loaded.sections[2].attributes[1].restore = [&](const lc::AttributeValue& value) {
    steps = std::get<std::int64_t>(value);
  };
  lc::load_file(path, loaded, world);
  BOOST_TEST(updates == 41);
  BOOST_TEST(steps == 42);
  loaded.sections[2].attributes[0].value = std::string("sgd");
  BOOST_CHECK_EXCEPTION(lc::load_file(path, loaded, world), DataError,
                        mentions("a.h5", "algorithm", "adamw", "sgd"));
}

BOOST_FIXTURE_TEST_CASE(nothing_but_the_file_is_left_and_it_may_be_written_over, Sample) {
  lc::save_file(path, state_dict, world);
  fill(state_dict, 8);
  state_dict.position.step = 43;
  lc::save_file(path, state_dict, world);
  const lc::StateDict loaded = awkward_state_dict();
  BOOST_TEST(lc::load_file(path, loaded, world).index.position.step == 43);
  BOOST_TEST(same_bytes(state_dict, loaded));
  BOOST_TEST(names_in(folder.path()) == std::vector<std::string>{"a.h5"}, boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(no_tensors_at_all_are_a_checkpoint_too, Sample) {
  const lc::StateDict empty;
  lc::save_file(path, empty, world);
  BOOST_TEST(lc::load_file(path, empty, world).index.tensors.empty());
  BOOST_TEST(lc::verify(path, world).whole());
}

BOOST_FIXTURE_TEST_CASE(thousands_of_small_tensors_are_saved_and_found_again, Sample) {
  lc::StateDict many;
  many.sections.push_back({"model", {}, {}});
  for (int i = 0; i < 1000; ++i) {
    many.sections[0].tensors.push_back({"layer." + std::to_string(i) + ".weight", Tensor::zeros({16, 16})});
  }
  lc::StateDict loaded = with_own_memory(many);
  fill(many, 3);
  lc::save_file(path, many, world);
  lc::load_file(path, loaded, world);
  BOOST_TEST(same_bytes(many, loaded));
}

BOOST_FIXTURE_TEST_CASE(of_hundreds_of_names_that_do_not_fit_two_dozen_are_named_and_the_rest_counted,
                        Sample) {
  lc::save_file(path, state_dict, world);
  lc::StateDict other = awkward_state_dict();
  for (int i = 0; i < 300; ++i)
    other.sections[0].tensors.push_back({"layer." + std::to_string(i), Tensor::zeros({1})});
  const auto names_the_first = mentions("missing: model/layer.0, ", "model/layer.7 ... and 292 more");
  BOOST_CHECK_EXCEPTION(lc::load_file(path, other, world), DataError, [&](const DataError& error) {
    return names_the_first(error) && std::string(error.what()).find("layer.24") == std::string::npos;
  });
}

BOOST_FIXTURE_TEST_CASE(all_that_does_not_fit_is_listed_at_once_and_nothing_is_touched, Sample) {
  lc::save_file(path, state_dict, world);
  lc::StateDict other = awkward_state_dict();
  auto& model = other.sections[0].tensors;
  model[0].name = "blocks.9.extra";
  model[1].value = Tensor::zeros({3});
  model[5].value = Tensor::zeros({3, 333'333}, DType::bfloat16);
  other.sections[1].tensors.pop_back();
  other.sections[3].tensors[0].value = Tensor::zeros({5});
  const lc::StateDict before = with_own_memory(other);
  BOOST_CHECK_EXCEPTION(
      lc::load_file(path, other, world), DataError,
      mentions("missing: model/blocks.9.extra", "unexpected: model/blocks.0.one, ema/0.999/blocks.0.above",
               "model/blocks.0.below is [262143] in the file, [3] here",
               "optimizer/exp_avg/blocks.0.above is [524291] in the file, [5] here",
               "model/blocks.1.bytes is uint8 in the file, bfloat16 here"));
  BOOST_TEST(same_bytes(other, before));

  const lc::LoadReport partial = lc::load_file(path, other, world, {.strict = false});
  BOOST_TEST(partial.warnings.size() == 4u);
  BOOST_TEST(std::memcmp(model[2].value.raw(), state_dict.sections[0].tensors[2].value.raw(),
                         model[2].value.bytes()) == 0);
  BOOST_TEST(*model[1].value.data<float>() == 0.0f);
}

BOOST_FIXTURE_TEST_CASE(prefixes_of_wrappers_are_stripped_in_front_only_and_may_not_collide, Sample) {
  lc::StateDict wrapped;
  wrapped.sections.push_back({"model", {{"module._orig_mod.module.a.module.w", Tensor::zeros({3})}}, {}});
  fill(wrapped, 1);
  lc::save_file(path, wrapped, world);
  lc::StateDict plain;
  plain.sections.push_back({"model", {{"a.module.w", Tensor::zeros({3})}}, {}});
  lc::load_file(path, plain, world);
  BOOST_TEST(same_bytes(wrapped, plain));
  wrapped.sections[0].tensors.push_back({"a.module.w", Tensor::zeros({3})});
  lc::save_file(path, wrapped, world);
  BOOST_CHECK_EXCEPTION(lc::load_file(path, plain, world), DataError,
                        mentions("module._orig_mod.module.a.module.w and model/a.module.w"));
}

BOOST_FIXTURE_TEST_CASE(sections_that_the_file_lacks_begin_anew_and_are_named, Sample) {
  lc::StateDict weights = state_dict;
  weights.sections.resize(1);
  lc::save_file(path, weights, world);
  lc::StateDict loaded = awkward_state_dict();
  fill(loaded, 99);
  const lc::LoadReport report = lc::load_file(path, loaded, world);
  BOOST_TEST(report.warnings.size() == 3u);
  BOOST_TEST(report.warnings[0].find("no /ema/0.999: it starts from the weights loaded") !=
             std::string::npos);
  BOOST_TEST(report.warnings[2].find("no /optimizer/exp_avg: it starts from zero") != std::string::npos);
  const auto& ema = loaded.sections[1].tensors[0].value;
  BOOST_TEST(std::memcmp(ema.raw(), state_dict.sections[0].tensors[7].value.raw(), ema.bytes()) == 0);
  BOOST_TEST(loaded.sections[3].tensors[0].value.data<float>()[524290] == 0.0f);

  lc::StateDict no_model = awkward_state_dict();
  no_model.sections.erase(no_model.sections.begin());
  lc::save_file(path, no_model, world);
  BOOST_CHECK_EXCEPTION(lc::load_file(path, loaded, world), DataError,
                        mentions("missing: model/blocks.0.one, model/blocks.0.below"));
}

BOOST_FIXTURE_TEST_CASE(sections_that_nobody_loads_are_named, Sample) {
  lc::save_file(path, state_dict, world);
  lc::StateDict weights = awkward_state_dict();
  weights.sections.resize(1);
  const lc::LoadReport report = lc::load_file(path, weights, world);
  BOOST_REQUIRE(report.warnings.size() == 1u);
  BOOST_TEST(contains(report.warnings[0],
                      "holds /ema/0.999, /optimizer, /optimizer/exp_avg, which this program does not load"),
             report.warnings[0]);
  BOOST_TEST(same_bytes(weights, state_dict));
}

BOOST_FIXTURE_TEST_CASE(ranks_that_hold_different_things_do_not_save, Sample) {
  if (world.size() == 1) return;
  if (world.rank() == world.size() - 1) state_dict.sections[0].tensors[0].value = Tensor::zeros({2});
  BOOST_CHECK_EXCEPTION(lc::save_file(path, state_dict, world), UsageError,
                        mentions("on rank 0, but", "on rank " + std::to_string(world.size() - 1),
                                 "/model/blocks.0.one", "[1]", "[2]"));
  BOOST_TEST(names_in(folder.path()).empty());
}

BOOST_FIXTURE_TEST_CASE(what_a_file_cannot_hold_is_refused_by_name, Sample) {
  const auto refused = [&](const char* name, const char* section, const char* text) {
    lc::StateDict bad;
    bad.sections.push_back({section, {{name, Tensor::zeros({1})}}, {}});
    BOOST_CHECK_EXCEPTION(lc::save_file(path, bad, world), UsageError, mentions(text));
  };
  refused("a/b", "model", "\"a/b\"");
  refused("", "model", "\"\"");
  refused("a\nb", "model", "\"a\\nb\"");
  refused(".", "model", "\".\"");
  refused("a", "config", "\"config\"");
  refused("a", "ema//x", "\"ema//x\"");
  lc::StateDict twice;
  twice.sections.push_back({"model", {{"a", Tensor::zeros({1})}, {"a", Tensor::zeros({1})}}, {}});
  BOOST_CHECK_EXCEPTION(lc::save_file(path, twice, world), UsageError, mentions("/model/a"));
  BOOST_TEST(names_in(folder.path()).empty());
}

BOOST_FIXTURE_TEST_CASE(a_place_that_cannot_be_written_is_the_same_error_on_all_ranks, Sample) {
  BOOST_CHECK_EXCEPTION(lc::save_file(folder.file("none/a.h5"), state_dict, world), DataError,
                        mentions("none/.a.h5.tmp"));
  if (world.rank() == 0) write_bytes(folder.file("plain"), "x");
  world.barrier();
  BOOST_CHECK_EXCEPTION(lc::save_file(folder.file("plain/a.h5"), state_dict, world), UsageError,
                        mentions("plain/.a.h5.tmp"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
