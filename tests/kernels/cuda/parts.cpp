// Parts at once on a GPU: each part has the bits that it has alone, in memory of its own.
#include "kernels/cuda/parts.h"

#include "lockstep/comm/reduction_tree.h"
#include "lockstep/ops/update.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(parts_on_a_gpu, Twins)

using ops::AnyOperation;

/// The results of an operation.
Tensors results_of(const AnyOperation& operation) {
  Tensors results;
  operation.visit([&](const char*, const ops::Role& role, const Tensor& tensor) {
    if (tensor && role.access != ops::Access::read) results.push_back(tensor);
  });
  return results;
}

/// Runs a part alone, on copies of its operands, and returns its results.
Tensors alone(Twins& twins, const AnyOperation& operation, int part, int parts) {
  kernels::Backend& gpu = twins.gpu();
  Tensors results;
  const auto copy = [&](const ops::Role&, const Tensor& from) {
    const Tensor own = gpu.empty(from.shape(), from.dtype(), from.channel_block());
    gpu.copy(from, own);
    return own;
  };
  operation.with_part(part, parts, [&](const AnyOperation& there) {
    there.with(copy, [&](const AnyOperation& own) {
      gpu.run(own);
      for (const Tensor& result : results_of(own)) results.push_back(twins.to_cpu(result));
    });
  });
  return results;
}

/// Runs the operation in parts, or on all of them without knowing of parts, and compares each of them with
/// the part alone.
void check_bits(Twins& twins, const AnyOperation& operation, int parts, bool unaware) {
  std::vector<Tensors> wanted;
  for (int part = 0; part < parts; ++part) wanted.push_back(alone(twins, operation, part, parts));
  unaware ? twins.gpu().run(operation) : twins.gpu().run_parts(operation, parts);
  for (int part = 0; part < parts; ++part) {
    Tensors results;
    operation.with_part(part, parts, [&](const AnyOperation& one) { results = results_of(one); });
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Tensor result = twins.to_cpu(results[i]), &own = wanted[static_cast<std::size_t>(part)][i];
      BOOST_TEST((result.bytes() == 0 || std::memcmp(result.raw(), own.raw(), own.bytes()) == 0),
                 "result " << i << " of part " << part << ", shape " << to_string(results[i].shape()) << ", "
                           << to_string(results[i].dtype()) << ", has other bits; seed " << Draw::seed());
    }
  }
}

template <class Make>
void each_has_its_bits(Twins& twins, const Make& make, bool unaware = false) {
  for (const int parts : {2, 3, 8}) {  // a single part is run(), which other cases test
    PartsOnGpu on_gpu(twins, parts,
                      [&](const AnyOperation& operation) { check_bits(twins, operation, parts, unaware); });
    make(on_gpu);
  }
}

BOOST_AUTO_TEST_CASE(sums_of_a_part_are_those_that_it_has_alone) {
  each_has_its_bits(*this, [](PartsOnGpu& parts) { parts.sums(); });
}
BOOST_AUTO_TEST_CASE(products_of_a_part_are_those_that_it_has_alone) {
  each_has_its_bits(*this, [](PartsOnGpu& parts) { parts.products(); });
}
BOOST_AUTO_TEST_CASE(norms_of_a_part_are_those_that_it_has_alone) {
  each_has_its_bits(*this, [](PartsOnGpu& parts) { parts.norms(); });
}
BOOST_AUTO_TEST_CASE(forward_norms_of_all_parts_are_those_that_each_has_alone) {
  each_has_its_bits(
      *this, [](PartsOnGpu& parts) { parts.forward_norms(); }, true);
}
BOOST_AUTO_TEST_CASE(adaptive_norms_of_a_part_are_those_that_it_has_alone) {
  each_has_its_bits(*this, [](PartsOnGpu& parts) {
    parts.adaptive_norms({plain_float, last_float, last_bf16});
  });
}
BOOST_AUTO_TEST_CASE(random_numbers_of_a_part_are_those_that_it_has_alone) {
  each_has_its_bits(*this, [](PartsOnGpu& parts) { parts.random(); });
}
BOOST_AUTO_TEST_CASE(losses_of_a_part_are_those_that_it_has_alone) {
  each_has_its_bits(*this, [](PartsOnGpu& parts) { parts.losses(); });
}
BOOST_AUTO_TEST_CASE(gradients_of_a_table_are_those_that_a_part_has_alone) {
  each_has_its_bits(*this, [](PartsOnGpu& parts) { parts.tables(); });
}
BOOST_AUTO_TEST_CASE(folds_of_a_part_are_those_that_it_has_alone) {
  each_has_its_bits(*this, [](PartsOnGpu& parts) { parts.folds(); });
}
BOOST_AUTO_TEST_CASE(batch_norms_of_a_part_are_those_that_it_has_alone) {
  each_has_its_bits(*this, [](PartsOnGpu& parts) { parts.batch_norms(); });
}

