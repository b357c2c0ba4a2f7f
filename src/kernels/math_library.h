// The library of matrix products and convolutions on CPUs.
#pragma once

#include <string>

namespace lockstep::kernels {

/// The bits of products depend on the instruction set and the version.
struct MathLibrary {
  std::string instruction_set;  ///< as the library that multiplies names it: "avx2", "neoversen1"
  std::string version;          ///< "oneDNN 3.7.2"; on Arm "oneDNN 3.7.2, OpenBLAS 0.3.29"
  std::string build;            ///< hashes and settings of these builds, in their own words
};
const MathLibrary& math_library();

}  // namespace lockstep::kernels
