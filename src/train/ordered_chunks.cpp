#include "train/ordered_chunks.h"

#include <algorithm>
#include <array>
#include <exception>
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

/// The set bit tells that a rank has failed: the others need not go on.
constexpr std::uint64_t failed = std::uint64_t{1} << 63;

/// Leaves `make` of a chunk that is not wanted any more. No Error: nothing is wrong.
struct Ended {};

/// The steps of a round, after each of which all ranks agree. A rank that has failed, has no chunk or calls
/// step() less often takes part in what is left by rest(): so all ranks agree equally often.
class Round {
 public:
  Round(comm::HostGroup& world, const OrderedChunks& work, std::int64_t round)
      : world_(world), work_(work), round_(round) {}

  void step() {
    if (closed_) throw Ended{};
    if (work_.watch.act && done_ < work_.steps) agree(0);
  }
  void rest(bool has_failed) {
    try {
      while (work_.watch.act && !closed_ && done_ < work_.steps) agree(has_failed ? failed : 0);
    } catch (const Ended&) {
    }
  }
  /// The same on every rank.
  bool ended() const { return ended_; }

 private:
  void agree(std::uint64_t mine) {
    closed_ = true;  // if this throws, it does so on every rank
    const std::uint64_t of_any = comm::bits_of_any(world_, work_.watch.requests() | mine);
    if ((of_any & failed) != 0) throw Ended{};
    ++done_;
    const std::int64_t rounds = work_.rounds(world_);
    const bool last = round_ + 1 == rounds && done_ == work_.steps;
    const double steps = static_cast<double>(round_ * work_.steps + done_);
    const bool goes_on = work_.watch.act(of_any, steps / static_cast<double>(rounds * work_.steps));
    ended_ = !goes_on && !last;
    if (ended_) throw Ended{};
    closed_ = false;
  }

  comm::HostGroup& world_;
  const OrderedChunks& work_;
  std::int64_t round_, done_ = 0;
  bool closed_ = false, ended_ = false;
};

}  // namespace

bool run(comm::HostGroup& world, const OrderedChunks& work) {
  RowShape row{};  // every rank learns it from rank 0
  for (std::int64_t round = 0; round < work.rounds(world); ++round) {
    const std::int64_t first_chunk = round * world.size(), mine = first_chunk + world.rank();
    const auto rows_of = [&](std::int64_t index) {
      return std::min(work.chunk, work.rows - index * work.chunk);
    };
    Round agreed(world, work, round);
    Tensor made;
    comm::run_on_all(world, [&] {
      std::exception_ptr error;
      try {
        if (mine < work.chunks()) {
          made = work.make(mine * work.chunk, rows_of(mine), [&] { agreed.step(); });
          const Shape& shape = made.shape();
          if (made.dtype() != DType::float32 || shape.rank() == 0 || shape[0] != rows_of(mine))
            throw UsageError("{} {} was made of {} samples: float32 with a row for each is needed",
                             to_string(made.dtype()), to_string(shape), rows_of(mine));
        }
      } catch (const Ended&) {
      } catch (...) {
        error = std::current_exception();
      }
      agreed.rest(error != nullptr);
      if (error) std::rethrow_exception(error);
    });
    if (agreed.ended()) return false;
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
