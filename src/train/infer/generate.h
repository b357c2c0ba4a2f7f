// Generation: a language model continues texts, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/kernels/backend.h"
#include "lockstep/models/model.h"

namespace lockstep::train {

using Tokens = std::vector<std::int64_t>;

struct GenerateOptions {
  std::int64_t tokens = 256;    ///< of each continuation, at most
  double temperature = 0.8;     ///< divides the logits; 0: always the most likely token
  std::int64_t top_k = 0;       ///< draws among the most likely tokens; 0: all
  double top_p = 1;             ///< draws among the most likely tokens that together have this probability
  std::int64_t vocabulary = 0;  ///< tokens from here on are never drawn; 0: all of the model's
  std::vector<std::int64_t> stop = {};  ///< tokens that end a text, and belong to it
  std::uint64_t seed = 1;
  DType compute = DType::float32;  ///< Pass::compute
};

/// Prompts that are continued together. Their number is part of how a text is computed: it does not depend on
/// ranks.
inline constexpr std::size_t prompts_at_once = 8;

/// The continuations of these prompts (none is empty), of which the first has number `first` among all. Draw
/// i of prompt n is keyed by (seed, n, i). each: called with prompt and token as they are drawn; may be null.
///
/// A model that reads positions keeps keys and values, and reads each token once; when its context is full,
/// it reads the second half of it again and goes on. Other models read as many of the last tokens as their
/// context holds for every token. UsageError if it is not a language model, or if an option is out of range.
std::vector<Tokens> generate(models::Model& model, kernels::Backend& backend, std::span<const Tokens> prompts,
                             std::size_t first, const GenerateOptions& options,
                             const std::function<void(std::size_t prompt, std::int64_t token)>& each = {});

}  // namespace lockstep::train
