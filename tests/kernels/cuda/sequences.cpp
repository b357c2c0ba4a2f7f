// Rotary positions and attention between sequences.
#include "kernels/cuda/twins.h"
#include "lockstep/ops/rotary.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(sequences, Twins)

using kernels::Backend;

BOOST_AUTO_TEST_CASE(rotary_is_that_of_the_cpu) {
  Draw draw;
  for (const Shape& shape : {Shape{0, 2, 3, 4}, {1, 1, 1, 2}, {2, 3, 5, 6}, {3, 5, 33, 64}}) {
    for (const ops::RotaryLayout layout : {ops::RotaryLayout::halves, ops::RotaryLayout::pairs}) {
      for (const bool back : {false, true})
        compare("rotary of " + to_string(shape), {activation(draw.normal(shape))},
                {activation(unwritten(shape))}, [=](Backend& on, const Tensors& in, const Tensors& out) {
                  on.run(ops::Rotary{in[0], layout, 500, back ? 100'003 : 0, back, out[0]});
                });
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
