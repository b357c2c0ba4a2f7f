#include "checkpoint/gpt2_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

#include "lockstep/base/names.h"

namespace lockstep::checkpoint {
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
                        std::span<const NamedTensor> wanted) {
  Gpt2Adoption result;
  Names wanted_names;
  for (const NamedTensor& tensor : wanted) wanted_names.emplace(strip_wrapper_prefix(tensor.name), &tensor);
  if (!wanted_names.contains(gpt2_embedding_name) || !has_fused_attention(wanted)) return result;

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
    if (name == head_name && !wanted_names.contains(head_name)) {
      head_at = i;
    } else if (is_gpt2_mask(full) && !wanted_names.contains(full)) {
      tensor.ignored = true;
      result.masks.push_back(i);
    } else if (!wanted_names.contains(name) && wanted_names.contains(full)) {
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
