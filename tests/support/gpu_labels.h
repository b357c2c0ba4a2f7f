// Which cases of a GPU's the emulated one leaves out: CTest's entries take them by these labels.
#pragma once

#include <boost/test/unit_test.hpp>

namespace lockstep::test {

/// Sizes of real models, by which nothing else is shown: emulated in campaigns only.
inline boost::unit_test::label large() { return boost::unit_test::label("large"); }
/// Never emulated: it would wait for ever.
inline boost::unit_test::label real() { return boost::unit_test::label("real"); }

}  // namespace lockstep::test
