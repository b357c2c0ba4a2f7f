#include "lockstep/models/series.h"

#include "lockstep/models/registry.h"

namespace lockstep::models {
namespace {

/// The rows of a SeriesOptions in a struct that has it as `series`.
template <class Options>
std::vector<Option<Options>> series_rows() {
  return option::within<Options>(
      SeriesOptions::options(), [](auto& all) -> auto& { return all.series; });
}

template <class Options>
std::vector<Option<Options>> joined(std::vector<Option<Options>> rows, std::vector<Option<Options>> more) {
  rows.insert(rows.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return rows;
}

}  // namespace

std::vector<Option<SeriesOptions>> SeriesOptions::options() {
  using namespace option;
  using O = SeriesOptions;
  return {number("features", &O::features, widths, "numbers of a step of x [N, T, features]",
                 {.required = true, .peers = {"input_size", "n_features", "in_features", "enc_in"}}),
          number("outputs", &O::outputs, widths, "classes, or numbers of an output",
                 {.required = true, .peers = {"classes", "num_classes", "output_size", "c_out"}}),
          number("horizon", &O::horizon, {.low = 1, .high = widths.high, .or_zero = true},
                 "steps of a forecast, y [N, horizon, outputs]; 0: one output a series, or a step",
                 {.peers = {"prediction_length", "pred_len", "output_chunk_length"}}),
          choice("pooling", &O::pooling,
                 "what the head reads: the mean of the steps (default of encoder), the last one (of rnn), or "
                 "each: none")};
}

void SeriesOptions::check() const {
  if (horizon > 0 && pooling == Pooling::none)
    throw Misfit("pooling", "none gives each step an output, horizon a forecast of the series; remove one");
}

void SeriesModel::add_head(std::int64_t width) {
  head_.emplace(*this, "head", width, options_.outputs * std::max<std::int64_t>(1, options_.horizon));
  head_->mark_as_head();
}

std::string SeriesModel::output_lengths() const {
  return options_.pooling == Pooling::none ? "lengths" : options_.horizon > 0 ? "y_lengths" : "";
}

void SeriesModel::check_input(const Shape& x) const {
  const bool fits = x.rank() == 3 && x[2] == options_.features && x[1] > 0;
  if (fits && (context_ == 0 || x[1] <= context_)) return;
  throw DataError("a batch of shape {} does not fit the {}'s [batch, time, {}]{}; {}", to_string(x), name_,
                  options_.features, context_ == 0 ? "" : fmt::format(" with time <= {}", context_),
                  fits            ? "set model.context to the steps of the longest series"
                  : x.rank() == 3 ? "set model.features to the last extent of x"
                  : x.rank() == 2 ? "store a series of one number a step as x[:, :, None]"
                                  : "series are x [N, T, F]");
}

void SeriesModel::check_target(const Shape& y, bool labels) const {
  const bool by_step = options_.pooling == Pooling::none;
  Shape wanted{y.rank() > 0 ? y[0] : 0};
  if (by_step) wanted.append(y.rank() > 1 ? y[1] : 0);
  if (options_.horizon > 0) wanted.append(options_.horizon);
  const Shape of_one = wanted;
  if (!labels) wanted.append(options_.outputs);
  if (y == wanted || (options_.outputs == 1 && y == of_one)) return;
  throw DataError("field y of {} is {}, but the targets of this {} are [batch{}{}{}]; set model.{}",
                  labels ? "labels" : "numbers", to_string(y), name_, by_step ? ", time" : "",
                  options_.horizon > 0 ? fmt::format(", {}", options_.horizon) : "",
                  labels ? "" : fmt::format(", {}", options_.outputs),
                  labels ? "pooling (none: one label a step) or model.horizon"
                         : "outputs, model.horizon or model.pooling to y's extents");
}

Var SeriesModel::pooled(Tape& tape, const Batch& batch) {
  const Tensor &x = batch["x"], lengths = batch.has("lengths") ? batch["lengths"] : Tensor();
  check_input(x.shape());
  const Var input = tape.batch(x), h = states(lengths ? keep_steps(input, lengths) : input, lengths);
  if (options_.pooling == Pooling::none) return h;
  const bool last = options_.pooling == Pooling::last;
  if (lengths) return last ? last_of_lengths(h, lengths) : mean_over_lengths(h, lengths);
  const Shape& s = h.shape();
  return last ? reshape(narrow(h, 1, s[1] - 1, 1), {s[0], s[2]}) : mean(h, 1);
}

Var SeriesModel::forward(Tape& tape, const Batch& batch) {
  const Var y = (*head_)(pooled(tape, batch));
  return options_.horizon == 0 ? y : reshape(y, {y.shape()[0], options_.horizon, options_.outputs});
}

std::optional<Var> SeriesModel::features(Tape& tape, const Batch& batch) {
  if (options_.pooling == Pooling::none) return std::nullopt;
  return pooled(tape, batch);
}

std::vector<Option<Encoder::Options>> Encoder::Options::options() {
  using namespace option;
  using O = Options;
  return joined(
      series_rows<O>(),
      {number("context", &O::context, widths, "maximum steps of a series",
              {.required = true, .peers = {"max_len", "seq_len", "input_chunk_length"}}),
       number("layers", &O::layers, depths, "blocks",
              {.required = true, .peers = {"num_layers", "n_layers", "e_layers", "depth"}}),
       number("heads", &O::heads, widths, "attention heads",
              {.required = true, .peers = {"nhead", "n_heads", "num_heads"}}),
       number("channels", &O::channels, widths, "width of a step's state",
              {.required = true, .peers = {"d_model", "hidden_size", "dim"}}),
       number("mlp_channels", &O::mlp_channels, widths, "width between the two linear layers of a block",
              {.required = true, .peers = {"dim_feedforward", "d_ff", "mlp_dim"}}),
       flag("causal", &O::causal, "a step sees itself and the steps before it"),
       number("dropout", &O::dropout, Range::below(0, 1), "probability of zeroing an activation",
              {.keeps_weights = true}),
       recompute_option(&O::recompute)});
}

void Encoder::Options::check() const {
  series.check();
  if (heads > 0 && channels % heads != 0)
    throw Misfit("heads", fmt::format("{} does not divide channels = {}", heads, channels));
}

Encoder::Block::Block(nn::Module& parent, std::string_view name, const Options& o)
    : Layer(parent, name),
      self_attn(*this, "self_attn", o.channels, static_cast<int>(o.heads)),
      linear1(*this, "linear1", o.channels, o.mlp_channels),
      dropout(*this, "dropout", static_cast<float>(o.dropout)),
      linear2(*this, "linear2", o.mlp_channels, o.channels),
      norm1(*this, "norm1", o.channels),
      norm2(*this, "norm2", o.channels),
      dropout1(*this, "dropout1", static_cast<float>(o.dropout)),
      dropout2(*this, "dropout2", static_cast<float>(o.dropout)) {}

Residual Encoder::Block::forward(const Residual& input, bool causal, const AttentionBias& bias) {
  return run_encoder_block({norm1, self_attn, dropout1, norm2, linear1, dropout, linear2, dropout2}, input,
                           causal, bias);
}

Encoder::Encoder(const Options& o, std::uint64_t seed)
    : SeriesModel(checked(o).series, "encoder", o.context, seed),
      causal_(o.causal),
      recompute_(o.recompute),
      input_(*this, "input", o.series.features, o.channels),
      positions_(*this, "positions", o.context, o.channels),
      dropout_(*this, "dropout", static_cast<float>(o.dropout)),
      blocks_(*this, "encoder.layers"),
      norm_(*this, "encoder.norm", o.channels) {
  initialize(positions_.weight, nn::Init::normal(0.02f), seed);
  for (std::int64_t i = 0; i < o.layers; ++i) blocks_.emplace_back(o);
  add_head(o.channels);
}

Var Encoder::states(const Var& x, const Tensor& lengths) {
  Tape& tape = x.tape();
  AttentionBias bias;
  if (lengths) bias.key_mask = length_mask(tape, lengths, x.shape()[1]);
  Residual h{dropout_(add_positions(input_(x), tape.parameter(positions_.weight))), {}};
  for (Block& block : blocks_) h = run_block(block, h, recompute_, causal_, bias);
  return norm_(h.x, h.branch).norm;
}

std::vector<Option<Rnn::Options>> Rnn::Options::options() {
  using namespace option;
  using O = Options;
  return joined(
      series_rows<O>(),
      {choice("cell", &O::cell, "of the layers", {.peers = {"rnn_type", "model_type", "mode"}}),
       number("layers", &O::layers, depths, "layers, one on another",
              {.peers = {"num_layers", "n_layers", "n_rnn_layers"}}),
       number("hidden", &O::hidden, widths, "width of a layer's state",
              {.required = true, .peers = {"hidden_size", "hidden_dim", "channels"}}),
       number("dropout", &O::dropout, Range::below(0, 1),
              "probability of zeroing an output of a layer but the last", {.keeps_weights = true})});
}

Rnn::Rnn(const Options& o, std::uint64_t seed)
    : SeriesModel(checked(o).series, "rnn", 0, seed),
      rnn_(*this, "rnn", o.cell, o.series.features, o.hidden, o.layers, static_cast<float>(o.dropout)) {
  add_head(o.hidden);
}

Var Rnn::states(const Var& x, const Tensor&) { return rnn_(x); }

void register_series(Registry& registry) {
  registry.add<Encoder>("encoder");
  registry.add<Rnn>("rnn");
}

}  // namespace lockstep::models
