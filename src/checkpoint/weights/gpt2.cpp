#include "checkpoint/weights/gpt2.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/elements.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/convert.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

/// What a configuration of GPT-2 may say. Weights of a model with another value fit, or nearly, and compute
/// something else.
struct ConfigKey {
  std::vector<const char*> names;  ///< of transformers' GPT2Config, also in its attribute_map; of nanoGPT
  std::vector<json> values;
  std::string ours;
};

std::vector<ConfigKey> config_keys(const Gpt2Sizes& sizes) {
  const auto size = [](const char* ours, std::int64_t value) { return fmt::format("{} is {}", ours, value); };
  return {
      {{"model_type"}, {"gpt2"}, "a gpt takes gpt2"},
      {{"architectures"},
       {json::array({"GPT2LMHeadModel"}), json::array({"GPT2Model"}), nullptr},
       "a gpt takes GPT2LMHeadModel"},
      {{"n_head", "num_attention_heads"}, {sizes.heads}, size("model.heads", sizes.heads)},
      {{"n_layer", "num_hidden_layers"}, {sizes.layers}, size("model.layers", sizes.layers)},
      {{"n_embd", "hidden_size"}, {sizes.channels}, size("model.channels", sizes.channels)},
      {{"n_positions", "max_position_embeddings", "block_size"},
       {sizes.context},
       size("model.context", sizes.context)},
      {{"vocab_size"}, {sizes.vocab}, size("model.vocab", sizes.vocab)},
      {{"activation_function"},
       {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"},  // one formula
       "a gpt has gelu_new"},
      {{"scale_attn_weights"}, {true}, "a gpt scales by the square root of a head's width"},
      {{"scale_attn_by_inverse_layer_idx"}, {false, nullptr}, "a gpt scales all layers alike"},
      {{"layer_norm_epsilon"}, {1e-5, 1e-5f}, "a gpt has 1e-05"},
      {{"add_cross_attention"}, {false, nullptr}, "a gpt has none"},
      {{"n_inner"}, {nullptr, 4 * sizes.channels}, "a gpt has 4 times model.channels"}};
}

}  // namespace

std::string gpt2_config_text(const std::string& origin, const nlohmann::json& config) {
  json known;
  for (const ConfigKey& key : config_keys({}))
    for (const char* const name : key.names)
      if (const auto found = config.find(name); found != config.end()) known[name] = *found;
  return known.is_null() ? "" : json_text({{origin, known}});
}

std::string gpt2_config_beside(const std::string& weights) {
  const std::string path = directory_of(weights) + "/config.json";
  if (!exists(path)) return "";
  const json config = json::parse(read_text(path), nullptr, false);
  if (!config.is_object())
    throw UsageError("{}: is not a JSON object, as config.json next to {} is", path, file_name_of(weights));
  return gpt2_config_text(path, config);
}

void check_gpt2_config(const std::string& weights, const std::string& text, const Gpt2Sizes& sizes) {
  const json stated = json::parse(text, nullptr, false);
  if (!stated.is_object() || stated.size() != 1 || !stated.front().is_object())
    throw DataError("{}: {} is damaged: {}", weights, gpt2_config_key, quote(text));
  const json& config = stated.front();
  const auto refuse = [&](std::string_view key, std::string_view there, const std::string& here) {
    throw UsageError("{}: {} is {}, but {}: {} has the weights of another model", stated.begin().key(), key,
                     there, here, weights);
  };
  const bool has_type = config.contains("model_type");
  for (const ConfigKey& key : config_keys(sizes)) {
    bool found = false;
    for (const char* const name : key.names) {
      const auto value = config.find(name);
      if (value == config.end() || (has_type && name == std::string_view("architectures"))) continue;
      found = true;
      if (std::ranges::find(key.values, *value) == key.values.end())
        refuse(name, quote(value->is_string() ? value->get<std::string>() : json_text(*value)), key.ours);
    }
    const bool is_whole = has_type || config.contains("architectures");  // so that defaults hold
    if (key.names.front() == std::string_view("n_head") && !found && is_whole && sizes.heads != 12)
      refuse("n_head", "missing, which means 12", key.ours);
  }
}

namespace {

constexpr std::string_view layout_name = "huggingface";

Tensor filled(const Shape& shape, DType dtype, std::span<const float> values) {
  const Tensor tensor = Tensor::empty(shape, dtype);
  if (!cast_elements(DType::float32, reinterpret_cast<const std::byte*>(values.data()), dtype,
                     static_cast<std::byte*>(tensor.raw()), tensor.numel()))
    throw DataError("a mask of attention cannot be {}", to_string(dtype));
  return tensor;
}

NamedTensor transposed(const std::string& name, const Tensor& matrix) {
  const Tensor out = Tensor::empty({matrix.size(1), matrix.size(0)}, matrix.dtype());
  transpose_elements(static_cast<const std::byte*>(matrix.raw()), matrix.size(0), matrix.size(1),
                     bytes_of(matrix.dtype()), static_cast<std::byte*>(out.raw()));
  return {name, out};
}

}  // namespace

