// Generation: a language model continues texts, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/kernels/backend.h"
#include "lockstep/models/model.h"
#include "train/sections.h"

namespace lockstep::train {

using Tokens = std::vector<std::int64_t>;

/// Prompts that are continued together. Their number is part of how a text is computed: it does not depend on
/// ranks.
inline constexpr std::size_t prompts_at_once = 8;

/// The continuations of these prompts (none is empty), of which the first has number `first` among all. Draw
/// i of prompt n is keyed by (seed, n, i). each: called with prompt and token as they are drawn; may be null.
///
/// A model that reads positions keeps keys and values, and reads each token once; when its context is full,
/// it reads the second half of it again and goes on. Other models read as many of the last tokens as their
/// context holds for every token. UsageError if it is not a language model, or if an option is out of range;
/// TrainingError if logits are not finite.
std::vector<Tokens> generate(models::Model& model, kernels::Backend& backend, std::span<const Tokens> prompts,
                             std::size_t first, const GenerateOptions& options,
                             const std::function<void(std::size_t prompt, std::int64_t token)>& each = {});

}  // namespace lockstep::train
