// Collectives for programs: values, bits, and one error for all ranks, in CPU memory and on a device.
#include "lockstep/ddp/collectives.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "comm/sums.h"
#include "ddp/training.h"
#include "support/context.h"
#include "support/fake_device.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(collectives, *ranks(1, 2, 3, 4))

using Json = nlohmann::json;

constexpr std::array all_dtypes{DType::float32, DType::float64, DType::bfloat16, DType::float16,
                                DType::int64,   DType::int32,   DType::int16,    DType::int8,
                                DType::uint64,  DType::uint32,  DType::uint16,   DType::uint8};

int rank() { return world().rank(); }
int size() { return world().size(); }

template <class T>
Tensor tensor_of(const Shape& shape, const std::function<T(std::int64_t)>& value) {
  Tensor tensor = Tensor::empty(shape, dtype_of<T>);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.data<T>()[i] = value(i);
  return tensor;
}

/// Bytes that depend on rank and element.
Tensor any_bytes(const Shape& shape, DType dtype, int of_rank) {
  Tensor tensor = Tensor::empty(shape, dtype);
  auto* const bytes = static_cast<unsigned char*>(tensor.raw());
  for (std::size_t i = 0; i < tensor.bytes(); ++i)
    bytes[i] = static_cast<unsigned char>(31 * static_cast<std::size_t>(of_rank) + 7 * i + 1);
  return tensor;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.numel() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

/// A context of the CPU, and one whose tensors are on a device.
struct Places {
  Places() {
    auto device = make_fake_device();
    auto transport = make_fake_transport(world(), *device);
    contexts[1] = std::make_unique<TestContext>(std::move(device), std::move(transport));
  }
  /// check(context, to the device of the context, back from it)
  template <class Check>
  void each(const Check& check) {
    for (const auto& context : contexts) {
      BOOST_TEST_CONTEXT("on " << to_string(context->backend().device())) {
        check(
            *context, [&](const Tensor& tensor) { return kernels::on_device(tensor, context->backend()); },
            [&](const Tensor& tensor) { return kernels::on_cpu(tensor, &context->backend()); });
      }
    }
  }
  std::array<std::unique_ptr<TestContext>, 2> contexts{std::make_unique<TestContext>(), nullptr};
};

template <class T>
void check_float_sums(std::int64_t elements) {
  Places().each([&](Context& context, const auto& there, const auto& here) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean}) {
      const Tensor mine =
          there(tensor_of<T>({elements}, [](std::int64_t i) { return value_of<T>(5, rank(), i); }));
      all_reduce(context, mine, op);
      const Tensor wanted = tensor_of<T>({elements}, [&](std::int64_t i) {
        const T sum = serial_sum<T>(5, {0, size()}, i);
        return op == ReduceOp::mean ? sum / static_cast<T>(size()) : sum;
      });
      BOOST_TEST(same(here(mine), wanted));
    }
  });
}

BOOST_AUTO_TEST_CASE(sums_and_means_of_floats_follow_the_tree_over_ranks) {
  check_float_sums<float>(1001);
  check_float_sums<double>(77);
}

BOOST_AUTO_TEST_CASE(a_sum_of_several_pieces_has_the_same_bits) { check_float_sums<float>(2'500'001); }

BOOST_AUTO_TEST_CASE(sixteen_bit_floats_are_summed_in_float32_and_rounded_once) {
  Places().each([&](Context& context, const auto& there, const auto& here) {
    const Tensor bf16 = there(tensor_of<BFloat16>(
        {99}, [](std::int64_t i) { return BFloat16{bfloat16_bits(value_of<float>(1, rank(), i))}; }));
    all_reduce(context, bf16);
    const Tensor wanted = tensor_of<BFloat16>({99}, [](std::int64_t i) {
      return BFloat16{bfloat16_bits(comm::fold_tree(
          {0, size()},
          [&](int shard) { return from_bfloat16_bits(bfloat16_bits(value_of<float>(1, shard, i))); },
          [](float a, float b) { return a + b; }))};
    });
    BOOST_TEST(same(here(bf16), wanted));
    const Tensor fp16 = there(tensor_of<Float16>(
        {3}, [](std::int64_t i) { return Float16{float16_bits(static_cast<float>(i + rank()))}; }));
    all_reduce(context, fp16, ReduceOp::mean);
    BOOST_TEST(same(here(fp16), tensor_of<Float16>({3}, [](std::int64_t i) {
                      return Float16{
                          float16_bits(static_cast<float>(i) + static_cast<float>(size() - 1) / 2)};
                    })));
  });
}

