#include "train/infer/chunks.h"

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

RowShape row_shape_of(const Tensor& rows) {
  RowShape shape{};
  shape[0] = rows.shape().rank() - 1;
  std::copy(rows.shape().begin() + 1, rows.shape().end(), shape.begin() + 1);
  return shape;
}

Shape with_rows(std::int64_t rows, const RowShape& row) {
  std::vector<std::int64_t> extents{rows};
  extents.insert(extents.end(), row.begin() + 1, row.begin() + 1 + row[0]);
  return Shape(std::span<const std::int64_t>(extents));
}

/// Bit of a failed rank: the others need not continue.
constexpr std::uint64_t failed = std::uint64_t{1} << 63;

/// Thrown to leave a part whose result is no longer needed. Not an Error.
struct Ended {};

/// The steps of a round; all ranks agree after each. A rank that has failed, has no part or calls step() less
/// often takes part in the rest by rest(), so that all ranks agree equally often.
class Round {
 public:
  Round(comm::HostGroup& world, const Rounds& work, std::int64_t round)
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
    const bool last = round_ + 1 == work_.rounds && done_ == work_.steps;
    const double rounds =
        static_cast<double>(round_) + static_cast<double>(done_) / static_cast<double>(work_.steps);
    const bool goes_on = work_.watch.act(of_any, rounds / static_cast<double>(work_.rounds));
    ended_ = !goes_on && !last;
    if (ended_) throw Ended{};
    closed_ = false;
  }

  comm::HostGroup& world_;
  const Rounds& work_;
  std::int64_t round_, done_ = 0;
  bool closed_ = false, ended_ = false;
};

}  // namespace

bool run(comm::HostGroup& world, const Rounds& work) {
  for (std::int64_t round = 0; round < work.rounds; ++round) {
    Round agreed(world, work, round);
    comm::run_on_all(world, [&] {
      std::exception_ptr error;
      try {
        work.make(round, [&] { agreed.step(); });
      } catch (const Ended&) {
      } catch (...) {
        error = std::current_exception();
      }
      agreed.rest(error != nullptr);
      if (error) std::rethrow_exception(error);
    });
    if (agreed.ended()) return false;
    if (work.after) work.after(round);
  }
  return true;
}

bool run(comm::HostGroup& world, const OrderedChunks& work) {
  RowShape row{};  // every rank learns it from rank 0
  Tensor mine;
  const auto rows_of = [&](std::int64_t index) {
    return std::min(work.chunk, work.rows - index * work.chunk);
  };
  const auto make = [&](std::int64_t round, const std::function<void()>& step) {
    const std::int64_t index = round * world.size() + world.rank();
    mine = {};
    if (index >= work.chunks()) return;
    mine = work.make(index * work.chunk, rows_of(index), step);
    const Shape& shape = mine.shape();
    if (mine.dtype() != DType::float32 || shape.rank() == 0 || shape[0] != rows_of(index))
      throw UsageError("{} {} for {} samples is invalid: float32 with a row for each is needed",
                       to_string(mine.dtype()), to_string(shape), rows_of(index));
  };
  const auto take = [&](std::int64_t round) {
    if (round == 0) {
      if (world.rank() == 0) row = row_shape_of(mine);
      world.broadcast(row.data(), sizeof row, 0);
    }
    comm::run_on_all(world, [&] {
      if (mine && row_shape_of(mine) != row)
        throw UsageError("samples have two shapes: {} and {}", to_string(with_rows(mine.shape()[0], row)),
                         to_string(mine.shape()));
    });
    const std::int64_t first = round * world.size(), end = std::min(first + world.size(), work.chunks());
    for (std::int64_t index = first; index < end; ++index) {
      const auto root = static_cast<int>(index - first);
      Tensor there = mine;
      if (root != 0) {  // rank 0 has its own
        if (root != world.rank()) there = Tensor::empty(with_rows(rows_of(index), row));
        world.broadcast(there.raw(), there.bytes(), root);
      }
      comm::run_on_all(world, [&] {
        if (world.rank() == 0) work.take(index * work.chunk, there);
      });
    }
  };
  return run(world, Rounds{.rounds = (work.chunks() + world.size() - 1) / world.size(),
                           .steps = work.steps,
                           .make = make,
                           .watch = work.watch,
                           .after = take});
}

}  // namespace lockstep::train
