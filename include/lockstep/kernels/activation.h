// The activation functions that kernels know.
#pragma once

namespace lockstep::kernels {

enum class Activation { relu, silu, gelu_erf, gelu_tanh };

}  // namespace lockstep::kernels
