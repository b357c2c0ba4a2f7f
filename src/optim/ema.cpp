#include "lockstep/optim/ema.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/ops/update.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {
namespace {

void check_different(std::span<const EmaProfile> profiles) {
  for (std::size_t a = 0; a < profiles.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      if (profiles[a].name() == profiles[b].name())
        throw UsageError("EMA rate {} occurs twice", profiles[a].name());
}

/// inv_gamma, power and update_after; empty: no warm-up.
Option<EmaOptions> warmup_option() {
  static constexpr Range numbers = Range::from(0, 1e15);
  return {{"warmup",
           "numbers",
           numbers.text(),
           "inv_gamma, power and update_after (steps) of a warm-up",
           {.peers = {"ema_warmup"}},
           {}},
          [](EmaOptions& options, const std::string& value) {
            const std::vector<std::string> parts = option::words_of(value);
            options.warmup.reset();
            if (parts.empty()) return;
            EmaWarmup& warmup = options.warmup.emplace();
            if (parts.size() != 3) throw UsageError("takes three numbers: inv_gamma power update_after");
            option::read(parts[0], numbers, warmup.inv_gamma);
            option::read(parts[1], numbers, warmup.power);
            option::read(parts[2], numbers, warmup.update_after);
          },
          [](const EmaOptions& options) {
            const std::optional<EmaWarmup>& warmup = options.warmup;
            return warmup ? fmt::format("{} {} {}", warmup->inv_gamma, warmup->power, warmup->update_after)
                          : std::string();
          }};
}

}  // namespace

std::vector<Option<EmaOptions>> EmaOptions::options() {
  return {
      warmup_option(),
      option::choice(
          "buffers", &EmaOptions::buffers,
          "buffers of EMA weights: a copy of the model's, their average, or none (the model's are used)")};
}

void EmaOptions::check() const {
  if (warmup && !(warmup->inv_gamma > 0))
    throw Misfit("warmup", "its first number, inv_gamma, must be positive");
}

Ema::Ema(const ModelState& state, kernels::Backend& backend, std::vector<EmaProfile> profiles,
         EmaOptions options)
    : Ema(state, nullptr, &backend, std::move(profiles), options) {}

Ema::Ema(const ModelState& state, std::vector<EmaProfile> profiles, EmaOptions options)
    : Ema(state, state.backend ? nullptr : kernels::make_cpu_backend(), state.backend, std::move(profiles),
          options) {}

Ema::Ema(const ModelState& state, std::unique_ptr<kernels::Backend> own_backend, kernels::Backend* backend,
         std::vector<EmaProfile> profiles, EmaOptions options)
    : own_backend_(std::move(own_backend)),
      backend_(own_backend_ ? *own_backend_ : *backend),
      profiles_(std::move(profiles)),
      options_(options),
      params_(state.params) {
  check_different(profiles_);
  option::check(options_, "ema.");
  for (Param* const param : state.params)
    leaves_.push_back({.name = &param->name, .value = &param->value, .averaged = true});
  if (options_.buffers != EmaBuffers::leave)
    for (Buffer* const buffer : state.buffers)
      leaves_.push_back(
          {.name = &buffer->name,
           .value = &buffer->value,
           .averaged = options_.buffers == EmaBuffers::average && buffer->value.dtype() == DType::float32});
  if (options_.partition) options_.partition = &partition_.emplace(*options_.partition);
  if (partition_ && *partition_ != Partition(params_, partition_->transport()))
    throw UsageError("EMA: the partition belongs to another model");
  targets_.reserve(leaves_.size() * profiles_.size());
  for (std::size_t i = 0; i < leaves_.size(); ++i)
    for (std::size_t p = 0; p < profiles_.size(); ++p)
      targets_.push_back(
          {.average = backend_.empty(followed(i).shape(), leaves_[i].value->dtype()), .decay = 0});
  reset();
  belong_to(params_);
}

Ema::~Ema() {
  if (attached_to_) attached_to_->detach();
}

Tensor Ema::followed(std::size_t leaf) const {
  const Tensor& value = *leaves_[leaf].value;
  if (in_parts(leaf)) return partition_->part(leaf, value);  // own elements are never in flight
  if (leaf < params_.size()) params_[leaf]->wait_ready();
  return value;
}

void Ema::reset() {
  if (swapped_in()) throw UsageError("EMA: reset while weights are swapped in");
  for (std::size_t i = 0; i < leaves_.size(); ++i)
    for (const ops::EmaTarget& target : targets(i)) backend_.copy(followed(i), target.average);
  updates_ = 0;
}

void Ema::reset(std::string_view rate) {
  if (swapped_in()) throw UsageError("EMA: reset while weights are swapped in");
  const std::size_t profile = profile_named(rate);
  for (std::size_t i = 0; i < leaves_.size(); ++i) backend_.copy(followed(i), targets(i)[profile].average);
}

void Ema::set_updates(std::int64_t updates) {
  if (updates < 0) throw UsageError("EMA: a number of updates of {} is invalid", updates);
  updates_ = updates;
}

void Ema::update() {
  if (attached_to_)
    throw UsageError("EMA: an optimizer is attached and updates it; leave out update() or attach()");
  begin_update();
  for (std::size_t i = 0; i < params_.size(); ++i) update_leaf(i);
  finish_update();
}

void Ema::begin_update() {
  if (swapped_in()) throw UsageError("EMA: update while weights are swapped in; end the evaluation first");
  for (std::size_t p = 0; p < profiles_.size(); ++p) {
    const double decay = profiles_[p].decay(updates_ + 1, options_.warmup);
    for (std::size_t i = p; i < targets_.size(); i += profiles_.size()) targets_[i].decay = decay;
  }
}

std::span<const ops::EmaTarget> Ema::targets(std::size_t leaf) const {
  return std::span(targets_).subspan(leaf * profiles_.size(), profiles_.size());
}

void Ema::update_leaf(std::size_t index) {
  const Tensor value = followed(index);
  for (const ops::EmaTarget& target : targets(index)) {
    if (leaves_[index].averaged)
      backend_.run(ops::Ema{value, target.average, target.decay});
    else
      backend_.copy(value, target.average);
  }
}

void Ema::finish_update() {
  for (std::size_t i = params_.size(); i < leaves_.size(); ++i) update_leaf(i);
  ++updates_;
}

std::vector<EmaTensor> Ema::held_tensors() const {
  std::vector<EmaTensor> all;
  all.reserve(targets_.size());
  for (std::size_t p = 0; p < profiles_.size(); ++p) {
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      EmaTensor& shadow = all.emplace_back(EmaTensor{.rate = profiles_[p].name(),
                                                     .name = *leaves_[i].name,
                                                     .tensor = targets(i)[p].average,
                                                     .averaged = leaves_[i].averaged});
      if (in_parts(i))
        shadow.part = {.partition = &*partition_, .param = i, .shape = leaves_[i].value->shape()};
    }
  }
  return all;
}