template <class T>
void check_integers() {
  Places().each([&](Context& context, const auto& there, const auto& here) {
    const auto value = [](int of, std::int64_t i) { return static_cast<T>(100 * of + 37 * i - 20); };
    const auto reduced = [&](ReduceOp op) {
      const Tensor mine = there(tensor_of<T>({2, 9}, [&](std::int64_t i) { return value(rank(), i); }));
      all_reduce(context, mine, op);
      return here(mine);
    };
    const auto folded = [&](const auto& combine) {
      return tensor_of<T>({2, 9}, [&](std::int64_t i) {
        T all = value(0, i);
        for (int other = 1; other < size(); ++other) all = static_cast<T>(combine(all, value(other, i)));
        return all;
      });
    };
    BOOST_TEST(same(reduced(ReduceOp::sum), folded([](T a, T b) {
                      return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
                    })));
    BOOST_TEST(same(reduced(ReduceOp::min), folded([](T a, T b) { return std::min(a, b); })));
    BOOST_TEST(same(reduced(ReduceOp::max), folded([](T a, T b) { return std::max(a, b); })));
  });
}

BOOST_AUTO_TEST_CASE(integers_are_exact_and_wrap_around) {
  check_integers<std::int64_t>();
  check_integers<std::int32_t>();
  check_integers<std::int16_t>();
  check_integers<std::int8_t>();
  check_integers<std::uint64_t>();
  check_integers<std::uint32_t>();
  check_integers<std::uint16_t>();
  check_integers<std::uint8_t>();
}

BOOST_AUTO_TEST_CASE(nan_wins_in_minima_and_maxima) {
  Places().each([&](Context& context, const auto& there, const auto& here) {
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      const Tensor mine = there(tensor_of<float>({static_cast<std::int64_t>(size()) + 1}, [](std::int64_t i) {
        return i == rank() ? std::nanf("") : static_cast<float>(rank());
      }));
      all_reduce(context, mine, op);
      const Tensor found = here(mine);
      for (int i = 0; i < size(); ++i) BOOST_TEST(std::isnan(found.data<float>()[i]));
      BOOST_TEST(found.data<float>()[size()] ==
                 (op == ReduceOp::min ? 0.0f : static_cast<float>(size() - 1)));
    }
  });
}

BOOST_AUTO_TEST_CASE(a_number_is_reduced_in_float64) {
  TestContext context;
  BOOST_TEST(all_reduce(context, 1.0 + rank()) == size() * (size() + 1) / 2.0);
  BOOST_TEST(all_reduce(context, 1.0 + rank(), ReduceOp::mean) == (size() + 1) / 2.0);
  BOOST_TEST(all_reduce(context, 1.0 + rank(), ReduceOp::max) == size());
}

BOOST_AUTO_TEST_CASE(a_reduce_changes_the_tensor_of_its_root_alone) {
  Places().each([&](Context& context, const auto& there, const auto& here) {
    for (int root = 0; root < size(); ++root) {
      const Tensor mine = there(tensor_of<float>({5}, [](std::int64_t i) { return float(i + rank()); }));
      reduce(context, mine, root);
      const float sums = rank() == root ? static_cast<float>(size()) : 1;
      const float rest = rank() == root ? static_cast<float>(size() * (size() - 1) / 2) : float(rank());
      BOOST_TEST(
          same(here(mine), tensor_of<float>({5}, [&](std::int64_t i) { return sums * float(i) + rest; })));
    }
  });
}

