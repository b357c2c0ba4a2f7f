// Rotary positions, attention between sequences, their lengths, and steps of recurrent networks.
#include <algorithm>

#include "kernels/cuda/twins.h"
#include "lockstep/ops/attention.h"
#include "lockstep/ops/gather.h"
#include "ops/recurrent.h"

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

BOOST_AUTO_TEST_CASE(kept_steps_are_those_of_the_cpu) {
  Draw draw;
  for (const Shape& shape : {Shape{0, 3, 2}, {4, 1}, {3, 7, 5}, {65, 33, 2, 3}}) {
    const Operand lengths = fixed(draw.indices({shape[0]}, shape[1] + 1));
    for (const bool last : {false, true})
      for (const bool integers : {false, true})
        compare("keep_steps of " + to_string(shape),
                {integers ? fixed(draw.indices(shape, 9)) : activation(draw.normal(shape)), lengths},
                {integers ? fixed(unwritten(shape, DType::int64)) : activation(unwritten(shape))},
                [last](Backend& on, const Tensors& in, const Tensors& out) {
                  on.run(ops::KeepSteps{in[0], in[1], -3, last, out[0]});
                });
  }
}

BOOST_AUTO_TEST_CASE(steps_of_recurrent_networks_are_those_of_the_cpu) {
  Draw draw;
  for (const Shape& state : {Shape{0, 4}, {1, 1}, {5, 33}, {70, 128}}) {
    for (const std::int64_t count : {3, 4}) {
      const Shape parts = state.with(1, count * state[1]), gates = state.with(1, 4 * state[1]);
      const std::string what = std::to_string(count) + " gates of " + to_string(state);
      compare("recurrent_step, " + what,
              {activation(draw.normal(parts)), activation(draw.normal(parts)), fixed(draw.normal(state))},
              {fixed(unwritten(state)), activation(unwritten(state)), activation(unwritten(gates))},
              [](Backend& on, const Tensors& in, const Tensors& out) {
                on.run(ops::RecurrentStep{in[0], in[1], in[2], out[0], out[1], out[2]});
              });
      compare("recurrent_step_backward, " + what,
              {activation(draw.normal(state)), activation(draw.normal(state)), activation(draw.normal(gates)),
               fixed(draw.normal(state)), fixed(draw.normal(state))},
              {fixed(draw.normal(state)), activation(unwritten(parts)), activation(unwritten(parts))},
              [](Backend& on, const Tensors& in, const Tensors& out) {
                on.run(ops::RecurrentStepBackward{in[0], in[1], in[2], in[3], in[4], out[0], out[1], out[2]});
              });
    }
  }
}

struct Lengths {
  std::int64_t batch, queries, keys, heads, key_heads, width;
  bool causal;
};

BOOST_AUTO_TEST_CASE(attention_of_other_lengths_and_fewer_key_heads_is_that_of_the_cpu) {
  Draw draw;
  for (const Lengths& s : {Lengths{0, 5, 3, 4, 2, 4, false},
                           {2, 40, 40, 4, 2, 8, true},
                           {1, 33, 7, 2, 2, 16, false},
                           {2, 5, 70, 6, 2, 5, false},
                           {1, 70, 70, 3, 1, 64, true},
                           {1, 9, 40, 2, 2, 64, false},
                           {2, 33, 40, 4, 2, 100, false},
                           {1, 40, 40, 2, 1, 250, true},
                           {1, 70, 40, 2, 1, 197, false},
                           {1, 70, 70, 4, 2, 256, true}}) {
    for (const bool apart : {false, true}) {  // heads
      const auto shape_of = [&](std::int64_t heads, std::int64_t time) {
        return apart ? Shape{s.batch, heads, time, s.width} : Shape{s.batch, time, heads * s.width};
      };
      const Shape queries = shape_of(s.heads, s.queries), keys = shape_of(s.key_heads, s.keys);
      const std::string what = "attention of q " + to_string(queries) + ", k " + to_string(keys);
      // The backward takes what the device's own forward saved.
      compare(what,
              {activation(draw.normal(queries)), activation(draw.normal(keys)), activation(draw.normal(keys)),
               activation(draw.normal(queries))},
              {activation(unwritten(queries)), activation(unwritten(queries)), activation(unwritten(keys)),
               activation(unwritten(keys))},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                const auto all = ops::all_columns;
                const int heads = static_cast<int>(s.heads);
                const Tensor saved = on.empty(on.attention_saved_shape(s.batch, heads, s.queries, s.keys));
                on.run(ops::Attention{all(in[0]), all(in[1]), all(in[2]), heads, s.causal, out[0], saved});
                on.run(ops::AttentionBackward{in[3], all(in[0]), all(in[1]), all(in[2]), heads, s.causal,
                                              out[0], saved, all(out[1]), all(out[2]), all(out[3])});
              });
    }
  }
}