std::vector<ParamState::Entry> Ema::replicated() const {
  std::vector<Entry> entries;
  for (EmaTensor& held : held_tensors())
    if (!held.part) entries.push_back({fmt::format("ema/{}/{}", held.rate, held.name), held.tensor});
  return entries;
}

std::vector<EmaTensor> Ema::tensors() const {
  std::vector<EmaTensor> all = held_tensors();
  std::vector<Tensor> wholes = whole_shadows(0, profiles_.size());
  for (std::size_t s = 0; s < all.size(); ++s) {
    all[s].tensor = std::move(wholes[s]);
    all[s].part.reset();
  }
  return all;
}

std::vector<Tensor> Ema::whole_shadows(std::size_t first_profile, std::size_t profile_end) const {
  std::vector<Tensor> shadows;
  std::vector<Partition::OwnedElements> parts;
  std::vector<std::size_t> missing;  // indices of tensors that are parts
  for (std::size_t p = first_profile; p < profile_end; ++p) {
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      const Tensor& held = targets(i)[p].average;
      if (in_parts(i)) {
        missing.push_back(shadows.size());
        parts.push_back({.param = i, .elements = held, .shape = leaves_[i].value->shape()});
      }
      shadows.push_back(held);
    }
  }
  if (!partition_) return shadows;
  std::vector<Tensor> wholes = partition_->gather(parts, &backend_);
  for (std::size_t m = 0; m < missing.size(); ++m) shadows[missing[m]] = std::move(wholes[m]);
  return shadows;
}

