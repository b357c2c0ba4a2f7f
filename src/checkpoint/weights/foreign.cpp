#include "checkpoint/weights/foreign.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_set>

#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/elements.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {

using nlohmann::json;

namespace {

/// "attn.c_attn.weight" of "transformer.h.11.attn.c_attn.weight"; empty for other names.
std::string_view within_block(const ForeignWeights& by, std::string_view name) {
  if (by.blocks.empty() || !name.starts_with(by.blocks)) return {};
  name.remove_prefix(by.blocks.size());
  const std::size_t digits = name.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos || name[digits] != '.') return {};
  return name.substr(digits + 1);
}

std::string with_prefix(const ForeignWeights& by, std::string_view name) {
  name = strip_wrapper_prefix(name);
  return name.starts_with(by.prefix) ? std::string(name) : fmt::format("{}{}", by.prefix, name);
}

bool is_matrix(const ForeignWeights& by, std::string_view name) {
  return std::ranges::find(by.in_first, within_block(by, name)) != by.in_first.end();
}

/// The matrix whose shape tells the layout, if it is [factor n, n], or [n, factor n].
bool tells(const ForeignWeights& by, std::string_view name, std::span<const std::int64_t> shape,
           bool out_first) {
  if (by.in_first.empty() || within_block(by, name) != by.in_first.front() || shape.size() != 2) return false;
  const std::int64_t larger = shape[out_first ? 0 : 1], smaller = shape[out_first ? 1 : 0];
  return smaller > 0 && larger / by.factor == smaller && larger % by.factor == 0;
}

json read_foreign_config(const std::string& path) {
  json config = json::parse(read_text(path), nullptr, false);
  if (!config.is_object())
    throw UsageError("{}: is not a JSON object, unlike the usual config.json next to weights", path);
  return config;
}

/// The model's options that a configuration means, as texts. UsageError naming the file.
std::map<std::string, std::string> options_in(const ForeignWeights& by, const json& config,
                                              const std::string& path) {
  try {
    if (by.options_of) return by.options_of(config.dump());
  } catch (const std::exception& error) {
    throw UsageError("{}: {}", path, error.what());
  }
  std::map<std::string, std::string> options;
  for (const ForeignWeights::Key& key : by.config) {
    if (key.option.empty() || (!key.values.empty() && key.words.empty())) continue;
    for (const std::string_view name : key.names) {
      const auto found = config.find(name);
      if (found == config.end()) continue;
      const std::string text = json_text(*found);
      const auto value = std::ranges::find(key.values, text);
      if (key.words.empty())
        options[std::string(key.option)] = text;
      else if (value != key.values.end())  // check_foreign_config() refuses another one, by its name
        options[std::string(key.option)] = key.words[static_cast<std::size_t>(value - key.values.begin())];
    }
  }
  return options;
}

}  // namespace

std::map<std::string, std::string> foreign_options(const std::string& folder, const ForeignWeights& by) {
  const std::string path = folder + "/config.json";
  if (by.marker.empty() || !exists(path)) return {};
  return options_in(by, read_foreign_config(path), path);
}

std::string foreign_config(const WeightSource& source, KnownForeign known) {
  const auto text = [](const ForeignWeights& by, const std::string& origin, const json& config) {
    json stated;
    if (by.options_of && config.is_object()) stated = options_in(by, config, origin);
    for (const ForeignWeights::Key& key : by.config)
      for (const std::string_view name : key.names)
        if (const auto found = config.find(name); found != config.end()) stated[std::string(name)] = *found;
    return stated.is_null() ? "" : json_text({{origin, stated}});
  };
  const std::string beside = directory_of(source.path()) + "/config.json";
  for (const ForeignWeights* const by : known) {
    if (by->marker.empty() || source.index()) continue;
    const auto is_its = [&](const StoredTensor& tensor) {
      return within_block(*by, with_prefix(*by, tensor.name)) == by->marker;
    };
    std::string stated = text(*by, source.path() + ": model_args", source.model_args());
    if (stated.empty() && std::ranges::any_of(source.tensors(), is_its) && exists(beside)) try {
        stated = text(*by, beside, read_foreign_config(beside));
      } catch (const UsageError&) {
        if (known.size() == 1 || !by->options_of) throw;  // otherwise nobody says that it is this model
      }
    if (!stated.empty()) return stated;
  }
  return source.metadata(foreign_config_key);
}

