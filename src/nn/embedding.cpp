#include "lockstep/nn/embedding.h"

namespace lockstep::nn {

Embedding::Embedding(Module& parent, std::string_view name, std::int64_t rows, std::int64_t width)
    : Layer(parent, name), weight(*this, "weight", {rows, width}, Init::normal(1)) {
  weight.role = Param::Role::embedding;
}

Var Embedding::forward(Tape& tape, const Tensor& indices) { return embedding(indices, tape.use(weight)); }

}  // namespace lockstep::nn
