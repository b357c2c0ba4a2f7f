// FunctionRef: a function to call now, without owning it (std::function_ref of C++26).
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace lockstep {

template <class Signature>
class FunctionRef;

/// Refers to a callable that outlives it; never allocates. For parameters.
template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <class Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef>) FunctionRef(const Callable& callable)
  noexcept  // NOLINT: a lambda is given as it is
      : callable_(std::addressof(callable)), call_([](const void* target, Arguments... arguments) -> Result {
          return (*static_cast<const Callable*>(target))(std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const {
    return call_(callable_, std::forward<Arguments>(arguments)...);
  }

 private:
  const void* callable_;
  Result (*call_)(const void*, Arguments...);
};

}  // namespace lockstep