BOOST_AUTO_TEST_CASE(a_captured_dropout_in_parts_drops_by_the_step_of_its_launch) {
  constexpr int parts = 3, count = 21;
  const Tensor x = to_gpu(activation(test::Draw().positive({parts * count}))), y = gpu().empty(x.shape());
  const auto drop = [&](std::uint64_t step) {
    gpu().run_parts(ops::Dropout{x, 0.5f, {.seed = 1, .step = step}, y}, parts);
  };
  const auto capture = gpu().capture_graph(4);
  drop(4);
  const auto graph = capture->finish();
  graph->launch(9);
  const Tensor launched = to_cpu(y);
  drop(9);
  BOOST_TEST(std::memcmp(launched.raw(), to_cpu(y).raw(), launched.bytes()) == 0);
}

BOOST_AUTO_TEST_CASE(a_target_out_of_range_is_reported_by_its_row_in_its_part) {
  constexpr int parts = 3, rows = 4;
  PartsOnGpu make(*this, parts, nullptr);
  const Tensor targets = Tensor::zeros({parts * rows}, DType::int64);
  targets.data<std::int64_t>()[rows + 2] = 9;
  const Tensor logits = to_gpu(activation(test::Draw().normal({parts * rows, 5})));
  gpu().run_parts(
      ops::CrossEntropyInPlace{logits, to_gpu(fixed(targets)), {}, make.of_parts({2}, DType::float64)},
      parts);
  BOOST_CHECK_EXCEPTION(to_cpu(logits), DataError, [](const DataError& error) {
    return std::string(error.what()) == "cross_entropy: target 9 in row 2 is not one of the 5 classes";
  });
}

BOOST_AUTO_TEST_CASE(a_part_that_does_not_fit_is_refused) {
  const Tensor x = gpu().empty({7, 4}), row = gpu().empty({2, 4});
  BOOST_CHECK_THROW(gpu().run_parts(ops::SumRows{x, row}, 2), UsageError);
  BOOST_CHECK_THROW(gpu().run_parts(ops::SumRows{x.rows(0, 6), row}, 3), UsageError);
}

/// Planes of some tensors behind each other, and the table of their chunks.
struct Planes {
  Tensor planes, sums, table;
  Tensor wanted;  ///< the sums along the tree

  template <class T>
  static Planes of(test::Draw& draw, std::span<const std::int64_t> counts, int parts, T) {
    std::int64_t all = 1, bucket = 1;  // the first element is nobody's
    std::vector<std::int64_t> rows;
    for (const std::int64_t count : counts) {
      for (std::int64_t at = 0; at < count; at += ops::AddAlongTree::max_chunk)
        rows.insert(rows.end(),
                    {all + at, count, bucket + at, std::min(count - at, ops::AddAlongTree::max_chunk)});
      all += parts * count;
      bucket += count + 3;
      if (count % 2 == 0) all += (4 - all % 4) % 4, bucket += (4 - bucket % 4) % 4;
    }
    const auto chunks = static_cast<std::int64_t>(rows.size() / 4);
    Planes made{Tensor::zeros({all}, dtype_of<T>),
                Tensor::zeros({bucket}, dtype_of<T>),
                Tensor::zeros({chunks, 4}, DType::int64),
                {}};
    std::ranges::copy(rows, made.table.data<std::int64_t>());
    T* const planes = made.planes.data<T>();
    const Tensor numbers = draw.normal({all});
    for (std::int64_t i = 0; i < all; ++i)
      planes[i] = static_cast<T>(numbers.data<float>()[i]) + static_cast<T>(draw.below(1 << 20)) / 1024;
    made.wanted = copied(made.sums);
    for (std::int64_t c = 0; c < chunks; ++c) {
      const std::int64_t* const row = rows.data() + 4 * c;
      for (std::int64_t i = 0; i < row[3]; ++i)
        made.wanted.data<T>()[row[2] + i] = comm::fold_tree(
            {0, parts}, [&](int part) { return planes[row[0] + part * row[1] + i]; },
            [](T left, T right) { return left + right; });
    }
    return made;
  }
};

BOOST_AUTO_TEST_CASE(planes_are_added_along_the_tree_of_shards) {
  test::Draw draw;
  constexpr std::int64_t counts[] = {1, 8, 4096, 5, 4100, 9000, 0, 3};
  const auto check = [&](auto zero, int parts) {
    const Planes made = Planes::of(draw, counts, parts, zero);
    const Tensor on_cpu = copied(made.sums), on_gpu = to_gpu(fixed(made.sums));
    cpu().run(ops::AddAlongTree{made.planes, on_cpu, made.table, parts});
    gpu().run(ops::AddAlongTree{to_gpu(fixed(made.planes)), on_gpu, to_gpu(fixed(made.table)), parts});
    for (const Tensor& sums : {on_cpu, to_cpu(on_gpu)})
      BOOST_TEST(std::memcmp(sums.raw(), made.wanted.raw(), sums.bytes()) == 0,
                 parts << " planes of " << to_string(sums.dtype()));
  };
  for (const int parts : {1, 2, 3, 4, 5, 6, 7, 8, 13, 32, 33, 77}) {
    check(float{}, parts);
    check(double{}, parts);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