StateBytes Ema::state_bytes() const {
  StateBytes bytes;
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    for (const ops::EmaTarget& target : targets(i)) {
      bytes.held += target.average.bytes();
      bytes.whole += leaves_[i].value->bytes();
    }
  }
  return bytes;
}

std::size_t Ema::profile_named(std::string_view rate) const {
  std::string known;
  for (std::size_t p = 0; p < profiles_.size(); ++p) {
    if (profiles_[p].name() == rate) return p;
    known += (p == 0 ? "" : ", ") + profiles_[p].name();
  }
  throw UsageError("EMA: unknown rate {}; the rates are: {}", rate, known.empty() ? "none" : known);
}

Tensor Ema::tensor(std::string_view rate, std::string_view name) const {
  const std::size_t profile = profile_named(rate), leaf = leaf_named(name);
  const Tensor& held = targets(leaf)[profile].average;
  if (!in_parts(leaf)) return held;
  const Partition::OwnedElements part{.param = leaf, .elements = held, .shape = leaves_[leaf].value->shape()};
  return partition_->gather({&part, 1}, &backend_)[0];
}

std::size_t Ema::leaf_named(std::string_view name) const {
  for (std::size_t i = 0; i < leaves_.size(); ++i)
    if (*leaves_[i].name == name) return i;
  throw UsageError("EMA: the model has no parameter or buffer '{}'", name);
}

Ema::SwappedIn Ema::swap_in(std::string_view rate) { return {*this, profile_named(rate)}; }

Ema::SwappedIn::SwappedIn(Ema& ema, std::size_t profile) : ema_(ema) {
  if (ema.swapped_in())
    throw UsageError("EMA: weights are swapped in already; end the other evaluation first");
  own_ = ema.whole_shadows(profile, profile + 1);
  for (Tensor& shadow : own_) shadow = kernels::on_device(shadow, ema.backend_);
  for (std::size_t i = 0; i < own_.size(); ++i) std::swap(own_[i], *ema.leaves_[i].value);  // throws nothing
  for (Param* const param : ema.params_) param->swapped_in = true;
}

Ema::SwappedIn::~SwappedIn() {
  for (std::size_t i = 0; i < own_.size(); ++i) *ema_.leaves_[i].value = std::move(own_[i]);
  for (Param* const param : ema_.params_) param->swapped_in = false;
}

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
  if (!parse_number(digits, number))
    throw UsageError("'{}' is not an EMA rate: give a rate such as 0.999, or sigma_rel=0.05", name);
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

