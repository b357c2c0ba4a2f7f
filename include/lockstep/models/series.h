// Models of series, x [N, T, features]: encoder, a transformer, and rnn, of GRU or LSTM layers.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/models/model.h"
#include "lockstep/models/transformer.h"
#include "lockstep/nn/containers.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"
#include "lockstep/nn/recurrent.h"

namespace lockstep::models {

/// What the states of the steps become.
enum class Pooling : std::uint8_t {
  mean,  ///< one state: their mean
  last,  ///< one state: that of the last step
  none   ///< each has an output
};
constexpr auto words(Pooling) { return std::array{"mean", "last", "none"}; }  ///< of a configuration

/// Input and output of a model of series.
struct SeriesOptions {
  std::int64_t features = 0, outputs = 0;  ///< numbers of a step of x; classes, or numbers of an output
  std::int64_t horizon = 0;                ///< steps of a forecast; 0: none
  Pooling pooling = Pooling::mean;         ///< see Pooling

  static std::vector<Option<SeriesOptions>> options();  ///< of a configuration
  void check() const;                                   ///< Misfit
};

/// A model that makes a state of each step, and a linear layer `head`. Output: [N, outputs] of the pooled
/// states, [N, horizon, outputs], or without pooling [N, T, outputs]. A series without steps has the pooled
/// state 0, so that its output is the bias of the head.
class SeriesModel : public Model {
 public:
  static constexpr const char* task = "classification";

  std::vector<std::string> reads() const override { return {"x"}; }
  bool reads_lengths() const override { return true; }
  std::string output_lengths() const override;
  std::int64_t classes() const override { return options_.outputs; }
  void check_input(const Shape& x) const override;
  void check_target(const Shape& y, bool labels) const override;
  Var forward(Tape& tape, const Batch& batch) override;
  std::optional<Var> features(Tape& tape, const Batch& batch) override;

 protected:
  /// name: of the model; context: how many steps it takes, 0: any number.
  SeriesModel(const SeriesOptions& options, const char* name, std::int64_t context, std::uint64_t seed)
      : Model(seed), options_(options), name_(name), context_(context) {}
  /// To be called last in a constructor: the head reads states of this width.
  void add_head(std::int64_t width);
  /// x: [N, T, features], 0 where no step exists; lengths: int64 [N], or absent. Result [N, T, width].
  virtual Var states(const Var& x, const Tensor& lengths) = 0;

  const SeriesOptions options_;  ///< of the constructor
  const char* const name_;       ///< of the model, for errors
  const std::int64_t context_;   ///< maximum steps; 0: any number

 private:
  Var pooled(Tape& tape, const Batch& batch);
  std::optional<nn::Linear> head_;
};

/// input, a linear layer; positions, added to it; encoder, PyTorch's TransformerEncoder of
/// TransformerEncoderLayers with norm_first, GELU and a last norm; head. Attention sees the steps that exist.
/// Dropout as in PyTorch, and after the positions, but not of attention weights. Initial values are
/// PyTorch's; positions N(0, 0.02^2).
class Encoder final : public SeriesModel {
 public:
  struct Options {
    SeriesOptions series{};                            ///< input and output
    std::int64_t context = 0;                          ///< maximum steps of a series
    std::int64_t layers = 0, heads = 0, channels = 0;  ///< blocks; attention heads; width
    std::int64_t mlp_channels = 0;                     ///< between the two linear layers of a block
    bool causal = false;                               ///< a step sees itself and those before
    double dropout = 0;                                ///< probability of zeroing an activation
    bool recompute = false;                            ///< keeps the inputs of blocks only

    static std::vector<Option<Options>> options();
    void check() const;  ///< Misfit
  };
  Encoder(const Options& options, std::uint64_t seed);  ///< seed: of the initial parameters

  Shape sample_shape(std::int64_t) const override { return {context_, options_.features}; }

 private:
  struct Block : nn::Layer<Block> {
    Block(nn::Module& parent, std::string_view name, const Options& options);
    Residual forward(const Residual& input, bool causal, const AttentionBias& bias);

    nn::MultiheadAttention self_attn;
    nn::Linear linear1;
    nn::Dropout dropout;
    nn::Linear linear2;
    nn::LayerNorm norm1, norm2;
    nn::Dropout dropout1, dropout2;
  };
  Var states(const Var& x, const Tensor& lengths) override;

  bool causal_, recompute_;
  nn::Linear input_;
  nn::Embedding positions_;
  nn::Dropout dropout_;
  nn::List<Block> blocks_;
  nn::LayerNorm norm_;
};

/// rnn, PyTorch's GRU or LSTM with batch_first, and head. Series may have any number of steps.
class Rnn final : public SeriesModel {
 public:
  struct Options {
    SeriesOptions series{.pooling = Pooling::last};  ///< input and output
    nn::Cell cell = nn::Cell::gru;                   ///< gru or lstm
    std::int64_t layers = 1, hidden = 0;             ///< one on another; width of a layer's state
    double dropout = 0;  ///< probability of zeroing an output of a layer but the last

    static std::vector<Option<Options>> options();
    void check() const { series.check(); }  ///< Misfit
  };
  Rnn(const Options& options, std::uint64_t seed);  ///< seed: of the initial parameters

  Shape sample_shape(std::int64_t steps) const override { return {steps, options_.features}; }

 private:
  Var states(const Var& x, const Tensor& lengths) override;

  nn::Recurrent rnn_;
};

}  // namespace lockstep::models
