#include "kernels/cuda/libraries.h"

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/dynamic_library.h"

namespace lockstep::kernels {

#define LOCKSTEP_LATE_FUNCTION(name) decltype(&::name) name = nullptr;
LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
#undef LOCKSTEP_LATE_FUNCTION

namespace {

/// The versions that this was built for; their own folder first among those that the system does not search.
void load_all() {
  const std::vector<std::string> folders{LOCKSTEP_CUDA_FOLDER, LOCKSTEP_CUDNN_FOLDER,
                                         "/usr/local/cuda/lib64"};
  const std::string remedy = "install it, load its module, or name its folder in LD_LIBRARY_PATH";
  const DynamicLibrary cublaslt(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), folders, remedy);
  const DynamicLibrary cudnn(fmt::format("libcudnn.so.{}", CUDNN_MAJOR), folders, remedy);
#define LOCKSTEP_FIND(name) cublaslt.find(#name, name);
  LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_FIND)
#undef LOCKSTEP_FIND
#define LOCKSTEP_FIND(name) cudnn.find(#name, name);
  LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_FIND)
#undef LOCKSTEP_FIND
  constexpr std::size_t min_cudnn = 91000;  // LockstepCuda.cmake says why
  if (const std::size_t version = cudnnGetVersion(); version < min_cudnn)
    throw LibraryError(fmt::format("libcudnn.so.{}: is cuDNN {}.{}.{}; 9.10 or later is needed", CUDNN_MAJOR,
                                   version / 10000, version / 100 % 100, version % 100),
                       remedy);
}

}  // namespace

void load_cuda_libraries() {
  static const bool loaded = (load_all(), true);
  static_cast<void>(loaded);
}

}  // namespace lockstep::kernels
