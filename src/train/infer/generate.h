// Generation: a language model continues a text, token by token.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/data/tokenizer.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/models/model.h"

namespace lockstep::train {

struct GenerateOptions {
  std::int64_t tokens = 256;
  double temperature = 0.8;  ///< divides the logits; 0: always the most likely token
  std::uint64_t seed = 1;
  DType compute = DType::float32;  ///< Pass::compute
};

/// The continuation of `prompt` (not empty). The model reads as many of the last tokens as its context holds.
/// Draw i is keyed by (seed, i). Tokens beyond the vocabulary are never drawn. Throws UsageError if it is not
/// a language model or has fewer tokens, or if an option is out of range.
std::string generate(models::Model& model, const data::Tokenizer& tokenizer, kernels::Backend& backend,
                     const std::string& prompt, const GenerateOptions& options = {});

}  // namespace lockstep::train