BOOST_AUTO_TEST_CASE(attention_with_a_bias_is_that_of_the_cpu) {
  Draw draw;
  const std::int64_t batch = 2, heads = 4;
  for (const bool causal : {false, true}) {
    for (const Shape& extents : {Shape{batch, heads, 40}, {1, heads, 1}, {batch, 1, 40}, {1, 1, 1}}) {
      const std::int64_t keys = causal ? 40 : 70;
      const Shape q{batch, heads, 40, 16}, k{batch, 2, keys, 16}, scores{batch, heads, 40, keys};
      compare("attention with a bias of " + to_string(extents),
              {activation(draw.normal(q)), activation(draw.normal(k)), activation(draw.normal(k)),
               activation(draw.normal(q)), fixed(draw.normal({extents[0], extents[1], extents[2], keys}))},
              {activation(unwritten(q)), activation(unwritten(q)), activation(unwritten(k)),
               activation(unwritten(k)), fixed(unwritten(scores))},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                const auto all = ops::all_columns;
                const Tensor saved = on.empty(on.attention_saved_shape(batch, heads, 40, keys));
                on.run(ops::Attention{
                    all(in[0]), all(in[1]), all(in[2]), 1, causal, out[0], saved, {}, 0, in[4]});
                on.run(ops::AttentionBackward{in[3],
                                              all(in[0]),
                                              all(in[1]),
                                              all(in[2]),
                                              1,
                                              causal,
                                              out[0],
                                              saved,
                                              all(out[1]),
                                              all(out[2]),
                                              all(out[3]),
                                              {},
                                              in[4],
                                              out[4]});
              });
    }
  }
}

/// [batch, time]: positions of documents that follow each other in each row, of up to `longest` tokens.
Tensor positions_of_documents(Draw& draw, std::int64_t batch, std::int64_t time, std::int64_t longest) {
  const Tensor positions = Tensor::empty({batch, time}, DType::int64),
               ends = draw.indices({batch * time}, longest);
  for (std::int64_t i = 0; i < positions.numel(); ++i) {
    const bool begins = i % time == 0 || ends.data<std::int64_t>()[i] == 0;
    positions.data<std::int64_t>()[i] = begins ? 0 : positions.data<std::int64_t>()[i - 1] + 1;
  }
  return positions;
}

BOOST_AUTO_TEST_CASE(rotary_of_positions_and_of_heads_behind_time_is_that_of_the_cpu) {
  Draw draw;
  for (const bool time_first : {false, true}) {
    for (const bool own : {false, true}) {
      const std::int64_t batch = 3, time = 37, heads = 5;
      const Shape shape = time_first ? Shape{batch, time, heads, 64} : Shape{batch, heads, time, 64};
      std::vector<Operand> inputs{activation(draw.normal(shape))};
      if (own) inputs.push_back(fixed(positions_of_documents(draw, batch, time, 9)));
      compare("rotary", inputs, {activation(unwritten(shape))},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                ops::Rotary op{in[0], ops::RotaryLayout::halves, 5e5f, 7, false, out[0]};
                op.scaling = {.factor = 8, .low = 1, .high = 4, .context = 64};
                op.time_first = time_first;
                if (own) op.positions = in[1];
                on.run(op);
              });
    }
  }
}

