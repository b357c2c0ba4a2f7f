#include "base/dynamic_library.h"

#include <dlfcn.h>

namespace lockstep {

DynamicLibrary::DynamicLibrary(const std::string& file, const std::vector<std::string>& folders,
                               const std::string& remedy)
    : file_(file), remedy_(remedy) {
  handle_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_) return;
  const std::string why = ::dlerror();
  for (const std::string& folder : folders) {
    handle_ = ::dlopen((folder + "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) return;
  }
  throw LibraryError(fmt::format("{}: cannot load the library: {}", file, why), remedy);
}

void* DynamicLibrary::address_of(const char* name) const {
  void* const address = ::dlsym(handle_, name);
  if (!address) throw LibraryError(fmt::format("{}: has no function {}", file_, name), remedy_);
  return address;
}

}  // namespace lockstep
