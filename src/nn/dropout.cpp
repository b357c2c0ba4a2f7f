#include "lockstep/nn/dropout.h"

#include "lockstep/base/random.h"

namespace lockstep::nn {

Dropout::Dropout(Module& parent, std::string_view name, float p)
    : Layer(parent, name), p_(p), purpose_(purpose_of("dropout:" + path())) {
  if (!(p >= 0 && p < 1)) throw UsageError("{}: a dropout probability of {} is not in [0, 1)", path(), p);
}

}  // namespace lockstep::nn
