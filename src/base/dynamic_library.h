// A shared library that is loaded on first use, so that the program starts without it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

/// The text is "cause; remedy".
class LibraryError final : public UsageError {
 public:
  LibraryError(std::string why, std::string what_to_do)
      : UsageError("{}; {}", why, what_to_do), cause(std::move(why)), remedy(std::move(what_to_do)) {}
  std::string cause, remedy;
};

/// Stays loaded until the process ends.
class DynamicLibrary {
 public:
  /// Searches the system's paths (LD_LIBRARY_PATH, ldconfig), then the folders. Throws LibraryError with the
  /// file, the cause and `remedy`.
  DynamicLibrary(const std::string& file, const std::vector<std::string>& folders, const std::string& remedy);

  /// Sets a pointer to the function of this name. LibraryError naming both if the library has none.
  template <class Function>
  void find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;

  void* handle_ = nullptr;
  std::string file_, remedy_;
};

}  // namespace lockstep
