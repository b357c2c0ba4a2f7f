// Operations that are made of others where a device has no way of its own.
#pragma once

#include "lockstep/ops/linear.h"

namespace lockstep::kernels {

class Backend;

void linear_activation(Backend& backend, const ops::LinearActivation& op);
void linear_backward_input_activation(Backend& backend, const ops::LinearBackwardInputActivation& op);

void enter_compositions(Backend& backend);

}  // namespace lockstep::kernels