namespace {

/// Squared length of the part of a unit response that is orthogonal to the used ones; below it is rounding.
constexpr double smallest_news = 1e-12;

std::size_t row_start(std::size_t row) { return row * (row + 1) / 2; }

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

PowerResponse response_of(const EmaProfile& profile, std::int64_t updates) {
  if (!profile.is_power())
    throw UsageError("EMA {}: a plain rate has no power-function profile", profile.name());
  if (updates <= 0)
    throw UsageError("EMA {}: an average needs more than {} updates", profile.name(), updates);
  return {.gamma = profile.gamma(), .updates = static_cast<double>(updates)};
}

double inner_product(const PowerResponse& a, const PowerResponse& b) {
  if (a.updates > b.updates) return inner_product(b, a);
  return (a.gamma + 1) * (b.gamma + 1) / ((a.gamma + b.gamma + 1) * b.updates) *
         std::pow(a.updates / b.updates, b.gamma);
}

/// Cholesky with pivoting: each pivot is the response that the used ones represent worst. It leaves out
/// responses that differ from the used ones only by rounding, as those of close snapshots do.
EmaReconstruction::EmaReconstruction(std::vector<PowerResponse> stored) : stored_(std::move(stored)) {
  if (stored_.empty()) throw UsageError("EMA: there are no stored averages to reconstruct one from");
  const std::size_t count = stored_.size();
  std::vector<double> scale(count), news(count, 1.0);
  for (std::size_t i = 0; i < count; ++i) scale[i] = 1 / std::sqrt(inner_product(stored_[i], stored_[i]));
  std::vector<std::vector<double>> rows(count);  // of the factor, for all remaining candidates
  for (;;) {
    const auto pivot = static_cast<std::size_t>(std::max_element(news.begin(), news.end()) - news.begin());
    if (!(news[pivot] > smallest_news)) break;
    const double diagonal = std::sqrt(news[pivot]);
    for (std::size_t i = 0; i < count; ++i) {
      if (i == pivot || news[i] <= 0) continue;
      const double entry =
          (scale[i] * scale[pivot] * inner_product(stored_[i], stored_[pivot]) - dot(rows[pivot], rows[i])) /
          diagonal;
      rows[i].push_back(entry);
      news[i] -= entry * entry;
    }
    rows[pivot].push_back(diagonal);
    news[pivot] = 0;
    used_.push_back(pivot);
    scale_.push_back(scale[pivot]);
    factor_.insert(factor_.end(), rows[pivot].begin(), rows[pivot].end());
  }
  ones_ = solve(scale_);
}

/// The solution x of (scaled inner products) x = right.
std::vector<double> EmaReconstruction::solve(std::vector<double> right) const {
  const std::size_t count = used_.size();
  for (std::size_t row = 0; row < count; ++row) {
    const double* const factor = &factor_[row_start(row)];
    for (std::size_t k = 0; k < row; ++k) right[row] -= factor[k] * right[k];
    right[row] /= factor[row];
  }
  for (std::size_t row = count; row-- > 0;) {
    const double* const factor = &factor_[row_start(row)];
    right[row] /= factor[row];
    for (std::size_t k = 0; k < row; ++k) right[k] -= factor[k] * right[row];
  }
  return right;
}

EmaMixture EmaReconstruction::mixture_for(const PowerResponse& target) const {
  EmaMixture mixture{.weights = std::vector<double>(stored_.size()), .error = 0};
  if (const auto same = std::find(stored_.begin(), stored_.end(), target); same != stored_.end()) {
    mixture.weights[static_cast<std::size_t>(same - stored_.begin())] = 1;
    return mixture;
  }
  // In scaled weights y: least squares solves G y = right, and a multiplier of the sum, which is
  // scale . y = 1, shifts `right` along `scale`.
  std::vector<double> right(used_.size());
  for (std::size_t k = 0; k < used_.size(); ++k)
    right[k] = scale_[k] * inner_product(stored_[used_[k]], target);
  std::vector<double> scaled = solve(right);
  const double shift = (1 - dot(scale_, scaled)) / dot(scale_, ones_);
  double sum = 0;
  for (std::size_t k = 0; k < used_.size(); ++k) {
    scaled[k] += shift * ones_[k];
    sum += mixture.weights[used_[k]] = scaled[k] * scale_[k];
  }
  for (double& weight : mixture.weights) weight /= sum;  // 1 but for rounding

  // |G y - right| from the responses themselves: the mixture's squared length, less twice its share in the
  // target, more the target's own.
  double error = inner_product(target, target);
  const double own = error;
  for (const std::size_t i : used_) {
    double row = -2 * inner_product(stored_[i], target);
    for (const std::size_t j : used_) row += mixture.weights[j] * inner_product(stored_[i], stored_[j]);
    error += mixture.weights[i] * row;
  }
  mixture.error = std::sqrt(std::max(0.0, error) / own);
  return mixture;
}

}  // namespace lockstep::optim
