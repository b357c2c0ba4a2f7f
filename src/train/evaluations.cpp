#include "train/evaluations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::train {
namespace {

std::string prefix_of(const optim::EmaProfile* weights) {
  return weights ? fmt::format("eval_ema_{}_", weights->name()) : "eval_";
}

}  // namespace

std::vector<Evaluations::Weights> Evaluations::weights() const {
  std::vector<Weights> all{nullptr};
  if (parts_.ema) {
    for (const optim::EmaProfile& profile : parts_.ema->profiles()) all.push_back(&profile);
  }
  return all;
}

std::vector<std::string> Evaluations::metrics() const {
  std::vector<std::string> names;
  if (!parts_.dataset) return names;
  for (const Weights weights : this->weights()) {
    names.push_back(prefix_of(weights) + "loss");
    if (parts_.model.context() == 0) names.push_back(prefix_of(weights) + "accuracy");
  }
  return names;
}

void Evaluations::check_keep_best(const std::string& metric) const {
  const std::vector<std::string> names = metrics();
  if (metric.empty() || std::ranges::find(names, metric) != names.end()) return;
  throw UsageError("checkpoint.keep_best = {}: {}", metric,
                   names.empty()
                       ? "nothing is evaluated; give data.eval or data.eval_fraction"
                       : fmt::format("is not a metric of this run; one of {}", fmt::join(names, ", ")));
}

bool Evaluations::due_after(std::int64_t step) const {
  return parts_.dataset && step > 0 && ((every_ > 0 && step % every_ == 0) || step == last_step_);
}

std::int64_t Evaluations::left_after(std::int64_t step) const {
  if (!parts_.dataset || step >= last_step_) return 0;
  const std::int64_t regular = every_ > 0 ? (last_step_ - 1) / every_ - step / every_ : 0;
  return regular + 1;  // the last step's
}

void Evaluations::swap_in(Weights weights) {
  evaluated_ = weights;
  swapped_.reset();
  if (weights) swapped_.reset(new optim::Ema::SwappedIn(parts_.ema->swap_in(weights->name())));
}

void Evaluations::with_own_weights(const std::function<void()>& action) {
  swapped_.reset();
  action();
  swap_in(evaluated_);
}

std::optional<Evaluations::Result> Evaluations::run(const EvaluationWatch& watch) {
  Result result;
  const std::vector<Weights> all = weights();
  for (std::size_t w = 0; w < all.size(); ++w) {
    const auto act = [&](std::uint64_t of_any, double fraction) {
      const double of_all = (static_cast<double>(w) + fraction) / static_cast<double>(all.size());
      return watch.act(of_any, of_all);
    };
    swap_in(all[w]);
    std::optional<Evaluation> found;
    try {
      found = evaluate(parts_.model, parts_.tape, *parts_.dataset, parts_.world, parts_.compute,
                       {.requests = watch.requests, .act = act});
    } catch (...) {
      swap_in(nullptr);
      throw;
    }
    swap_in(nullptr);
    if (!found) return std::nullopt;
    result.metrics[prefix_of(all[w]) + "loss"] = found->loss;
    result.text += fmt::format("{}{} loss {:.4f}", w == 0 ? "" : "  ",
                               all[w] ? "ema/" + all[w]->name() : "eval", found->loss);
    if (!found->accuracy) continue;
    result.metrics[prefix_of(all[w]) + "accuracy"] = *found->accuracy;
    result.text += fmt::format(" accuracy {:.4f}", *found->accuracy);
  }
  return result;
}

}  // namespace lockstep::train
