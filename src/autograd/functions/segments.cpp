// Sums, means, extremes and softmax over the rows of segments: folds in the order of the rows, and gathers.
#include "autograd/functions/support.h"
#include "lockstep/ops/gather.h"

namespace lockstep {
namespace {

using kernels::Backend;

Tensor one(Backend& backend) {
  const Tensor value = backend.empty({});
  backend.fill(value, 1);
  return value;
}

/// Rows x [rows, ...] and the segment of each. A pass of several shards has the rows and the segments of one
/// shard after another, with indices that count in their shard.
class Segments {
 public:
  /// UsageError naming the function if the shapes do not fit.
  Segments(const char* function, const Var& x, const Tensor& indices, std::int64_t segments)
      : function_(function), indices_(indices) {
    const Shape& shape = x.shape();
    if (segments < 0 || shape.rank() < 1 || !(indices.shape() == Shape{shape[0]}))
      throw UsageError(
          "{}: indices of shape {} and {} segments for rows of shape {}; there must be one index for each "
          "row",
          function, to_string(indices.shape()), segments, to_string(shape));
    segments_ = segments * x.tape().pass().shards;
  }

  Tensor sum(Tape& tape, const Tensor& x) const { return fold<ops::SegmentSum>(tape, x); }
  Tensor max(Tape& tape, const Tensor& x) const { return fold<ops::SegmentMax>(tape, x); }
  /// Of each row, the value of its segment.
  void spread(Tape& tape, const Tensor& of_segments, const Tensor& rows) const {
    tape.run_by_shard(ops::Gather{of_segments, indices_, 0, rows});
  }
  Tensor spread(Tape& tape, const Tensor& of_segments) const {
    const Tensor rows =
        tape.backend().empty(of_segments.shape().with(0, indices_.numel()), of_segments.dtype());
    spread(tape, of_segments, rows);
    return rows;
  }
  /// The rows of each segment, at least 1: float32 [segments, 1, ...] of `rank` dimensions.
  Tensor counts(Tape& tape, int rank) const {
    Backend& backend = tape.backend();
    const Tensor ones = backend.empty({indices_.numel()});
    backend.fill(ones, 1);
    const Tensor counts = sum(tape, ones);
    backend.run(ops::Map<ops::Maximum>{{}, {counts, one(backend)}, counts});
    Shape shape{segments_};
    while (shape.rank() < rank) shape.append(1);
    return counts.reshape(shape);
  }

 private:
  template <class Fold>
  Tensor fold(Tape& tape, const Tensor& x) const {
    const Tensor y = tape.backend().empty(x.shape().with(0, segments_), x.dtype());
    tape.run_by_shard(Fold{{x, indices_, y, function_}});
    return y;
  }

  const char* function_;
  Tensor indices_;
  std::int64_t segments_ = 0;
};

/// y = formula(inputs ...), of that shape and type.
template <class Formula>
Tensor map(Backend& backend, const Shape& shape, DType type, const std::array<Tensor, Formula::inputs>& in) {
  const Tensor y = backend.empty(shape, type);
  backend.run(ops::Map<Formula>{{}, in, y});
  return y;
}

}  // namespace

Var segment_sum(const Var& input, const Tensor& indices, std::int64_t segments) {
  const Segments of("segment_sum", input, indices, segments);
  const Var x = plain(input);
  return x.tape().record(of.sum(x.tape(), x.value()), {&x},
                         [x = x.without_value(), of](Tape& t, const Tensor& dy) {
                           add_new_gradient(t, x, [&](const Tensor& dx) { of.spread(t, dy, dx); });
                         });
}

Var segment_mean(const Var& input, const Tensor& indices, std::int64_t segments) {
  const Segments of("segment_mean", input, indices, segments);
  const Var x = plain(input);
  Tape& tape = x.tape();
  Backend& backend = tape.backend();
  const Tensor sums = of.sum(tape, backend.in_type(x.value(), DType::float32)),
               counts = of.counts(tape, x.shape().rank()),
               y = map<ops::Quotient>(backend, sums.shape(), x.value().dtype(), {sums, counts});
  return tape.record(y, {&x}, [x = x.without_value(), of, counts](Tape& t, const Tensor& dy) {
    add_new_gradient(t, x, [&](const Tensor& dx) {
      of.spread(t, map<ops::Quotient>(t.backend(), dy.shape(), dy.dtype(), {dy, counts}), dx);
    });
  });
}

Var segment_max(const Var& input, const Tensor& indices, std::int64_t segments) {
  const Segments of("segment_max", input, indices, segments);
  const Var x = plain(input);
  Tape& tape = x.tape();
  const Tensor y = of.max(tape, x.value());
  return tape.record(y, {&x}, [x, y, of](Tape& t, const Tensor& dy) {
    add_new_gradient(t, x, [&](const Tensor& dx) {
      Backend& backend = t.backend();
      const Shape& rows = x.shape();
      const Tensor largest = of.spread(t, y), unit = one(backend),
                   equal = map<ops::ExtremeSlope>(backend, rows, DType::float32,
                                                  {x.value(), largest, unit, unit}),
                   count = of.spread(t, of.sum(t, equal));
      backend.run(ops::Map<ops::ExtremeSlope>{{}, {x.value(), largest, of.spread(t, dy), count}, dx});
    });
  });
}

Var segment_softmax(const Var& input, const Tensor& indices, std::int64_t segments) {
  const Segments of("segment_softmax", input, indices, segments);
  const Var x = plain(input);
  Tape& tape = x.tape();
  Backend& backend = tape.backend();
  const Shape& rows = x.shape();
  const Tensor largest = of.spread(tape, of.max(tape, x.value())),
               exponentials =
                   map<ops::Softmax>(backend, rows, DType::float32, {x.value(), largest, one(backend)}),
               sums = of.spread(tape, of.sum(tape, exponentials)),
               y = map<ops::Quotient>(backend, rows, x.value().dtype(), {exponentials, sums});
  return tape.record(y, {&x}, [x = x.without_value(), y, of](Tape& t, const Tensor& dy) {
    add_new_gradient(t, x, [&](const Tensor& dx) {
      const Tensor products = map<ops::Product>(t.backend(), y.shape(), DType::float32, {y, dy});
      t.backend().run(ops::Map<ops::SoftmaxSlope>{{}, {y, dy, of.spread(t, of.sum(t, products))}, dx});
    });
  });
}

}  // namespace lockstep
