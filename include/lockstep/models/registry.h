// Registry: builds a model from its configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/option.h"
#include "lockstep/models/model.h"

namespace lockstep::models {

/// The section `model` of a configuration. 0 or empty: not given.
struct ModelConfig {
  std::string name{};  ///< mlp, resnet or gpt

  std::vector<std::int64_t> sizes{};  ///< mlp: widths, from the elements of a sample to the classes

  std::vector<std::int64_t> blocks{};  ///< resnet: blocks of each stage
  std::int64_t width = 0;              ///< resnet: channels of the first stage; stage k has width * 2^k
  std::int64_t in_channels = 0;        ///< resnet
  std::int64_t classes = 0;            ///< resnet

  std::int64_t layers = 0, heads = 0, channels = 0;  ///< gpt
  std::int64_t context = 0;                          ///< gpt: most tokens of a sequence
  std::int64_t vocab = 0;                            ///< gpt

  std::string batch_norm = "plain";  ///< resnet: plain or sync
  /// resnet: the first layer: "3x3", or "7x7", of stride 2 and with a max pool behind it, for images of 224 x
  /// 224
  std::string stem = "3x3";
  double dropout = 0;  ///< mlp, gpt
  /// resnet, gpt: of each block only the input is kept; the backward computes the rest again.
  bool recompute = false;

  static std::vector<Option<ModelConfig>> options();
};

/// Names that make_model knows.
std::span<const std::string> model_names();

/// Throws UsageError naming key and value: an unknown name (with the nearest known one), a missing key, one
/// that the model does not have, or values that do not fit each other. `seed` decides the initial parameters.
std::unique_ptr<Model> make_model(const ModelConfig& config, std::uint64_t seed);

}  // namespace lockstep::models
