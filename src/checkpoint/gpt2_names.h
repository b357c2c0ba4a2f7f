// Private to the room: weights that Hugging Face's GPT-2 wrote, as a gpt wants them.
//
// What differs: names may lack "transformer."; the four matrices of a block are stored [in, out] (Conv1D);
// attention masks are stored as if they were weights; the head, which is the embedding, may be stored, too,
// or instead. Source: transformers/models/gpt2/modeling_gpt2.py and pytorch_utils.py of Hugging Face.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/fit.h"
#include "checkpoint/gpt2_layout.h"

namespace lockstep::checkpoint {

inline constexpr std::string_view gpt2_model_prefix = "transformer.",
                                  gpt2_embedding_name = "transformer.wte.weight";

/// Names with transformer.: the four matrices of a block, and its masks.
bool is_gpt2_matrix(std::string_view name);
bool is_gpt2_mask(std::string_view name);
/// Is a matrix of attention there, as [out, in]? It is never square.
bool has_fused_attention(std::span<const NamedTensor> tensors);
/// The same as [in, out], under names with or without transformer.
bool has_transposed_attention(std::span<const NamedTensor> tensors);

struct Gpt2Adoption {
  std::vector<std::string> notes;  ///< what was done, a few words each; empty: nothing was to be done
  /// Two stored tensors that must hold the same values.
  struct Tie {
    std::size_t head, embedding;
  };
  std::optional<Tie> tie;
  std::vector<std::size_t> masks;    ///< stored tensors
  std::optional<Gpt2Layout> layout;  ///< but for masks; none unless matrices are stored [in, out]
};

/// Renames tensors of `group` to what is wanted, and marks those that are to be transposed or ignored. Does
/// nothing unless the wanted names are a gpt's, and to no tensor that has a name and a layout wanted already.
Gpt2Adoption adopt_gpt2(std::vector<StoredTensor>& stored, const std::string& group,
                        std::span<const NamedTensor> wanted);

}  // namespace lockstep::checkpoint
