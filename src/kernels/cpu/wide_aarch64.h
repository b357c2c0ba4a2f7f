// Loops for the vectors of this processor (wide_x86_64.h).
#pragma once

namespace lockstep::kernels {

/// body(), for the vectors of LOCKSTEP_ARCH.
template <class Body>
void run_wide(const Body& body) {
  body();
}

}  // namespace lockstep::kernels
