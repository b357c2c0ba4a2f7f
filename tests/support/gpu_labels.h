// Which cases of a GPU's the emulated one leaves out: CTest's entries take them by these labels.
#pragma once

#include "support/ranks.h"

namespace lockstep::test {

/// Sizes of real models, by which nothing else is shown: emulated in campaigns only.
inline Labelled large() { return Labelled("large"); }
/// Never emulated: it would wait forever.
inline Labelled real() { return Labelled("real"); }

}  // namespace lockstep::test