void check_foreign_config(const std::string& weights, const std::string& text, const ForeignWeights& by,
                          const std::function<std::string(std::string_view)>& option) {
  const json stated = json::parse(text, nullptr, false);
  if (!stated.is_object() || stated.size() != 1 || !stated.front().is_object())
    throw DataError("{}: {} is damaged: {}", weights, foreign_config_key, quote(text));
  const json& config = stated.front();
  if (by.options_of) {
    for (const auto& [name, value] : config.items()) {
      const std::string ours = option(name);
      const json theirs = value.is_string() ? json::parse(value.get<std::string>(), nullptr, false) : json();
      if (ours.empty() || !(theirs.is_number() || theirs.is_boolean()))
        throw DataError("{}: {} is damaged: {}", weights, foreign_config_key, quote(text));
      // A shorter context computes the same; 0 stands for what follows from the others, which shapes tell.
      if (theirs != json::parse(ours) && name != "context" && ours != "0")
        throw UsageError("{}: means model.{} = {}, not {}: {} has the weights of another model",
                         stated.begin().key(), name, theirs.dump(), ours, weights);
    }
    return;
  }
  bool is_named = false;
  for (const ForeignWeights::Key& key : by.config) {
    std::vector<json> allowed;
    for (std::size_t i = 0; i < key.values.size(); ++i)
      if (key.words.empty() || key.words[i] == option(key.option))
        allowed.push_back(json::parse(key.values[i]));
    std::string ours(key.ours);
    if (!key.words.empty()) {
      ours = fmt::format("model.{} is {}", key.option, option(key.option));
    } else if (!key.option.empty()) {
      const std::string value = option(key.option);
      const json number = json::parse(value);
      allowed.push_back(number.is_boolean() ? number : json(number.get<double>() * key.times));
      if (ours.empty()) ours = fmt::format("model.{} is {}", key.option, value);
    }
    const auto check = [&](std::string_view name, const json& value, std::string_view stated_text) {
      if (std::ranges::find(allowed, value) != allowed.end()) return;
      throw UsageError("{}: {} is {}, but {}: {} has the weights of another model", stated.begin().key(),
                       name, stated_text, ours, weights);
    };
    bool found = false;
    for (const std::string_view name : key.names) {
      const auto value = config.find(name);
      if (value == config.end() || (key.names_model && is_named)) continue;
      found = true;
      check(name, *value, quote(value->is_string() ? value->get<std::string>() : json_text(*value)));
    }
    is_named = is_named || (key.names_model && found);
    if (!found && is_named && !key.missing.empty())
      check(key.names.front(), json::parse(key.missing), fmt::format("missing, which means {}", key.missing));
  }
}

