// Decays of averages: plain rates with warm-up, and power-function profiles.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/optim/ema.h"

namespace lockstep::optim {
namespace {

/// The gamma > 0 of sigma_rel = sqrt((gamma + 1) / ((gamma + 2)^2 (gamma + 3))), which falls as gamma grows.
double gamma_of(double sigma_rel) {
  const auto wider = [&](double gamma) {
    return gamma + 1 > sigma_rel * sigma_rel * (gamma + 2) * (gamma + 2) * (gamma + 3);
  };
  double low = 0, high = 1;
  while (wider(high)) high *= 2;
  for (;;) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) return middle;
    (wider(middle) ? low : high) = middle;
  }
}

}  // namespace

EmaProfile::EmaProfile(double rate) : name_(fmt::format("{}", rate)), parameter_(rate) {
  if (!(rate >= 0 && rate < 1)) throw UsageError("EMA rate {} is not in [0, 1)", rate);
}

EmaProfile EmaProfile::power(double sigma_rel) {
  if (!(sigma_rel > 0 && sigma_rel < 0.28))
    throw UsageError("EMA width sigma_rel = {} is not between 0 and 0.28", sigma_rel);
  EmaProfile profile;
  profile.name_ = fmt::format("sigma_rel={}", sigma_rel);
  profile.parameter_ = sigma_rel;
  profile.gamma_ = gamma_of(sigma_rel);
  profile.power_ = true;
  return profile;
}

EmaProfile EmaProfile::named(std::string_view name) {
  constexpr std::string_view prefix = "sigma_rel=";
  const bool power = name.starts_with(prefix);
  const std::string_view digits = power ? name.substr(prefix.size()) : name;
  double number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size())
    throw UsageError("'{}' names no average: write 0.999, or sigma_rel=0.05", name);
  return power ? EmaProfile::power(number) : EmaProfile(number);
}

double EmaProfile::decay(std::int64_t n, const std::optional<EmaWarmup>& warmup) const {
  if (power_) return std::pow(1 - 1 / static_cast<double>(n), gamma_ + 1);
  if (!warmup) return parameter_;
  const std::int64_t since = n - warmup->update_after - 1;
  if (since <= 0) return 0;
  return std::min(parameter_,
                  1 - std::pow(1 + static_cast<double>(since) / warmup->inv_gamma, -warmup->power));
}

EmaBuffers ema_buffers_named(std::string_view name) {
  if (name == "copy") return EmaBuffers::copy;
  if (name == "average") return EmaBuffers::average;
  if (name == "leave") return EmaBuffers::leave;
  throw UsageError("'{}' is no rule for the buffers of averages: use copy, average or leave", name);
}

}  // namespace lockstep::optim
