// Embedding: rows of a table.
#pragma once

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// weight: [rows, width], N(0, 1) at first; its role is that of an embedding.
class Embedding : public Layer<Embedding> {
 public:
  Embedding(Module& parent, std::string_view name, std::int64_t rows, std::int64_t width)
      : Layer(parent, name), weight(*this, "weight", {rows, width}, Init::normal(1)) {
    weight.role = Param::Role::embedding;
  }

  /// indices: int64, any shape; result [indices..., width].
  Var forward(Tape& tape, const Tensor& indices) { return embedding(indices, tape.use(weight)); }

  Parameter weight;
};

}  // namespace lockstep::nn
