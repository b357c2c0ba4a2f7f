// No save keeps numbers that are not finite, in whatever a checkpoint holds, unless it is told to.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/checkpoint/store.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(finite, *ranks(1, 3))

namespace lc = checkpoint;

struct FiniteSample : Sample {
  float* last_of(std::size_t section, std::size_t tensor) {
    const Tensor& value = state_dict.sections.at(section).tensors.at(tensor).value;
    return value.data<float>() + value.numel() - 1;
  }
};

BOOST_FIXTURE_TEST_CASE(
    a_save_of_a_number_that_is_not_finite_names_the_tensor_on_every_rank_and_leaves_nothing, FiniteSample) {
  const struct {
    std::size_t section, tensor;
    float value;
    const char* name;
  } cases[] = {{0, 0, NAN, "/model/blocks.0.one"},
               {0, 3, HUGE_VALF, "/model/blocks.0.above"},
               {1, 0, -HUGE_VALF, "/ema/0.999/head.weight"},
               {3, 0, -NAN, "/optimizer/exp_avg/blocks.0.above"}};
  for (const auto& one : cases) {
    float* const number = last_of(one.section, one.tensor);
    const float before = std::exchange(*number, one.value);
    BOOST_CHECK_EXCEPTION(
        lc::save_file(path, state_dict, world), TrainingError,
        mentions("a.h5: not saved: ", std::string(one.name) + " has numbers that are not finite"));
    *number = before;
    world.barrier();
    BOOST_TEST(names_in(folder.path()).empty());
    world.barrier();
  }
}

BOOST_FIXTURE_TEST_CASE(of_several_tensors_the_first_of_the_file_is_named_at_any_number_of_ranks,
                        FiniteSample) {
  *last_of(3, 0) = *last_of(1, 1) = *last_of(0, 2) = NAN;
  BOOST_CHECK_EXCEPTION(lc::save_file(path, state_dict, world), TrainingError,
                        mentions("/model/blocks.0.exact has numbers"));
}

BOOST_FIXTURE_TEST_CASE(a_refused_save_keeps_the_file_that_is_there, FiniteSample) {
  lc::save_file(path, state_dict, world);
  const std::string before = read_bytes(path);
  *last_of(0, 1) = NAN;
  BOOST_CHECK_THROW(lc::save_file(path, state_dict, world), TrainingError);
  BOOST_TEST((read_bytes(path) == before));
}

BOOST_FIXTURE_TEST_CASE(who_asks_for_it_saves_them_all_the_same, FiniteSample) {
  *last_of(0, 1) = NAN;
  lc::save_file(path, state_dict, world, {.allow_non_finite = true});
  BOOST_TEST(lc::verify(path, world).whole());
}

/// The bits of one element.
template <class Word>
lc::StateDict holding(DType dtype, Word bits) {
  lc::StateDict state_dict;
  const Tensor tensor = Tensor::zeros({100}, dtype);
  std::memcpy(static_cast<std::byte*>(tensor.raw()) + 41 * sizeof bits, &bits, sizeof bits);
  state_dict.sections.push_back({"model", {{"values", tensor}}, {}});
  return state_dict;
}

BOOST_FIXTURE_TEST_CASE(every_floating_type_is_looked_at_and_no_integer_is, FiniteSample) {
  const lc::StateDict refused[] = {holding<std::uint32_t>(DType::float32, 0x7f80'0000),
                                   holding<std::uint32_t>(DType::float32, 0xff80'0001),
                                   holding<std::uint16_t>(DType::bfloat16, 0x7f80),
                                   holding<std::uint16_t>(DType::bfloat16, 0xffff),
                                   holding<std::uint16_t>(DType::float16, 0x7c00),
                                   holding<std::uint16_t>(DType::float16, 0xfe00),
                                   holding<std::uint64_t>(DType::float64, 0x7ff0'0000'0000'0000),
                                   holding<std::uint64_t>(DType::float64, 0xfff0'0000'0000'0001)};
  for (const lc::StateDict& one : refused) BOOST_CHECK_THROW(lc::save_file(path, one, world), TrainingError);
  const lc::StateDict taken[] = {holding<std::uint32_t>(DType::float32, 0x7f7f'ffff),
                                 holding<std::uint16_t>(DType::bfloat16, 0xff7f),
                                 holding<std::uint16_t>(DType::float16, 0x7bff),
                                 holding<std::uint64_t>(DType::float64, 0x7fef'ffff'ffff'ffff),
                                 holding<std::uint64_t>(DType::int64, ~std::uint64_t{0}),
                                 holding<std::uint32_t>(DType::int32, 0x7f80'0000),
                                 holding<std::uint8_t>(DType::uint8, 0xff)};
  for (const lc::StateDict& one : taken) BOOST_CHECK_NO_THROW(lc::save_file(path, one, world));
}

BOOST_FIXTURE_TEST_CASE(a_run_keeps_its_last_finite_checkpoint_and_can_save_again, FiniteSample) {
  for (const bool async : {false, true}) {
    lc::Store store(folder.file(async ? "async" : "waited"), world, {.async = async});
    store.save_state_dict(1, state_dict);
    store.finish();
    float* const number = last_of(0, 1);
    const float before = std::exchange(*number, HUGE_VALF);
    BOOST_CHECK_EXCEPTION(
        {
          store.save_state_dict(2, state_dict);
          store.finish();
        },
        TrainingError, mentions("step-000000002.h5: not saved: /model/blocks.0.below"));
    world.barrier();
    const std::vector<std::string> expected{"latest", "step-000000001.h5"};
    BOOST_TEST((names_in(store.directory()) == expected));
    world.barrier();
    *number = before;
    store.save_state_dict(3, state_dict);
    store.finish();
    world.barrier();
    BOOST_TEST(std::filesystem::read_symlink(store.directory() + "/latest") == "step-000000003.h5");
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