BOOST_AUTO_TEST_CASE(attention_of_documents_and_behind_a_cache_is_that_of_the_cpu) {
  Draw draw;
  for (const Lengths& s : {Lengths{2, 40, 40, 4, 2, 8, true},
                           {1, 70, 70, 3, 1, 64, true},
                           {2, 97, 97, 2, 2, 100, true},
                           {2, 1, 70, 4, 2, 16, true},
                           {2, 3, 70, 4, 2, 16, true},
                           {1, 33, 70, 2, 2, 197, true}}) {
    for (const bool saves : {false, true}) {
      const Shape queries{s.batch, s.queries, s.heads * s.width},
          cache{s.batch, s.key_heads, s.keys + 5, s.width};
      const Tensor positions = positions_of_documents(draw, s.batch, s.queries, 20);
      compare(fmt::format("attention of q {} to {} keys", to_string(queries), s.keys),
              {activation(draw.normal(queries)), activation(draw.normal(cache)),
               activation(draw.normal(cache)), fixed(positions)},
              {activation(unwritten(queries))}, [=](Backend& on, const Tensors& in, const Tensors& out) {
                const auto all = ops::all_columns;
                const int heads = static_cast<int>(s.heads);
                const Tensor saved =
                    saves ? on.empty(on.attention_saved_shape(s.batch, heads, s.queries, s.keys)) : Tensor();
                on.run(ops::Attention{all(in[0]), all(in[1]), all(in[2]), heads, true, out[0], saved, in[3],
                                      s.keys});
              });
      if (s.queries != s.keys || !saves) continue;
      const Shape keys{s.batch, s.keys, s.key_heads * s.width};
      compare(fmt::format("backward of attention of documents of {}", to_string(queries)),
              {activation(draw.normal(queries)), activation(draw.normal(keys)), activation(draw.normal(keys)),
               activation(draw.normal(queries)), fixed(positions)},
              {activation(unwritten(queries)), activation(unwritten(queries)), activation(unwritten(keys)),
               activation(unwritten(keys))},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                const auto all = ops::all_columns;
                const int heads = static_cast<int>(s.heads);
                const Tensor saved = on.empty(on.attention_saved_shape(s.batch, heads, s.queries, s.keys));
                on.run(ops::Attention{all(in[0]), all(in[1]), all(in[2]), heads, true, out[0], saved, in[4]});
                on.run(ops::AttentionBackward{in[3], all(in[0]), all(in[1]), all(in[2]), heads, true, out[0],
                                              saved, all(out[1]), all(out[2]), all(out[3]), in[4]});
              });
    }
  }
}

BOOST_AUTO_TEST_CASE(keys_whose_scores_are_minus_infinity_do_not_count_however_many_come_first) {
  Draw draw;
  const Tensor queries = Tensor::empty({1, 3, 8}), keys = Tensor::zeros({1, 50, 8});
  std::fill_n(queries.data<float>(), queries.numel(), 1e30f);
  std::fill_n(keys.data<float>(), 40 * 8, -1e30f);
  compare("attention to keys far away", {fixed(queries), fixed(keys), fixed(draw.normal({1, 50, 8}))},
          {fixed(unwritten({1, 3, 8}))}, [](Backend& on, const Tensors& in, const Tensors& out) {
            const auto all = ops::all_columns;
            const Tensor saved = on.empty(on.attention_saved_shape(1, 1, 3, 50));
            on.run(ops::Attention{all(in[0]), all(in[1]), all(in[2]), 1, false, out[0], saved});
          });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
