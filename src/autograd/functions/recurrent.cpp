// Recurrent networks, a layer at a time.
#include "ops/recurrent.h"

#include "autograd/functions/support.h"
#include "ops/matmul.h"

namespace lockstep {
namespace {

/// Row i of [rows, ...], without the first dimension.
Tensor at(const Tensor& all, std::int64_t i) {
  return all.rows(i, i + 1).reshape(Shape(all.shape().extents().subspan(1)));
}

/// dweight (+)= the products of all steps but a shard's first, whose state is 0.
void write_weight_gradient(Tape& t, const Var& weight, const Tensor& h, const Tensor& dfrom_h) {
  t.write_gradient(weight, [&](const Tensor& dweight, bool accumulate) {
    const std::int64_t shards = t.pass().shards, steps = h.size(0) / shards, rows = weight.shape()[0];
    const Tensor all = dweight.reshape({shards * rows, weight.shape()[1]});
    for (std::int64_t first = 0, i = 0; i < shards; ++i, first += steps)
      t.backend().run(ops::linear_backward_weight(as_rows(h.rows(first, first + steps - 1)),
                                                  as_rows(dfrom_h.rows(first + 1, first + steps)),
                                                  all.rows(i * rows, (i + 1) * rows), accumulate));
  });
}

}  // namespace

Var recurrent(const Var& from_x, const Var& weight, const Var& bias) {
  require_rank("recurrent", from_x, 3);
  Tape& tape = from_x.tape();
  kernels::Backend& backend = tape.backend();
  const std::int64_t all_steps = from_x.shape()[0], steps = all_steps / tape.pass().shards,
                     samples = from_x.shape()[1], gates = from_x.shape()[2],
                     width = weight.shape().rank() == 2 ? weight.shape()[1] : 0;
  if (width == 0 || weight.shape()[0] != gates || (gates != 3 * width && gates != 4 * width) || steps == 0)
    throw UsageError("recurrent: an input of shape {} does not fit a weight of shape {}",
                     to_string(from_x.shape()), to_string(weight.shape()));
  require_one_type("recurrent", from_x, weight);
  const DType dtype = from_x.value().dtype();
  const Tensor h = backend.empty({all_steps, samples, width}, dtype),
               saved = backend.empty({all_steps, samples, 4 * width}, dtype),
               state = backend.empty({all_steps, samples, width}),
               zero_state = backend.empty({samples, width}),
               no_output = backend.empty(zero_state.shape(), dtype),
               from_h = backend.empty({samples, gates}, dtype);
  backend.fill(zero_state, 0);
  backend.fill(no_output, 0);
  for (std::int64_t i = 0; i < all_steps; ++i) {
    const bool is_first = i % steps == 0;
    backend.run(ops::linear(is_first ? no_output : at(h, i - 1), weight.value(), bias.value(), from_h));
    backend.run(ops::RecurrentStep{at(from_x.value(), i), from_h, is_first ? zero_state : at(state, i - 1),
                                   at(state, i), at(h, i), at(saved, i)});
  }
  return tape.record(h, {&from_x, &weight, &bias},
                     [from_x = from_x.without_value(), weight, bias = bias.without_value(), h, saved, state,
                      zero_state, steps](Tape& t, const Tensor& dy) {
                       kernels::Backend& b = t.backend();
                       const Shape all = from_x.shape();
                       const DType type = dy.dtype();
                       const Tensor dfrom_x = b.empty(all, type), dfrom_h = b.empty(all, type),
                                    dh = b.empty(zero_state.shape(), type),
                                    dstate = b.empty(zero_state.shape());
                       for (std::int64_t i = all[0] - 1; i >= 0; --i) {
                         const bool is_first = i % steps == 0;
                         if (i % steps == steps - 1) {
                           b.fill(dh, 0);
                           b.fill(dstate, 0);
                         }
                         b.run(ops::RecurrentStepBackward{
                             at(dy, i), dh, at(saved, i), is_first ? zero_state : at(state, i - 1),
                             at(state, i), dstate, at(dfrom_x, i), at(dfrom_h, i)});
                         if (!is_first) b.run(ops::linear_backward_input(at(dfrom_h, i), weight.value(), dh));
                       }
                       write_weight_gradient(t, weight, h, dfrom_h);
                       t.write_gradient(bias, [&](const Tensor& dbias, bool accumulate) {
                         t.run_by_shard(ops::SumRows{dfrom_h, dbias, accumulate});
                       });
                       t.add_gradient(from_x, dfrom_x);
                     });
}

}  // namespace lockstep
