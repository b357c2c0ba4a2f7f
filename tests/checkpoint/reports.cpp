// diff and inspect: what they find, as data, JSON and text.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/inspect.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(reports)

namespace lc = checkpoint;
using Kind = lc::TensorDifference::Kind;

struct TwoFiles {
  std::unique_ptr<comm::HostGroup> self = comm::make_self_communicator();
  TemporaryFolder folder;
  std::string a = folder.file("a.h5"), b = folder.file("b.h5");
  lc::StateDict left = sample(), right = sample();

  static lc::StateDict sample() {
    lc::StateDict state_dict;
    state_dict.sections.push_back({"model",
                                   {{"w", Tensor::zeros({2, 300'000})},
                                    {"b", Tensor::zeros({4})},
                                    {"n", Tensor::zeros({}, DType::int64)}},
                                   {}});
    state_dict.sections.push_back({"optimizer", {}, {{"step", std::int64_t{3}, {}}}});
    return state_dict;
  }
  float* w() { return right.sections[0].tensors[0].value.data<float>(); }
  lc::DiffReport diff(double tolerance = 0) {
    lc::save_file(a, left, *self, {.allow_non_finite = true});
    lc::save_file(b, right, *self, {.allow_non_finite = true});
    return lc::diff(a, b, tolerance);
  }
};

BOOST_FIXTURE_TEST_CASE(equal_contents_are_the_same_whoever_wrote_them, TwoFiles) {
  right.provenance = {{"hosts", "elsewhere"}};
  right.config = "[log]\nevery = 5\n";
  const lc::DiffReport report = diff();
  BOOST_TEST(report.same());
  BOOST_TEST(report.tensors == 3);
  BOOST_TEST(report.elements == 600'005);
  BOOST_TEST(lc::to_text(report) == "same: 3 tensors, 600005 elements, every bit\n");
}

BOOST_FIXTURE_TEST_CASE(differing_elements_are_counted_and_measured_against_the_tolerance, TwoFiles) {
  w()[0] = 0.25f;
  w()[599'999] = -0.5f;
  *right.sections[0].tensors[2].value.data<std::int64_t>() = 7;
  lc::DiffReport report = diff();
  BOOST_REQUIRE(report.differences.size() == 2u);
  BOOST_TEST(report.differences[0].path == "/model/w");
  BOOST_TEST(report.differences[0].different == 2);
  BOOST_TEST(report.differences[0].max_abs == 0.5);
  BOOST_TEST(report.differences[1].max_abs == 7.0);
  report = diff(0.3);
  BOOST_TEST(report.differences[0].different == 1);
  report = diff(7);
  BOOST_TEST(report.same());
}

BOOST_FIXTURE_TEST_CASE(without_a_tolerance_bits_are_compared, TwoFiles) {
  w()[3] = -0.0f;
  const lc::DiffReport report = diff();
  BOOST_REQUIRE(report.differences.size() == 1u);
  BOOST_TEST(report.differences[0].different == 1);
  BOOST_TEST(report.differences[0].max_abs == 0.0);
  BOOST_TEST(diff(1e-30).same());
}

BOOST_FIXTURE_TEST_CASE(a_number_against_nan_or_infinity_is_infinitely_far_and_nan_against_nan_is_the_same,
                        TwoFiles) {
  w()[1] = std::numeric_limits<float>::quiet_NaN();
  const lc::DiffReport report = diff(1e30);
  BOOST_REQUIRE(report.differences.size() == 1u);
  BOOST_TEST(std::isinf(report.differences[0].max_abs));
  BOOST_TEST(lc::to_json(report)["differences"][0]["max_abs"].is_null());
  left.sections[0].tensors[0].value.data<float>()[1] = -std::numeric_limits<float>::quiet_NaN();
  BOOST_TEST(diff(1).same());
  BOOST_TEST(!diff().same());
}

BOOST_FIXTURE_TEST_CASE(missing_tensors_shapes_types_and_attributes_are_told_apart, TwoFiles) {
  left.sections[0].tensors.push_back({"only_left", Tensor::zeros({1})});
  right.sections[0].tensors.push_back({"only_right", Tensor::zeros({1})});
  right.sections[0].tensors[1].value = Tensor::zeros({2, 2});
  right.sections[0].tensors[2].value = Tensor::zeros({}, DType::int32);
  right.sections[1].attributes[0].value = std::int64_t{4};
  right.position.seed = 5;
  const lc::DiffReport report = diff();
  BOOST_REQUIRE(report.differences.size() == 4u);
  BOOST_TEST((report.differences[0].kind == Kind::shape));
  BOOST_TEST((report.differences[1].kind == Kind::dtype));
  BOOST_TEST((report.differences[2].kind == Kind::only_in_a));
  BOOST_TEST((report.differences[3].kind == Kind::only_in_b));
  BOOST_REQUIRE(report.attributes.size() == 2u);
  BOOST_TEST(report.attributes[0].name == "/optimizer step");
  BOOST_TEST(report.attributes[1].name == "seed");
  const nlohmann::json json = lc::to_json(report);
  BOOST_TEST(json["same"] == false);
  BOOST_TEST(json["differences"][3]["tensor"] == "/model/only_right");
  BOOST_TEST(json["attributes"][1]["b"] == "5");
  const std::string text = lc::to_text(report);
  for (const char* line :
       {"seed: 0 against 5\n", "/model/b: shape [4] against [2, 2]\n", "/model/n: int64 against int32\n"}) {
    BOOST_TEST(text.find(line) != std::string::npos);
  }
}

BOOST_FIXTURE_TEST_CASE(inspect_shows_norm_range_and_what_is_not_finite, TwoFiles) {
  w()[0] = 3;
  w()[599'999] = -4;
  w()[7] = std::numeric_limits<float>::infinity();
  right.sections[0].tensors.push_back({"empty", Tensor::zeros({0})});
  diff();
  const lc::Inspection inspection = lc::inspect(b);
  BOOST_REQUIRE(inspection.tensors.size() == 4u);
  BOOST_TEST(inspection.tensors[0].norm == 5.0);
  BOOST_TEST(inspection.tensors[0].min == -4.0);
  BOOST_TEST(inspection.tensors[0].max == 3.0);
  BOOST_TEST(inspection.tensors[0].not_finite == 1);
  BOOST_TEST(inspection.tensors[3].norm == 0.0);
  BOOST_TEST(inspection.tensors[3].min == 0.0);
  const nlohmann::json json = lc::to_json(inspection);
  BOOST_TEST(json["tensors"][0]["shape"] == nlohmann::json({2, 300'000}));
  BOOST_TEST(json["tensors"][0]["norm"] == 5.0);
  BOOST_TEST(json["groups"][1]["attributes"]["step"] == 3);
  BOOST_TEST(
      lc::to_text(inspection)
          .find("/model/w      [2, 300000]  float32             5           -4            3           1\n") !=
      std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(what_the_writer_did_not_know_is_left_out_and_null_in_json, TwoFiles) {
  left.position = {.step = 20};
  right.position = {20, 3, 1280, 4, 7};
  diff();
  const lc::Inspection unknown = lc::inspect(a), known = lc::inspect(b);
  BOOST_TEST(lc::to_text(unknown).find("step 20; written by 1 rank at") != std::string::npos);
  BOOST_TEST(lc::to_text(known).find("step 20, epoch 3, samples 1280, shards 4, seed 7; written by") !=
             std::string::npos);
  for (const char* key : {"epoch", "samples", "shards", "seed"}) {
    BOOST_TEST(lc::to_json(unknown)[key].is_null());
    BOOST_TEST(lc::to_json(known)[key].is_number());
  }
}

BOOST_AUTO_TEST_CASE(one_thing_is_not_several) {
  lc::VerifyReport report{.path = "a.h5", .problems = {}, .step = 1, .tensors = 1, .payload_bytes = 1};
  BOOST_TEST(lc::to_text(report) == "a.h5: complete: step 1, 1 tensor, 1 byte, all digests right\n");
  report.tensors = 2, report.payload_bytes = 0;
  BOOST_TEST(lc::to_text(report) == "a.h5: complete: step 1, 2 tensors, 0 bytes, all digests right\n");
}

BOOST_FIXTURE_TEST_CASE(two_dozen_differing_tensors_are_named_and_the_rest_counted, TwoFiles) {
  for (int i = 0; i < 30; ++i)
    left.sections[0].tensors.push_back({fmt::format("t{}", i), Tensor::zeros({1})});
  const lc::DiffReport report = diff();
  const std::string text = lc::to_text(report);
  BOOST_TEST(text.find("/model/t23: only in the first") != std::string::npos);
  BOOST_TEST(text.find("/model/t24") == std::string::npos);
  BOOST_TEST(text.ends_with("... and 6 more tensors; all are in the JSON report\n"));
  BOOST_TEST(lc::to_json(report)["differences"].size() == 30u);
}

BOOST_FIXTURE_TEST_CASE(a_negative_tolerance_is_refused, TwoFiles) {
  BOOST_CHECK_THROW(diff(-1), UsageError);
  BOOST_CHECK_THROW(diff(std::nan("")), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
