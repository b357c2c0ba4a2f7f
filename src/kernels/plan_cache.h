// PlanCache: the plans that a library prepared for problems, kept for later calls.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <utility>

namespace lockstep::kernels {

/// A Problem has hash() and ==. Finding a plan again allocates nothing. Where samples differ in size, each
/// step has problems of its own. The cache destroys a plan that nobody asked for while it made max_plans
/// others, before it makes max_plans more.
template <class Problem, class Plan>
class PlanCache {
 public:
  /// The plan of the problem. The first call creates it by make(), which returns a unique_ptr.
  template <class Make>
  Plan* get(const Problem& problem, const Make& make) {
    const auto found = plans_.find(problem);
    if (found != plans_.end()) return found->second.get();
    if (plans_.size() >= max_plans) older_ = std::exchange(plans_, {});
    if (auto known = older_.extract(problem)) return plans_.insert(std::move(known)).position->second.get();
    return plans_.emplace(problem, make()).first->second.get();
  }

  void clear() {
    plans_.clear();
    older_.clear();
  }

 private:
  static constexpr std::size_t max_plans = 1024;

  struct Hash {
    std::size_t operator()(const Problem& problem) const noexcept { return problem.hash(); }
  };
  std::unordered_map<Problem, std::unique_ptr<Plan>, Hash> plans_, older_;
};

}  // namespace lockstep::kernels
