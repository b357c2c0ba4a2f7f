// An operation that no source of Lockstep knows: what handles operations of any kind handles this one, too.
#include "kernels/profile.h"
#include "kernels/reference.h"
#include "lockstep/ops/elementwise.h"
#include "support/fake_device.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(own_operation)

using kernels::Backend;
using kernels::Computes;
using kernels::make_cpu_backend;

/// y = x^3 row by row, sums (+)= the sums of the columns of y.
struct Cube {
  static constexpr const char* name = "cube";
  Tensor x, y, sums;
  bool accumulate = false;

  static void operands(auto& op, auto&& each) {
    each(ops::in("x", op.x).by_row(), ops::out("y", op.y).by_row(),
         ops::in_out("sums", op.sums, ops::float32));
  }
  void check() const {
    if (!(y.shape() == x.shape()))
      throw UsageError("cube: y has shape {}, not {}", to_string(y.shape()), to_string(x.shape()));
  }
};

int calls = 0;

void cube(Backend&, const Cube& op) {
  ++calls;
  const std::int64_t rows = op.x.size(0), width = op.x.size(1);
  float* const sums = op.sums.data<float>();
  if (!op.accumulate) std::fill_n(sums, width, 0.0f);
  for (std::int64_t i = 0; i < rows * width; ++i) {
    const float x = op.x.data<float>()[i], y = x * x * x;
    op.y.data<float>()[i] = y;
    sums[i % width] += y;
  }
}

/// A function for one class of backends only.
class OtherDevice : public Backend {};
void of_the_cpu(OtherDevice&, const Cube&) {}

struct Fixture {
  Draw draw{171};
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Tensor x = draw.normal({9, 4}), y = Tensor::zeros({9, 4}), sums = Tensor::zeros({4});

  Tensor in_bf16(const Tensor& tensor) {
    const Tensor rounded = Tensor::empty(tensor.shape(), DType::bfloat16);
    backend->copy(tensor, rounded);
    return rounded;
  }
};

BOOST_FIXTURE_TEST_CASE(a_device_without_an_entry_refuses_it_by_name, Fixture) {
  BOOST_CHECK_EXCEPTION(backend->run(Cube{x, y, sums}), UsageError, [](const UsageError& error) {
    return std::string(error.what()).starts_with("cube is not built for cpu");
  });
}

BOOST_FIXTURE_TEST_CASE(its_operands_are_checked_before_it_is_called, Fixture) {
  backend->enter<&cube>();
  const auto refused = [&](const Cube& op, const std::string& text) {
    BOOST_CHECK_EXCEPTION(backend->run(op), UsageError,
                          [&](const UsageError& error) { return std::string(error.what()) == text; });
  };
  calls = 0;
  refused({{}, y, sums}, "cube: x is missing");
  refused({in_bf16(x), y, sums}, "cube: y is float32, but x is bfloat16");
  refused({x, y, in_bf16(sums)}, "cube: sums is bfloat16, not float32");
  refused({x, y.rows(0, 3), sums}, "cube: y has shape [3, 4], not [9, 4]");
  BOOST_TEST(calls == 0);
  backend->run(Cube{x, y, sums});
  BOOST_TEST(calls == 1);
}

BOOST_FIXTURE_TEST_CASE(a_float32_function_serves_bf16_on_rounded_copies, Fixture) {
  backend->enter<&cube>(Computes::in_float32);
  const Tensor rounded = in_bf16(x), floats = Tensor::empty(x.shape()),
               wanted = Tensor::empty(x.shape(), DType::bfloat16),
               got = Tensor::empty(x.shape(), DType::bfloat16), sums_of_floats = Tensor::zeros({4});
  backend->copy(rounded, floats);
  backend->run(Cube{floats, y, sums_of_floats});
  backend->copy(y, wanted);
  backend->run(Cube{rounded, got, sums});
  BOOST_TEST(same_bits(got, wanted));
  BOOST_TEST(same_bits(sums, sums_of_floats));
}

BOOST_FIXTURE_TEST_CASE(rows_that_are_computed_some_at_a_time_give_the_same_bits, Fixture) {
  backend->enter<&cube>(Computes::in_float32, 1);
  const Tensor many = in_bf16(draw.normal({40, 4096})), floats = Tensor::empty(many.shape()),
               cubes = Tensor::empty(many.shape()), wanted = Tensor::empty(many.shape(), DType::bfloat16),
               got = Tensor::empty(many.shape(), DType::bfloat16);
  const Tensor sums_at_once = draw.normal({4096}), sums_by_parts = draw.normal({4096});
  backend->copy(many, floats);
  backend->run(Cube{floats, cubes, sums_at_once});
  backend->copy(cubes, wanted);
  calls = 0;
  backend->run(Cube{many, got, sums_by_parts});
  BOOST_TEST(calls > 1);
  BOOST_TEST(same_bits(got, wanted));
  BOOST_TEST(same_bits(sums_by_parts, sums_at_once));
}

/// h += x, and the columns of a matrix become x: operands that are updated, or written in part.
struct Mixed {
  static constexpr const char* name = "mixed";
  Tensor x, scales;
  Tensor h;
  ops::Columns left, right;
  static void operands(auto& op, auto&& each) {
    each(ops::in("x", op.x), ops::in("scales", op.scales, ops::weights).optional(), ops::in_out("h", op.h),
         ops::out("left", op.left), ops::out("right", op.right));
  }
};

void mixed(Backend&, const Mixed& op) {
  const float factor = op.scales ? op.scales.data<float>()[0] : 1;
  for (std::int64_t i = 0; i < op.x.numel(); ++i) {
    const float x = factor * op.x.data<float>()[i];
    op.h.data<float>()[i] += x;
    op.left.matrix.data<float>()[i * op.left.matrix.size(2) + op.left.first] = x;
    op.right.matrix.data<float>()[i * op.right.matrix.size(2) + op.right.first] = -x;
  }
}