namespace {

/// The differences between files of one layout.
struct ForeignLayout {
  std::string prefix{}, head{};  // of names, instead of the model's; name of the stored head, empty: none
  bool embedding = true;         // false: stored as the head only
  std::vector<std::optional<DType>> masks{};  // types of those that every block has, with their values
};

/// "huggingface prefix=transformer. head=lm_head.weight"
std::string to_text(const ForeignLayout& layout, const ForeignWeights& by) {
  std::string text = fmt::format("{} prefix={}", by.layout, layout.prefix);
  if (!layout.head.empty()) text += fmt::format(" head={}", layout.head);
  if (!layout.embedding) text += " embedding=none";
  for (std::size_t i = 0; i < layout.masks.size(); ++i)
    if (layout.masks[i]) text += fmt::format(" {}={}", by.masks[i].word, to_string(*layout.masks[i]));
  return text;
}

/// Inverse of to_text(); none for other texts. Missing words mean the other program's current layout.
std::optional<ForeignLayout> layout_in(std::string_view text, const ForeignWeights& by) {
  const auto next_word = [&] {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return word;
  };
  if (next_word() != by.layout) return std::nullopt;
  ForeignLayout layout{.prefix = std::string(by.prefix),
                       .masks = std::vector<std::optional<DType>>(by.masks.size())};
  while (!text.empty()) {
    const std::string_view word = next_word();
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string_view key = word.substr(0, equals),
                           value = word.substr(std::min(equals + 1, word.size()));
    if (key == "prefix") layout.prefix = value;
    if (key == "head") layout.head = value;
    if (key == "embedding") layout.embedding = value != "none";
    for (std::size_t i = 0; i < by.masks.size(); ++i)
      if (key == by.masks[i].word) layout.masks[i] = dtype_named(value);
  }
  if (layout.head.empty()) layout.embedding = true;
  return layout;
}

Tensor filled(const ForeignWeights::Mask& mask, std::int64_t positions, DType dtype) {
  const Shape shape = mask.triangle ? Shape{1, 1, positions, positions} : Shape{};
  const Tensor floats = Tensor::zeros(shape), out = Tensor::empty(shape, dtype);
  auto* const values = floats.data<float>();
  if (!mask.triangle) *values = mask.value;
  for (std::int64_t row = 0; mask.triangle && row < positions; ++row)
    std::fill_n(values + row * positions, row + 1, mask.value);
  if (dtype == DType::uint8) {
    std::transform(values, values + floats.numel(), out.data<std::uint8_t>(), [](float v) { return v > 0; });
  } else if (!cast_elements(DType::float32, static_cast<const std::byte*>(floats.raw()), dtype,
                            static_cast<std::byte*>(out.raw()), out.numel())) {
    throw DataError("the type {} of an attention mask is invalid", to_string(dtype));
  }
  return out;
}

std::vector<std::byte> elements_of(const WeightSource& source, std::size_t tensor) {
  std::vector<std::byte> elements(source.bytes_of(tensor));
  source.read(tensor, elements);
  return elements;
}

/// The common type of these tensors, one of each block, if they have the values of the mask.
std::optional<DType> type_of_mask(const WeightSource& source, std::span<const std::size_t> tensors,
                                  std::size_t blocks, const ForeignWeights::Mask& mask,
                                  std::int64_t positions) {
  if (tensors.empty() || tensors.size() != blocks) return std::nullopt;
  const std::optional<DType> dtype = source.tensors()[tensors.front()].dtype;
  if (!dtype || !(is_floating(*dtype) || dtype == DType::uint8)) return std::nullopt;
  const Tensor expected = filled(mask, positions, *dtype);
  const std::span values(static_cast<const std::byte*>(expected.raw()), expected.bytes());
  const bool same = std::ranges::all_of(tensors, [&](std::size_t i) {
    const StoredTensor& tensor = source.tensors()[i];
    return tensor.dtype == dtype && std::ranges::equal(tensor.shape, expected.shape().extents()) &&
           std::ranges::equal(elements_of(source, i), values);
  });
  return same ? dtype : std::nullopt;
}

/// The model's own tensors with the names and matrices of that layout, on the CPU.
std::vector<NamedTensor> in_layout(std::span<const NamedTensor> tensors, const ForeignLayout& layout,
                                   const ForeignWeights& by) {
  std::vector<NamedTensor> result, masks;
  std::set<std::string> blocks;  // "h.0."
  std::int64_t positions = 0;
  for (const NamedTensor& tensor : tensors) {
    const std::string name =
        tensor.name == by.head ? tensor.name : layout.prefix + tensor.name.substr(by.prefix.size());
    const std::string_view within = within_block(by, tensor.name);
    if (!within.empty()) blocks.insert(name.substr(0, name.size() - within.size()));
    if (tensor.name == by.positions) positions = tensor.value.size(0);
    Tensor value = tensor.value;
    if (is_matrix(by, tensor.name)) {
      value = Tensor::empty({value.size(1), value.size(0)}, value.dtype());
      transpose_elements(static_cast<const std::byte*>(tensor.value.raw()), value.size(1), value.size(0),
                         bytes_of(value.dtype()), static_cast<std::byte*>(value.raw()));
    }
    const bool is_head = tensor.name == by.embedding && !layout.head.empty();
    if (!is_head || layout.embedding) result.push_back({name, value});
    if (is_head) result.push_back({layout.head, value});
  }
  for (std::size_t i = 0; i < layout.masks.size(); ++i)
    if (const std::optional<DType> dtype = layout.masks[i])
      masks.push_back({std::string(by.masks[i].name), filled(by.masks[i], positions, *dtype)});
  for (const std::string& block : blocks)
    for (const NamedTensor& mask : masks) result.push_back({block + mask.name, mask.value});
  return result;
}

}  // namespace

