// Embedding: rows of a table.
#pragma once

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// weight: [rows, width], N(0, 1) at first; its role is that of an embedding.
class Embedding : public Layer<Embedding> {
 public:
  Embedding(Module& parent, std::string_view name, std::int64_t rows, std::int64_t width);

  /// indices: int64, any shape; result [indices..., width].
  Var forward(Tape& tape, const Tensor& indices);

  Parameter weight;
};

}  // namespace lockstep::nn
