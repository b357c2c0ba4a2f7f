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
#include <vector>

#include "checkpoint/fit.h"

namespace lockstep::checkpoint {

struct Gpt2Adoption {
  std::vector<std::string> notes;  ///< what was done, a few words each; empty: nothing was to be done
  /// Two stored tensors that must hold the same values.
  struct Tie {
    std::size_t head, embedding;
  };
  std::optional<Tie> tie;
};

/// Renames tensors of `group` to what is wanted, and marks those that are to be transposed or ignored. Does
/// nothing unless the wanted names are a gpt's, and to no tensor that has a name and a layout wanted already.
Gpt2Adoption adopt_gpt2(std::vector<StoredTensor>& stored, const std::string& group,
                        std::span<const NamedTensor> wanted);

}  // namespace lockstep::checkpoint