void arrange(Weights& weights, const std::optional<std::string>& layout, const std::string& path,
             KnownForeign known) {
  const auto recorded = weights.provenance.find(weights_layout_key);
  std::vector<std::string_view> models;  // of that layout; these weights belong to none of them
  for (const ForeignWeights* const by : known) {
    const auto any_tells = [&](bool own) {
      return std::ranges::any_of(weights.tensors, [&](const NamedTensor& tensor) {
        return tells(*by, own ? tensor.name : with_prefix(*by, tensor.name), tensor.value.shape().extents(),
                     own);
      });
    };
    if (any_tells(false)) {
      if (layout != own_layout) return;
      throw UsageError(
          "{}: its matrices have the layout of {}; give --config RUN.ini, the {} that they must fit", path,
          by->program, by->model);
    }
    if (by->layout.empty() || (layout && *layout != by->layout)) continue;
    std::optional<ForeignLayout> target;
    if (recorded != weights.provenance.end()) target = layout_in(recorded->second, *by);
    if (layout && !target) target = layout_in(by->layout, *by);
    const bool is_own = std::ranges::any_of(weights.tensors,
                                            [&](const NamedTensor& tensor) {
                                              return within_block(*by, tensor.name) == by->marker;
                                            }) &&
                        (by->in_first.empty() || any_tells(true)) &&
                        std::ranges::count(weights.tensors, by->embedding, &NamedTensor::name) == 1 &&
                        std::ranges::all_of(weights.tensors, [&](const NamedTensor& tensor) {
                          return tensor.name.starts_with(by->prefix) || tensor.name == by->head;
                        });
    if (layout) models.push_back(by->model);
    if (!target || !is_own) continue;
    weights.tensors = in_layout(weights.tensors, *target, *by);
    return;
  }
  if (!models.empty())
    throw UsageError("{}: its weights do not belong to a {}, which the layout {} needs; leave --layout out",
                     path, fmt::join(models, " or "), *layout);
}

namespace {

/// Replaces part of the names of a group where that gives a requested name; returns how many names changed.
std::size_t replace_old_names(std::vector<StoredTensor>& stored, std::string_view group, std::string_view old,
                              std::string_view current,
                              const std::unordered_set<std::string_view>& requested) {
  std::size_t count = 0;
  for (StoredTensor& tensor : stored) {
    const std::size_t at = tensor.name.find(old);
    if (tensor.group != group || at == std::string::npos) continue;
    std::string name = tensor.name;
    name.replace(at, old.size(), current);
    if (!requested.contains(strip_wrapper_prefix(name))) continue;
    tensor.name = std::move(name);
    ++count;
  }
  return count;
}

}  // namespace

