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

/// The continuation of `prompt` (not empty). The model sees as many of the last tokens as its context holds.
/// Draw i is keyed by (seed, i). Tokens that the model knows beyond the vocabulary are not drawn. Throws
/// UsageError if it is not a language model or knows fewer, or an option is out of range.
std::string generate(models::Model& model, const data::Tokenizer& tokenizer, kernels::Backend& backend,
                     const std::string& prompt, const GenerateOptions& options = {});

}  // namespace lockstep::train
