// What Hugging Face's config.json says of a GPT-2 and its weights do not: the number of heads, first of all.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::checkpoint {

/// Of the gpt that is to take the weights.
struct Gpt2Sizes {
  std::int64_t heads = 0, layers = 0, channels = 0, context = 0, vocab = 0;
};

/// Compares config.json in the folder of a .safetensors file with the model: model_type, n_head, n_layer,
/// n_embd, n_positions and vocab_size, as far as it has them. UsageError naming the file, the key and both
/// values where they differ, or if it is no JSON object; DataError if it cannot be read. Nothing if there is
/// no such file, or the weights are in another format. Not collective.
void check_gpt2_config(const std::string& weights, const Gpt2Sizes& sizes);

}  // namespace lockstep::checkpoint