Adoption adopt(const ForeignWeights& by, const WeightSource& source, std::vector<StoredTensor>& stored,
               std::span<const NamedTensor> requested) {
  Adoption result;
  std::unordered_set<std::string_view> requested_names;
  for (const NamedTensor& tensor : requested) requested_names.insert(strip_wrapper_prefix(tensor.name));
  for (const auto& [old, current] : by.old_names) {
    if (const std::size_t count = replace_old_names(stored, source.group(), old, current, requested_names))
      result.notes.push_back(
          fmt::format("{} names of an earlier version ('{}' is '{}')", count, old, current));
  }
  if (by.layout.empty()) return result;

  std::size_t renamed = 0, matrices = 0, ignored = 0, blocks = 0;
  std::int64_t positions = 0;
  bool in_first = false;
  ForeignLayout layout = *layout_in(by.layout, by);
  std::vector<std::vector<std::size_t>> masks(by.masks.size());
  std::optional<std::size_t> head_at, embedding_at;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    StoredTensor& tensor = stored[i];
    if (tensor.group != source.group()) continue;
    const std::string stored_name = tensor.name, name(strip_wrapper_prefix(tensor.name)),
                      full = with_prefix(by, name);
    const std::string_view within = within_block(by, full);
    const auto mask = std::ranges::find(by.masks, within, &ForeignWeights::Mask::name);
    const bool is_requested = requested_names.contains(full);
    if (name == by.head && !requested_names.contains(name)) {
      head_at = i;
    } else if (mask != by.masks.end() && !is_requested) {
      tensor.ignored = true;
      masks[static_cast<std::size_t>(mask - by.masks.begin())].push_back(i);
      ++ignored;
    } else if (!requested_names.contains(name) && is_requested) {
      tensor.name = full;
      ++renamed;
    }
    if (full == by.embedding) embedding_at = i;
    if (full == by.positions) {
      layout.prefix = stored_name.substr(0, stored_name.size() - (full.size() - by.prefix.size()));
      if (!tensor.shape.empty()) positions = tensor.shape[0];
    }
    blocks += !by.marker.empty() && within == by.marker;
    in_first = in_first || tells(by, full, tensor.shape, false);
  }
  for (StoredTensor& tensor : stored) {
    if (!in_first || tensor.group != source.group() || tensor.ignored || tensor.shape.size() != 2) continue;
    if (!is_matrix(by, strip_wrapper_prefix(tensor.name))) continue;
    tensor.transposed = true;
    ++matrices;
  }
  if (head_at) layout.head = stored[*head_at].name;
  layout.embedding = embedding_at.has_value();
  if (in_first) {
    for (std::size_t i = 0; i < masks.size(); ++i)
      layout.masks[i] = type_of_mask(source, masks[i], blocks, by.masks[i], positions);
    result.layout = to_text(layout, by);
  }
  if (head_at && embedding_at) {
    StoredTensor &head = stored[*head_at], &embedding = stored[*embedding_at];
    head.ignored = true;
    if (head.shape != embedding.shape || head.type_name != embedding.type_name ||
        elements_of(source, *head_at) != elements_of(source, *embedding_at))
      result.problems.push_back(fmt::format(
          "{} differs from the embedding {}, which is also this model's head", by.head, by.embedding));
  } else if (head_at) {
    stored[*head_at].name = by.embedding;
  }

  const auto note = [&](bool is_so, const std::string& text) {
    if (is_so) result.notes.push_back(text);
  };
  note(renamed > 0, fmt::format("{} names read with the prefix {}", renamed, by.prefix));
  note(matrices > 0, fmt::format("{} matrices stored [in, out] transposed", matrices));
  std::vector<std::string_view> names;
  for (const ForeignWeights::Mask& mask : by.masks) names.push_back(mask.name);
  note(ignored > 0, fmt::format("{} masks ignored ({})", ignored, fmt::join(names, ", ")));
  note(head_at && embedding_at, fmt::format("{} ignored, as it equals the embedding", by.head));
  note(head_at && !embedding_at, fmt::format("{} read as the embedding, as they are the same", by.head));
  return result;
}

}  // namespace lockstep::checkpoint
