#include "train/ordered_chunks.h"

#include <algorithm>
#include <array>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::train {
namespace {

/// Number of extents, then those of one row.
using RowShape = std::array<std::int64_t, Shape::max_rank + 1>;

RowShape row_shape_of(const Tensor& made) {
  RowShape shape{};
  shape[0] = made.shape().rank() - 1;
  std::copy(made.shape().begin() + 1, made.shape().end(), shape.begin() + 1);
  return shape;
}

Shape with_rows(std::int64_t rows, const RowShape& row) {
  std::vector<std::int64_t> extents{rows};
  extents.insert(extents.end(), row.begin() + 1, row.begin() + 1 + row[0]);
  return Shape(std::span<const std::int64_t>(extents));
}

}  // namespace

bool run(comm::HostGroup& world, const OrderedChunks& work) {
  RowShape row{};  // every rank learns it from rank 0
  for (std::int64_t round = 0; round < work.rounds(world); ++round) {
    if (round > 0 && work.go_on && !work.go_on()) return false;
    const std::int64_t first_chunk = round * world.size(), mine = first_chunk + world.rank();
    const auto rows_of = [&](std::int64_t index) {
      return std::min(work.chunk, work.rows - index * work.chunk);
    };
    Tensor made;
    comm::run_on_all(world, [&] {
      if (mine >= work.chunks()) return;
      made = work.make(mine * work.chunk, rows_of(mine));
      const Shape& shape = made.shape();
      if (made.dtype() != DType::float32 || shape.rank() == 0 || shape[0] != rows_of(mine))
        throw UsageError("{} {} was made of {} samples: float32 with a row for each is needed",
                         to_string(made.dtype()), to_string(shape), rows_of(mine));
    });
    if (round == 0) {
      if (world.rank() == 0) row = row_shape_of(made);
      world.broadcast(row.data(), sizeof row, 0);
    }
    comm::run_on_all(world, [&] {
      if (made && row_shape_of(made) != row)
        throw UsageError("samples of two shapes were made: {} and {}",
                         to_string(with_rows(rows_of(mine), row)), to_string(made.shape()));
    });
    const std::int64_t end = std::min(first_chunk + world.size(), work.chunks());
    for (std::int64_t index = first_chunk; index < end; ++index) {
      const auto root = static_cast<int>(index - first_chunk);
      Tensor there = made;
      if (root != 0) {  // rank 0 has its own
        if (root != world.rank()) there = Tensor::empty(with_rows(rows_of(index), row));
        world.broadcast(there.raw(), there.bytes(), root);
      }
      comm::run_on_all(world, [&] {
        if (world.rank() == 0) work.take(index * work.chunk, there);
      });
    }
  }
  return true;
}

}  // namespace lockstep::train
