// A gpt's weights as Hugging Face's GPT-2 stores them, both ways.
//
// Differences: names may lack "transformer."; the four matrices of a block are stored [in, out] (Conv1D);
// attention masks are stored like weights; the head, which is the embedding, may be stored as well or
// instead. Source: transformers/models/gpt2/modeling_gpt2.py and pytorch_utils.py of Hugging Face.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/load_plan.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep::checkpoint {

/// The sizes of the gpt that loads the weights.
struct Gpt2Sizes {
  std::int64_t heads = 0, layers = 0, channels = 0, context = 0, vocab = 0;
};

/// Provenance, or metadata of a file for Python: what other programs say of the gpt that the weights are of.
inline constexpr const char* gpt2_config_key = "gpt2_config";
/// Its text: where `config` is from, and those of its keys that say which GPT-2 it is and how that computes
/// (n_head, activation_function ...), under the names of transformers' GPT2Config or of nanoGPT's model_args.
/// Empty if it has none of them.
std::string gpt2_config_text(const std::string& origin, const nlohmann::json& config);
/// The same of config.json in the folder of the weights; empty if there is none. UsageError if it is no JSON
/// object; DataError if it cannot be read.
std::string gpt2_config_beside(const std::string& weights);
/// Compares such a text with the model. UsageError naming where it is from, the key and both values where
/// they differ; a configuration that names its model and no heads means 12, as in transformers. DataError if
/// it is none. `weights` is for errors.
void check_gpt2_config(const std::string& weights, const std::string& text, const Gpt2Sizes& sizes);

/// The key in the provenance of weights that came from such a file.
inline constexpr const char* weights_layout_key = "weights_layout";

/// The differences between files of that layout. The default is what GPT2LMHeadModel.save_pretrained()
/// writes.
struct Gpt2Layout {
  std::string prefix = "transformer.";    ///< of all names but the head's
  std::string head = {};                  ///< the name that the head is stored under; empty: it is not
  bool embedding = true;                  ///< false: stored under the head's name only
  std::optional<DType> mask = {};         ///< every block has attn.bias, a triangle of ones, in that type
  std::optional<DType> masked_bias = {};  ///< every block has attn.masked_bias, -10000
};

inline constexpr double gpt2_masked_bias = -1e4;

/// "huggingface prefix=transformer. head=lm_head.weight"
std::string to_text(const Gpt2Layout& layout);
/// Inverse of to_text; none for other texts. Missing words mean the default.
std::optional<Gpt2Layout> gpt2_layout_in(std::string_view text);

/// The type of this name if masks can be written in it.
std::optional<DType> gpt2_mask_dtype(std::string_view text);
/// A block's attn.bias for that many positions: [1, 1, n, n].
Tensor gpt2_mask(std::int64_t positions, DType dtype);
Tensor gpt2_masked_bias_of(DType dtype);

/// True for the weights of a gpt with matrices as [out, in].
bool is_gpt(std::span<const NamedTensor> tensors);
/// The tensors, for which is_gpt() is true, with the names and matrices of that layout. On the CPU.
std::vector<NamedTensor> in_layout(std::span<const NamedTensor> tensors, const Gpt2Layout& layout);

inline constexpr std::string_view gpt2_model_prefix = "transformer.",
                                  gpt2_embedding_name = "transformer.wte.weight";

// For names with "transformer.": the four matrices of a block, and its masks.
bool is_gpt2_matrix(std::string_view name);
bool is_gpt2_mask(std::string_view name);
/// True if there is an attention matrix stored as [out, in]. It is never square.
bool has_fused_attention(std::span<const NamedTensor> tensors);
/// The same for [in, out], under names with or without "transformer."
bool has_transposed_attention(std::span<const NamedTensor> tensors);

struct Gpt2Adoption {
  std::vector<std::string> notes;  ///< what was changed, a few words each
  /// Two stored tensors that must hold the same values.
  struct Tie {
    std::size_t head, embedding;
  };
  std::optional<Tie> tie;
  std::vector<std::size_t> masks;    ///< stored tensors
  std::optional<Gpt2Layout> layout;  ///< without masks; none unless matrices are stored [in, out]
};

/// Renames tensors of `group` to requested names, and marks those to transpose or ignore. Does nothing unless
/// the requested names are a gpt's, and leaves tensors that match already.
Gpt2Adoption adopt_gpt2(std::vector<StoredTensor>& stored, const std::string& group,
                        std::span<const NamedTensor> requested);

}  // namespace lockstep::checkpoint
