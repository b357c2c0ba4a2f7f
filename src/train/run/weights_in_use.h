// The weights of a run's model during evaluations and sampling: its own, or averages.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "lockstep/optim/ema.h"

namespace lockstep::train {

class WeightsInUse {
 public:
  /// null: the model has no averages.
  explicit WeightsInUse(optim::Ema* ema) : ema_(ema) {}

  optim::Ema* ema() const { return ema_; }

  /// During its life the model holds the averages of this rate; "": its own weights.
  class [[nodiscard]] Held {
   public:
    Held(WeightsInUse& weights, const std::string& rate) : weights_(weights) { weights_.hold(rate); }
    ~Held() { weights_.hold(""); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    WeightsInUse& weights_;
  };

  /// Calls `act` while the model holds its own weights.
  template <class Action>
  void with_own(const Action& action) {
    const std::string rate = rate_;
    hold("");
    action();
    hold(rate);
  }

 private:
  void hold(const std::string& rate) {
    rate_ = rate;
    swapped_.reset();
    if (!rate.empty()) swapped_.reset(new optim::Ema::SwappedIn(ema_->swap_in(rate)));
  }

  optim::Ema* ema_;
  std::string rate_;
  std::unique_ptr<optim::Ema::SwappedIn> swapped_;  // while the model holds averages
};

}  // namespace lockstep::train
