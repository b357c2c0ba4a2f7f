#include "lockstep/models/registry.h"

#include <array>

#include "base/text.h"
#include "models/gpt.h"
#include "models/mlp.h"
#include "models/resnet.h"

namespace lockstep::models {
namespace {

/// A key with a number or a list of numbers; a single number is a list of one, 0 an empty list.
struct Key {
  const char* name;
  std::vector<std::int64_t> values;
};

std::vector<std::int64_t> given(std::int64_t value) {
  return value == 0 ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{value};
}

void require_given(const std::string& model, const Key& key) {
  if (key.values.empty()) throw UsageError("model.{} is missing; {} needs it", key.name, model);
  for (const std::int64_t value : key.values) {
    if (value < 1) throw UsageError("model.{} = {} must be at least 1", key.name, value);
  }
}

void require_absent(const std::string& model, const Key& key) {
  if (!key.values.empty())
    throw UsageError("model.{} = {} is no key of {}; remove it", key.name, key.values.front(), model);
}

void check_keys(const ModelConfig& config) {
  const auto check = [&](const char* model, std::initializer_list<Key> keys) {
    for (const Key& key : keys)
      config.name == model ? require_given(model, key) : require_absent(config.name, key);
  };
  check("mlp", {{"sizes", config.sizes}});
  check("resnet", {{"blocks", config.blocks},
                   {"width", given(config.width)},
                   {"in_channels", given(config.in_channels)},
                   {"classes", given(config.classes)}});
  check("gpt", {{"layers", given(config.layers)},
                {"heads", given(config.heads)},
                {"channels", given(config.channels)},
                {"context", given(config.context)},
                {"vocab", given(config.vocab)}});
}

void check_options(const ModelConfig& config) {
  if (config.batch_norm != "plain" && config.batch_norm != "sync")
    throw UsageError("model.batch_norm = {} is unknown; plain or sync", config.batch_norm);
  if (config.batch_norm == "sync" && config.name != "resnet")
    throw UsageError("model.batch_norm = sync: {} has no batch norm; remove it", config.name);
  if (config.stem != "3x3" && config.stem != "7x7")
    throw UsageError("model.stem = {} is unknown; 3x3 or 7x7", config.stem);
  if (config.stem != "3x3" && config.name != "resnet")
    throw UsageError("model.stem = {}: {} has no stem; remove it", config.stem, config.name);
  if (!(config.dropout >= 0 && config.dropout < 1))
    throw UsageError("model.dropout = {} is not in [0, 1)", config.dropout);
  if (config.dropout > 0 && config.name == "resnet")
    throw UsageError("model.dropout = {}: resnet has no dropout; remove it", config.dropout);
  if (config.recompute && config.name == "mlp")
    throw UsageError("model.recompute = true: mlp has no blocks to compute again; remove it");
}

void check_fit(const ModelConfig& config) {
  constexpr std::size_t most_stages = 16;
  if (config.name == "mlp" && config.sizes.size() < 2)
    throw UsageError("model.sizes = {} names one width; give at least the input's and the output's",
                     config.sizes.front());
  if (config.name == "resnet" && config.blocks.size() > most_stages)
    throw UsageError("model.blocks names {} stages; at most {}", config.blocks.size(), most_stages);
  if (config.name == "gpt" && config.channels % config.heads != 0)
    throw UsageError("model.heads = {} does not divide model.channels = {}", config.heads, config.channels);
}

}  // namespace

std::span<const std::string> model_names() {
  static const std::array<std::string, 3> names{"mlp", "resnet", "gpt"};
  return names;
}

std::vector<Option<ModelConfig>> ModelConfig::options() {
  using namespace option;
  using M = ModelConfig;
  // Widths that 32 bits hold: a product of two of them is a number still.
  const Range width = Range::from(0, 2147483647), depth = Range::from(0, 10000);
  const Range given_width = Range::from(1, 2147483647), given_depth = Range::from(1, 10000);
  return {
      text("name", &M::name, "mlp, resnet or gpt", {.peers = {"model", "arch", "architecture", "type"}},
           "mlp, resnet, gpt"),
      numbers("sizes", &M::sizes, given_width, "mlp: widths from input to classes",
              {.peers = {"hidden_sizes", "layer_sizes", "dims"}}),
      numbers("blocks", &M::blocks, given_depth, "resnet: blocks of each stage"),
      number("width", &M::width, width, "resnet: channels of the first stage"),
      number("in_channels", &M::in_channels, width, "resnet: channels of an image"),
      number("classes", &M::classes, width, "resnet: classes", {.peers = {"num_classes", "n_classes"}}),
      number("layers", &M::layers, depth, "gpt: blocks",
             {.peers = {"n_layer", "n_layers", "num_layers", "depth"}}),
      number("heads", &M::heads, width, "gpt: attention heads",
             {.peers = {"n_head", "n_heads", "num_heads"}}),
      number("channels", &M::channels, width, "gpt: width",
             {.peers = {"n_embd", "d_model", "hidden_size", "embed_dim", "dim"}}),
      number("context", &M::context, width, "gpt: tokens of a sample",
             {.peers = {"block_size", "n_positions", "n_ctx", "seq_len", "sequence_length", "max_seq_len"}}),
      number("vocab", &M::vocab, width, "gpt: tokens known", {.peers = {"vocab_size"}}),
      choice("stem", &M::stem, {"3x3", "7x7"}, "resnet: first layer; 7x7 quarters the image"),
      choice("batch_norm", &M::batch_norm, {"plain", "sync"}, "whose statistics: the shard's, or all ranks'",
             {.peers = {"sync_bn", "sync_batchnorm", "sync_batch_norm"}}),
      number("dropout", &M::dropout, Range::below(0, 1), "probability of zeroing an activation"),
      flag(
          "recompute", &M::recompute,
          "keep only the inputs of blocks and compute the rest again in the backward: less memory, same bits",
          {.peers = {"gradient_checkpointing", "activation_checkpointing", "checkpointing",
                     "recompute_activations"}}),
  };
}

std::unique_ptr<Model> make_model(const ModelConfig& config, std::uint64_t seed) {
  if (config.name.empty()) throw UsageError("model.name is missing; mlp, resnet or gpt");
  if (config.name != "mlp" && config.name != "resnet" && config.name != "gpt") {
    const std::string nearest = nearest_name(config.name, model_names());
    throw UsageError("model.name = {} is unknown; {}", config.name,
                     nearest.empty() ? std::string("mlp, resnet or gpt") : "did you mean '" + nearest + "'?");
  }
  check_keys(config);
  check_options(config);
  check_fit(config);
  if (config.name == "mlp") return std::make_unique<Mlp>(config, seed);
  if (config.name == "resnet") return std::make_unique<Resnet>(config, seed);
  return std::make_unique<Gpt>(config, seed);
}

std::string summary(const ModelState& state) {
  const std::int64_t all = nn::count_parameters(state), frozen = all - nn::count_parameters(state, true);
  const std::string text =
      fmt::format("{} in {}", pluralized(all, "parameter"), pluralized(state.params.size(), "tensor"));
  return frozen == 0 ? text : fmt::format("{}, {} of them frozen", text, frozen);
}

}  // namespace lockstep::models
