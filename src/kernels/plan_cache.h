// PlanCache: the plans that a library prepared for problems, kept for later calls.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>

namespace lockstep::kernels {

/// A Problem has hash() and ==. Finding a plan again allocates nothing.
template <class Problem, class Plan>
class PlanCache {
 public:
  /// The plan of the problem. The first call creates it by make(), which returns a unique_ptr.
  template <class Make>
  Plan* get(const Problem& problem, const Make& make) {
    const auto found = plans_.find(problem);
    if (found != plans_.end()) return found->second.get();
    return plans_.emplace(problem, make()).first->second.get();
  }

  void clear() { plans_.clear(); }

 private:
  struct Hash {
    std::size_t operator()(const Problem& problem) const noexcept { return problem.hash(); }
  };
  std::unordered_map<Problem, std::unique_ptr<Plan>, Hash> plans_;
};

}  // namespace lockstep::kernels
