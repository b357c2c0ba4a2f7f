// Private to the module: a gpt's weights as Hugging Face's GPT-2 stores them, the way back of gpt2_names.h.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/contents.h"

namespace lockstep::checkpoint {

/// Of the provenance of whatever holds weights that came from such a file.
inline constexpr const char* weights_layout_key = "weights_layout";

/// In what files of that layout differ. By default as GPT2LMHeadModel.save_pretrained() writes them.
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
/// None of a text that says something else. What it does not say is as in the default.
std::optional<Gpt2Layout> gpt2_layout_in(std::string_view text);

/// Types that masks can be written in again, by name; none of others.
std::optional<DType> gpt2_mask_dtype(std::string_view text);
/// A block's attn.bias for that many positions: [1, 1, n, n].
Tensor gpt2_mask(std::int64_t positions, DType dtype);
Tensor gpt2_masked_bias_of(DType dtype);

/// Are these the weights of a gpt, with matrices as [out, in]?
bool is_gpt(std::span<const NamedTensor> tensors);
/// Names and matrices as that layout has them; tensors on the CPU, of which is_gpt() is true.
std::vector<NamedTensor> in_layout(std::span<const NamedTensor> tensors, const Gpt2Layout& layout);

}  // namespace lockstep::checkpoint