std::string to_text(const Gpt2Layout& layout) {
  std::string text = fmt::format("{} prefix={}", layout_name, layout.prefix);
  if (!layout.head.empty()) text += fmt::format(" head={}", layout.head);
  if (!layout.embedding) text += " embedding=none";
  if (layout.mask) text += fmt::format(" mask={}", to_string(*layout.mask));
  if (layout.masked_bias) text += fmt::format(" masked_bias={}", to_string(*layout.masked_bias));
  return text;
}

std::optional<Gpt2Layout> gpt2_layout_in(std::string_view text) {
  const auto next_word = [&] {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return word;
  };
  if (next_word() != layout_name) return std::nullopt;
  Gpt2Layout layout;
  while (!text.empty()) {
    const std::string_view word = next_word();
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string_view key = word.substr(0, equals),
                           value = word.substr(std::min(equals + 1, word.size()));
    if (key == "prefix") layout.prefix = value;
    if (key == "head") layout.head = value;
    if (key == "embedding") layout.embedding = value != "none";
    if (key == "mask") layout.mask = gpt2_mask_dtype(value);
    if (key == "masked_bias") layout.masked_bias = gpt2_mask_dtype(value);
  }
  if (layout.head.empty()) layout.embedding = true;
  return layout;
}

std::optional<DType> gpt2_mask_dtype(std::string_view text) {
  for (const DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16, DType::uint8})
    if (text == to_string(dtype)) return dtype;
  return std::nullopt;
}

Tensor gpt2_mask(std::int64_t positions, DType dtype) {
  const Shape shape{1, 1, positions, positions};
  if (dtype == DType::uint8) {
    const Tensor mask = Tensor::zeros(shape, dtype);
    for (std::int64_t row = 0; row < positions; ++row)
      std::fill_n(mask.data<std::uint8_t>() + row * positions, row + 1, std::uint8_t{1});
    return mask;
  }
  std::vector<float> ones(static_cast<std::size_t>(positions * positions));
  for (std::int64_t row = 0; row < positions; ++row)
    std::fill_n(ones.begin() + row * positions, row + 1, 1.0f);
  return filled(shape, dtype, ones);
}

Tensor gpt2_masked_bias_of(DType dtype) {
  const float value = static_cast<float>(gpt2_masked_bias);
  return filled({}, dtype, {&value, 1});
}

bool is_gpt(std::span<const NamedTensor> tensors) {
  const bool embeds = std::ranges::count(tensors, gpt2_embedding_name, &NamedTensor::name) == 1;
  return embeds && has_fused_attention(tensors) &&
         std::ranges::all_of(
             tensors, [](const NamedTensor& tensor) { return tensor.name.starts_with(gpt2_model_prefix); });
}

std::vector<NamedTensor> in_layout(std::span<const NamedTensor> tensors, const Gpt2Layout& layout) {
  std::vector<NamedTensor> result;
  std::set<std::string> blocks;  // "h.0.attn."
  std::int64_t positions = 0;
  for (const NamedTensor& tensor : tensors) {
    const std::string within = tensor.name.substr(gpt2_model_prefix.size());
    const std::string name = layout.prefix + within;
    if (within == "wpe.weight") positions = tensor.value.size(0);
    if (const std::size_t at = within.find("attn.c_attn."); at != std::string::npos)
      blocks.insert(within.substr(0, at + std::string_view("attn.").size()));
    if (tensor.name == gpt2_embedding_name) {
      if (layout.embedding) result.push_back({name, tensor.value});
      if (!layout.head.empty()) result.push_back({layout.head, tensor.value});
    } else {
      result.push_back(is_gpt2_matrix(tensor.name) ? transposed(name, tensor.value)
                                                   : NamedTensor{name, tensor.value});
    }
  }
  for (const std::string& block : blocks) {
    if (layout.mask) result.push_back({layout.prefix + block + "bias", gpt2_mask(positions, *layout.mask)});
    if (layout.masked_bias)
      result.push_back({layout.prefix + block + "masked_bias", gpt2_masked_bias_of(*layout.masked_bias)});
  }
  return result;
}

namespace {

constexpr std::string_view head_name = "lm_head.weight", positions_name = "transformer.wpe.weight";

/// "attn.c_attn.weight" of "transformer.h.11.attn.c_attn.weight"; empty of anything else.
std::string_view within_block(std::string_view name) {
  constexpr std::string_view blocks = "transformer.h.";
  if (!name.starts_with(blocks)) return {};
  name.remove_prefix(blocks.size());
  const std::size_t digits = name.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos || name[digits] != '.') return {};
  return name.substr(digits + 1);
}