BOOST_AUTO_TEST_CASE(a_broadcast_gives_the_roots_bytes) {
  Places().each([&](Context& context, const auto& there, const auto& here) {
    for (const DType dtype : all_dtypes) {
      for (int root = 0; root < size(); ++root) {
        const Tensor mine = there(any_bytes({3, 2}, dtype, rank()));
        broadcast(context, mine, root);
        BOOST_TEST(same(here(mine), any_bytes({3, 2}, dtype, root)));
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(a_scatter_shares_out_the_roots_rows_in_rank_order) {
  Places().each([&](Context& context, const auto& there, const auto& here) {
    for (const DType dtype : all_dtypes) {
      for (int root = 0; root < size(); ++root) {
        const Tensor whole = any_bytes({3 * size(), 2}, dtype, 9);
        const Tensor mine = scatter(context, rank() == root ? there(whole) : Tensor(), root);
        BOOST_TEST(to_string(mine.device()) == to_string(context.backend().device()));
        BOOST_TEST(same(here(mine), whole.rows(3 * rank(), 3 * rank() + 3)));
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(a_scatter_of_several_pieces_gives_the_same) {
  TestContext context;
  const Tensor whole = any_bytes({size(), 3'000'001}, DType::float32, 3);
  const Tensor mine = scatter(context, rank() == 0 ? whole : Tensor());
  BOOST_TEST(same(mine, whole.rows(rank(), rank() + 1)));
}

/// Rank r has this many rows; rank 1 none.
std::int64_t rows_of(int of_rank) { return of_rank == 1 ? 0 : 2 + of_rank; }

BOOST_AUTO_TEST_CASE(gathers_join_rows_in_rank_order_though_ranks_have_different_numbers_of_them) {
  Places().each([&](Context& context, const auto& there, const auto& here) {
    for (const DType dtype : all_dtypes) {
      std::vector<Tensor> parts;
      std::int64_t rows = 0;
      for (int other = 0; other < size(); ++other) {
        parts.push_back(any_bytes({rows_of(other), 3}, dtype, other));
        rows += rows_of(other);
      }
      const Tensor wanted = Tensor::empty({rows, 3}, dtype);
      for (auto* to = static_cast<std::byte*>(wanted.raw()); const Tensor& part : parts) {
        std::memcpy(to, part.raw(), part.bytes());
        to += part.bytes();
      }
      const Tensor mine = there(parts[static_cast<std::size_t>(rank())]);
      BOOST_TEST(same(here(all_gather(context, mine)), wanted));
      for (int root = 0; root < size(); ++root) {
        const Tensor found = gather(context, mine, root);
        BOOST_TEST(bool(found) == (rank() == root));
        if (rank() == root) BOOST_TEST(same(here(found), wanted));
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(a_gather_of_several_pieces_gives_the_same) {
  TestContext context;
  const Tensor mine =
      any_bytes({1, 2'500'001 + rank()}, DType::float32, rank()).reshape({2'500'001 + rank()});
  const Tensor wanted = all_gather(context, mine), found = gather(context, mine, size() - 1);
  if (rank() == size() - 1) BOOST_TEST(same(found, wanted));
}

BOOST_AUTO_TEST_CASE(scalars_are_gathered_as_rows) {
  TestContext context;
  const Tensor all =
      all_gather(context, tensor_of<std::int64_t>({}, [](std::int64_t) { return 10 + rank(); }));
  BOOST_TEST(same(all, tensor_of<std::int64_t>({size()}, [](std::int64_t i) { return 10 + i; })));
}

BOOST_AUTO_TEST_CASE(tensors_without_elements_are_no_special_case) {
  TestContext context;
  const Tensor empty = Tensor::empty({0, 4});
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max})
    all_reduce(context, empty, op);
  reduce(context, empty);
  broadcast(context, empty);
  BOOST_TEST((scatter(context, empty).shape() == Shape{0, 4}));
  BOOST_TEST((all_gather(context, empty).shape() == Shape{0, 4}));
  const Tensor gathered = gather(context, empty);
  if (rank() == 0) BOOST_TEST((gathered.shape() == Shape{0, 4}));
}

BOOST_AUTO_TEST_CASE(json_values_arrive_as_they_are) {
  TestContext context;
  const auto value = [](int of) {
    return Json{{"rank", of}, {"loss", 0.1 * of}, {"text", std::string(static_cast<std::size_t>(of), 'x')}};
  };
  for (int root = 0; root < size(); ++root) {
    BOOST_TEST(broadcast(context, value(rank()), root) == value(root));
    std::vector<Json> all;
    for (int other = 0; other < size(); ++other) all.push_back(value(other));
    BOOST_TEST(scatter(context, rank() == root ? all : std::vector<Json>(), root) == value(rank()));
    BOOST_TEST((gather(context, value(rank()), root) == (rank() == root ? all : std::vector<Json>())));
    BOOST_TEST((all_gather(context, value(rank())) == all));
  }
  const Json odd = {std::numeric_limits<double>::infinity(), std::nan("")};
  const Json found = broadcast(context, odd);
  BOOST_TEST(std::isinf(found[0].get<double>()));
  BOOST_TEST(std::isnan(found[1].get<double>()));
}

BOOST_AUTO_TEST_CASE(a_barrier_returns) {
  TestContext context;
  barrier(context);
}

/// The last rank calls `other`, the rest `usual`.
std::string error_of(const std::function<void(Context&)>& usual, const std::function<void(Context&)>& other) {
  TestContext context;
  return same_error(ExitCode::usage, [&] { (rank() + 1 == size() ? other : usual)(context); });
}

BOOST_AUTO_TEST_CASE(ranks_that_call_differently_get_one_error_that_shows_both_calls) {
  if (size() == 1) return;
  const auto sum = [](const Shape& shape, DType dtype = DType::float32) {
    return [=](Context& context) { all_reduce(context, Tensor::zeros(shape, dtype)); };
  };
  const std::string last = "rank " + std::to_string(size() - 1);
  const auto check = [&](const auto& usual, const auto& other, const std::string& first,
                         const std::string& second) {
    const std::string text = error_of(usual, other);
    BOOST_TEST(contains(text, "rank 0 calls " + first + ", but " + last + " calls " + second + ";"), text);
  };
  check(sum({2, 3}), sum({3, 2}), "all_reduce (sum) of float32 [2, 3]", "all_reduce (sum) of float32 [3, 2]");
  check(sum({2}), sum({2}, DType::int64), "all_reduce (sum) of float32 [2]", "all_reduce (sum) of int64 [2]");
  check(
      sum({2}), [](Context& context) { all_reduce(context, Tensor::zeros({2}), ReduceOp::max); },
      "all_reduce (sum) of float32 [2]", "all_reduce (max) of float32 [2]");
  check(
      sum({2}), [](Context& context) { barrier(context); }, "all_reduce (sum) of float32 [2]", "barrier");
  check([](Context& context) { broadcast(context, Tensor::zeros({2}), 0); },
        [](Context& context) { broadcast(context, Tensor::zeros({2}), 1); },
        "broadcast of float32 [2] with root 0", "broadcast of float32 [2] with root 1");
  check(
      [](Context& context) {
        all_gather(context, Tensor::zeros({2, 3}));
      },
      [](Context& context) {
        all_gather(context, Tensor::zeros({2, 4}));
      },
      "all_gather of float32 [2, 3]", "all_gather of float32 [2, 4]");
  check([](Context& context) { all_gather(context, Json(1)); },
        [](Context& context) { all_gather(context, Tensor::zeros({1})); }, "all_gather of JSON",
        "all_gather of float32 [1]");
}

BOOST_AUTO_TEST_CASE(a_sum_of_tensors_in_cpu_memory_and_on_devices_is_refused) {
  if (size() == 1) return;
  Places places;
  Context& context = *places.contexts[1];
  const Tensor here = Tensor::zeros({2}), there = kernels::on_device(here, context.backend());
  const std::string text =
      same_error(ExitCode::usage, [&] { all_reduce(context, rank() == 0 ? there : here); });
  BOOST_TEST(contains(text, "all_reduce (sum) of float32 [2] on its device, but rank 1 calls all_reduce"),
             text);
}

BOOST_AUTO_TEST_CASE(a_call_that_cannot_be_carried_out_is_one_error_on_every_rank) {
  const auto check = [](const std::function<void(Context&)>& call, const char* text) {
    const std::string found = error_of(call, call);
    BOOST_TEST(contains(found, text), found);
  };
  check([](Context& context) { all_reduce(context, Tensor::zeros({2}, DType::int64), ReduceOp::mean); },
        "a mean needs floats");
  check([](Context& context) { reduce(context, Tensor::zeros({2}), size()); }, "there is no rank");
  check([](Context& context) { broadcast(context, Tensor::zeros({2}), -1); }, "there is no rank -1");
  check(
      [](Context& context) {
        scatter(context, Tensor::zeros({5 * size() + (size() > 1 ? 1 : 0), 2}), size());
      },
      "there is no rank");
  check([](Context& context) { all_reduce(context, Tensor()); }, "the tensor argument is missing");
  check([](Context& context) { scatter(context, std::vector<Json>(static_cast<std::size_t>(size()) + 1)); },
        "values for");
  if (size() == 1) return;
  check([](Context& context) { scatter(context, Tensor::zeros({size() + 1})); }, "cannot be divided equally");
  const std::string one = error_of([](Context& context) { all_reduce(context, Tensor::zeros({1})); },
                                   [](Context& context) { all_reduce(context, Tensor()); });
  BOOST_TEST(contains(one, "the tensor argument is missing"), one);
}

BOOST_AUTO_TEST_CASE(gradients_summed_by_hand_have_the_bits_of_data_parallel_with_one_shard_a_rank) {
  TestContext context;
  Net by_hand, wrapped;
  ddp::DataParallel replicas(wrapped.state(), context);
  LocalGradients gradients(by_hand.state(), context.backend());
  Tape tape(context.backend());
  for (std::uint64_t step = 0; step < 2; ++step) {
    replicas.step(toy_batch(step, replicas),
                  [&](Tape& of, const ToyShard& shard) { return plain_loss(wrapped, of, shard); });
    gradients.clear();
    tape.begin({.step = step, .shard = static_cast<std::uint32_t>(rank()), .sink = &gradients});
    backward(plain_loss(by_hand, tape, toy_shard(step, rank())));
    tape.finish_backward();
    for (std::size_t i = 0; i < by_hand.params.size(); ++i) {
      all_reduce(context, by_hand.params[i].gradient);
      BOOST_TEST(same(by_hand.params[i].gradient, wrapped.params[i].gradient), by_hand.params[i].name);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