BOOST_FIXTURE_TEST_CASE(in_bf16_what_is_updated_or_written_in_part_keeps_the_rest, Fixture) {
  backend->enter<&mixed>(Computes::in_float32);
  const auto bf16 = [&](Shape shape, float value) {
    const Tensor tensor = Tensor::empty(shape, DType::bfloat16);
    backend->fill(tensor, value);
    return tensor;
  };
  const Tensor h = bf16({1, 3}, 10), matrix = bf16({1, 3, 3}, 7), floats = Tensor::empty({1, 3, 3}),
               sum = Tensor::empty({1, 3});
  backend->run(Mixed{bf16({1, 3}, 2), {}, h, {matrix, 0, 1}, {matrix, 2, 1}});
  backend->copy(h, sum);
  backend->copy(matrix, floats);
  for (int i = 0; i < 3; ++i) {
    BOOST_TEST(sum.data<float>()[i] == 12);
    BOOST_TEST(floats.data<float>()[3 * i] == 2);
    BOOST_TEST(floats.data<float>()[3 * i + 1] == 7);
    BOOST_TEST(floats.data<float>()[3 * i + 2] == -2);
  }
}

/// y = the sum of any number of tensors.
struct SumOfAll {
  static constexpr const char* name = "sum_of_all";
  std::span<const Tensor> terms;
  Tensor y;
  static void operands(auto& op, auto&& each) { each(ops::in("a term", op.terms), ops::out("y", op.y)); }
};

void sum_of_all(Backend&, const SumOfAll& op) {
  std::fill_n(op.y.data<float>(), op.y.numel(), 0.0f);
  for (const Tensor& term : op.terms)
    for (std::int64_t i = 0; i < op.y.numel(); ++i) op.y.data<float>()[i] += term.data<float>()[i];
}

BOOST_FIXTURE_TEST_CASE(an_operand_may_be_a_list_of_tensors, Fixture) {
  backend->enter<&sum_of_all>(Computes::in_float32);
  const std::vector<Tensor> floats = {x, x, x}, halves = {in_bf16(x), in_bf16(x), in_bf16(x)};
  const Tensor in_float32 = Tensor::empty(x.shape()), rounded = Tensor::empty(x.shape(), DType::bfloat16),
               widened = Tensor::empty(x.shape());
  backend->run(SumOfAll{floats, in_float32});
  BOOST_TEST(in_float32.data<float>()[5] == x.data<float>()[5] + x.data<float>()[5] + x.data<float>()[5]);
  backend->run(SumOfAll{halves, rounded});
  backend->copy(rounded, widened);
  BOOST_TEST(std::abs(widened.data<float>()[5] - in_float32.data<float>()[5]) <=
             0.02f * std::abs(in_float32.data<float>()[5]));
  const std::vector<Tensor> missing = {x, Tensor()};
  BOOST_CHECK_EXCEPTION(backend->run(SumOfAll{missing, in_float32}), UsageError, [](const UsageError& error) {
    return std::string(error.what()) == "sum_of_all: a term is missing";
  });
}

BOOST_FIXTURE_TEST_CASE(a_function_of_another_device_is_refused, Fixture) {
  BOOST_CHECK_THROW(make_fake_device()->enter<&of_the_cpu>(), UsageError);
}

BOOST_FIXTURE_TEST_CASE(a_device_whose_memory_is_its_own_takes_it, Fixture) {
  const auto fake = make_fake_device();
  cpu_of(*fake).enter<&cube>();
  const Tensor there = fake->empty(x.shape()), result = fake->empty(x.shape()), totals = fake->empty({4}),
               back = Tensor::zeros(x.shape());
  fake->copy(x, there);
  fake->run(Cube{there, result, totals});
  fake->copy(result, back);
  backend->enter<&cube>();
  backend->run(Cube{x, y, sums});
  BOOST_TEST(same_bits(back, y));
  BOOST_CHECK_EXCEPTION(fake->run(Cube{x, result, totals}), UsageError, [](const UsageError& error) {
    return std::string(error.what()) == "cube on cuda:0: x is on cpu";
  });
}

BOOST_FIXTURE_TEST_CASE(a_profile_has_its_name_and_bytes, Fixture) {
  backend->enter<&cube>();
  kernels::Profile profile;
  const kernels::Profiler profiler(*backend, profile);
  backend->run(Cube{x, y, sums, true});
  const auto operations = profile.operations();
  BOOST_TEST_REQUIRE(operations.size() == 1u);
  BOOST_TEST(operations[0].name == "cube");
  BOOST_TEST(operations[0].bytes == 4 * (36 + 36 + 2 * 4));  // the sums are read and written
}

/// y = 2 x: made of others.
struct Twice {
  static constexpr const char* name = "twice";
  Tensor x, y;
  static void operands(auto& op, auto&& each) { each(ops::in("x", op.x), ops::out("y", op.y)); }
};

void twice(Backend& backend, const Twice& op) { backend.run(ops::add(op.x, op.x, op.y)); }

BOOST_FIXTURE_TEST_CASE(what_is_made_of_others_is_one_operation_to_a_profile, Fixture) {
  backend->enter<&twice>();
  kernels::Profile profile;
  const kernels::Profiler profiler(*backend, profile);
  backend->run(Twice{x, y});
  BOOST_TEST(y.data<float>()[7] == 2 * x.data<float>()[7]);
  const auto operations = profile.operations();
  BOOST_TEST_REQUIRE(operations.size() == 1u);
  BOOST_TEST(operations[0].name == "twice");
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