/// c_attn is never square, so its shape tells the layout: [in, out] is [n, 3 n].
bool is_fused_attention(std::string_view name, std::span<const std::int64_t> shape, bool out_first) {
  return within_block(name) == "attn.c_attn.weight" && shape.size() == 2 && shape[0] > 0 &&
         shape[out_first ? 0 : 1] / 3 == shape[out_first ? 1 : 0] && shape[out_first ? 0 : 1] % 3 == 0;
}

using Names = std::unordered_map<std::string_view, const NamedTensor*>;

std::string with_prefix(std::string_view name) {
  name = strip_wrapper_prefix(name);
  return name.starts_with(gpt2_model_prefix) ? std::string(name)
                                             : fmt::format("{}{}", gpt2_model_prefix, name);
}

}  // namespace

bool is_gpt2_matrix(std::string_view name) {
  constexpr std::array<std::string_view, 4> matrices{"attn.c_attn.weight", "attn.c_proj.weight",
                                                     "mlp.c_fc.weight", "mlp.c_proj.weight"};
  return std::ranges::find(matrices, within_block(name)) != matrices.end();
}

bool is_gpt2_mask(std::string_view name) {
  return within_block(name) == "attn.bias" || within_block(name) == "attn.masked_bias";
}

bool has_fused_attention(std::span<const NamedTensor> tensors) {
  return std::ranges::any_of(tensors, [](const NamedTensor& tensor) {
    return is_fused_attention(strip_wrapper_prefix(tensor.name), tensor.value.shape().extents(), true);
  });
}

bool has_transposed_attention(std::span<const NamedTensor> tensors) {
  return std::ranges::any_of(tensors, [](const NamedTensor& tensor) {
    return is_fused_attention(with_prefix(tensor.name), tensor.value.shape().extents(), false);
  });
}

Gpt2Adoption adopt_gpt2(std::vector<StoredTensor>& stored, const std::string& group,
                        std::span<const NamedTensor> requested) {
  Gpt2Adoption result;
  Names requested_names;
  for (const NamedTensor& tensor : requested)
    requested_names.emplace(strip_wrapper_prefix(tensor.name), &tensor);
  if (!requested_names.contains(gpt2_embedding_name) || !has_fused_attention(requested)) return result;

  std::size_t renamed = 0, matrices = 0;
  bool in_first = false;
  Gpt2Layout layout;
  std::optional<std::size_t> head_at, embedding_at;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    StoredTensor& tensor = stored[i];
    if (tensor.group != group) continue;
    const std::string name(strip_wrapper_prefix(tensor.name));
    const std::string stored_name = tensor.name;
    const std::string full = with_prefix(name);
    if (name == head_name && !requested_names.contains(head_name)) {
      head_at = i;
    } else if (is_gpt2_mask(full) && !requested_names.contains(full)) {
      tensor.ignored = true;
      result.masks.push_back(i);
    } else if (!requested_names.contains(name) && requested_names.contains(full)) {
      tensor.name = full;
      ++renamed;
    }
    if (full == gpt2_embedding_name) embedding_at = i;
    if (full == positions_name)
      layout.prefix =
          stored_name.substr(0, stored_name.size() - (positions_name.size() - gpt2_model_prefix.size()));
    in_first = in_first || is_fused_attention(full, tensor.shape, false);
  }
  if (in_first) {
    for (StoredTensor& tensor : stored) {
      if (tensor.group != group || tensor.ignored || tensor.shape.size() != 2) continue;
      if (!is_gpt2_matrix(strip_wrapper_prefix(tensor.name))) continue;
      tensor.transposed = true;
      ++matrices;
    }
  }
  if (head_at) layout.head = stored[*head_at].name;
  layout.embedding = embedding_at.has_value();
  if (in_first) result.layout = layout;
  if (head_at && embedding_at) {
    stored[*head_at].ignored = true;
    result.tie = {*head_at, *embedding_at};
  } else if (head_at) {
    stored[*head_at].name = gpt2_embedding_name;
  }

  if (renamed > 0)
    result.notes.push_back(fmt::format("{} names taken with transformer. before them", renamed));
  if (matrices > 0) result.notes.push_back(fmt::format("{} matrices stored [in, out] transposed", matrices));
  if (!result.masks.empty())
    result.notes.push_back(
        fmt::format("{} masks ignored (attn.bias, attn.masked_bias)", result.masks.size()));
  if (head_at) {
    result.notes.push_back(embedding_at ? "lm_head.weight ignored, which the embedding is, too"
                                        : "lm_head.weight taken for the embedding, which it is, too");
  }
  return result;
}

}  // namespace lockstep::checkpoint
