#include "lockstep/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/ops/update.h"
#include "lockstep/optim/sgd.h"
#include "ops/matmul.h"

namespace lockstep::optim {
namespace {

constexpr int newton_schulz_steps = 5;
constexpr float of_x = 3.4445f, of_cube = -4.7750f, of_fifth_power = 2.0315f;
constexpr double min_norm = 1e-7;
constexpr std::int64_t block_elements = GradientNorm::block_elements;

std::int64_t blocks_of(const Tensor& tensor) {
  return (tensor.numel() + block_elements - 1) / block_elements;
}

bool is_matrix(const Param& param) { return param.value.shape().rank() == 2; }

/// Marks the trainable parameters that match.
void take(std::span<Param* const> params, const std::string& pattern, std::vector<bool>& taken) {
  bool matched = false, took = false;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const Param& param = *params[i];
    names.push_back(param.name);
    if (!matches_pattern(pattern, param.name)) continue;
    if (!is_matrix(param))
      throw UsageError(
          "Muon: pattern '{}' matches '{}', which is {}; Muon needs parameters of two dimensions", pattern,
          param.name, to_string(param.value.shape()));
    matched = true;
    took = took || param.trainable;
    if (param.trainable) taken[i] = true;
  }
  if (took) return;
  if (matched) throw UsageError("Muon: pattern '{}' matches frozen parameters only", pattern);
  const std::string nearest = nearest_name(pattern, names);
  throw UsageError("Muon: pattern '{}' matches no parameter{}", pattern,
                   nearest.empty() ? std::string() : "; did you mean '" + nearest + "'?");
}

/// X becomes close to orthogonal: its singular values, 1 at most, go through a (x) + b (x^3) + c (x^5) five
/// times. It uses the smaller of X X' and X' X, so that a tall matrix need not be transposed.
void orthogonalise(kernels::Backend& backend, const Tensor& x) {
  const std::int64_t rows = x.size(0), columns = x.size(1), side = std::min(rows, columns);
  const bool is_tall = rows > columns;
  const Tensor gram = backend.empty({side, side}), polynomial = backend.empty({side, side});
  const Tensor product = backend.empty({rows, columns});
  for (int step = 0; step < newton_schulz_steps; ++step) {
    if (is_tall)
      backend.run(ops::linear_backward_weight(x, x, gram, false));  // X' X
    else
      backend.run(ops::linear(x, x, {}, gram));  // X X'
    backend.run(ops::linear_backward_input(gram, gram, polynomial));
    backend.run(ops::scale(polynomial, of_fifth_power, polynomial));
    backend.run(ops::scale(gram, of_cube, gram));
    backend.run(ops::add(polynomial, gram, polynomial));  // b A + c A A
    if (is_tall)
      backend.run(ops::linear(x, polynomial, {}, product));  // X P': P is symmetric
    else
      backend.run(ops::linear_backward_input(polynomial, x, product));  // P X
    backend.run(ops::scale(x, of_x, x));
    backend.run(ops::add(x, product, x));
  }
}

}  // namespace

std::vector<Option<MuonOptions>> MuonOptions::options() {
  std::vector<Option<MuonOptions>> rows = adamw_options<MuonOptions>();
  std::ranges::move(momentum_options<MuonOptions>(), std::back_inserter(rows));
  rows.push_back(option::texts("muon", &MuonOptions::patterns,
                               "name patterns of Muon's matrices, AdamW updates the rest; default: those "
                               "that are neither embeddings nor output heads",
                               {.peers = {"muon_params", "use_muon"}}));
  return rows;
}

std::vector<bool> taken_by_muon(std::span<Param* const> params, std::span<const std::string> patterns) {
  std::vector<bool> taken(params.size(), false);
  for (const std::string& pattern : patterns) take(params, pattern, taken);
  if (!patterns.empty()) return taken;
  for (std::size_t i = 0; i < params.size(); ++i)
    taken[i] = params[i]->trainable && is_matrix(*params[i]) && params[i]->role == Param::Role::inner;
  if (std::ranges::find(taken, true) == taken.end())
    throw UsageError(
        "Muon: the model has no trainable weight of two dimensions that is neither an embedding nor an "
        "output head; name matrices for Muon (optimizer.muon), or use AdamW");
  return taken;
}

void keep_whole_for_muon(const ModelState& model, std::span<const std::string> patterns) {
  const std::vector<bool> taken = taken_by_muon(model.params, patterns);
  for (std::size_t i = 0; i < taken.size(); ++i)
    if (taken[i]) model.params[i]->undivided = true;
}

Muon::Muon(GradientSource& source, const MuonOptions& options)
    : Muon(source, options, taken_by_muon(source.params(), options.patterns)) {}

Muon::Muon(GradientSource& source, const MuonOptions& options, std::vector<bool> takes)
    : AdamW(source,
            {.lr = options.lr,
             .betas = options.betas,
             .eps = options.eps,
             .weight_decay = options.weight_decay,
             .decay = options.decay,
             .groups = options.groups},
            [&] {
              std::vector<bool> others = takes;
              others.flip();
              return others;
            }()),
      momentum_(options.momentum),
      nesterov_(options.nesterov),
      takes_(std::move(takes)) {
  option::check(options, "optimizer.");
  for (std::size_t i = 0; partition() && i < params().size(); ++i) {
    if (takes_[i] && !partition()->is_undivided(i))
      throw UsageError(
          "Muon needs the whole of '{}', which is divided among ranks; call "
          "optim::keep_whole_for_muon() before constructing DataParallel",
          params()[i]->name);
  }
  momentum_buffer_ = make_slot(takes_);
  std::int64_t blocks = 0;
  for (const Tensor& buffer : momentum_buffer_) {
    first_block_.push_back(blocks);
    if (buffer) blocks += blocks_of(buffer);
  }
  squares_ = backend().empty({blocks}, DType::float64);
  backend().fill(squares_, 0);
  read_.resize(static_cast<std::size_t>(blocks));
  others_.reserve(params().size());
}

Tensor Muon::scaled_gradient(const Update& update) const {
  const Tensor scaled = backend().empty(update.gradient.shape());
  backend().run(ops::scale(update.gradient, update.gradient_factor, scaled));
  return scaled;
}

Tensor Muon::direction(const Update& update) const {
  const Tensor& buffer = momentum_buffer_[update.index];
  if (!nesterov_) return buffer;
  const Tensor ahead = backend().empty(buffer.shape());
  backend().copy(buffer, ahead);
  backend().run(ops::Ema{scaled_gradient(update), ahead, momentum_});
  return ahead;
}

Tensor Muon::squares_of(const Update& update) const {
  const std::int64_t first = first_block_[update.index];
  return squares_.rows(first, first + blocks_of(momentum_buffer_[update.index]));
}

/// Updates the momentum, and reads the norms of all directions from the device at once. Each direction is
/// computed again when it is applied: keeping all would take the memory of one more model.
void Muon::prepare(std::span<const Update> updates) {
  for (const Update& update : updates) {
    if (!takes(update)) continue;
    backend().run(ops::Ema{scaled_gradient(update), momentum_buffer_[update.index], momentum_});
    const ops::BlockSumsOfSquares::Part part{direction(update), squares_of(update)};
    backend().run(ops::BlockSumsOfSquares{{&part, 1}});
  }
  if (!read_.empty()) backend().copy(squares_, Tensor::view(read_.data(), squares_.shape(), DType::float64));
}

double Muon::norm_of(const Update& update) const {
  const Tensor squares = squares_of(update);
  const auto first = static_cast<std::size_t>(first_block_[update.index]);
  double sum = 0;
  for (std::int64_t b = 0; b < squares.numel(); ++b) sum += read_[first + static_cast<std::size_t>(b)];
  return std::sqrt(sum);
}

void Muon::apply(std::span<const Update> updates) {
  others_.clear();
  for (const Update& update : updates) {
    if (!takes(update))
      others_.push_back(update);
    else if (update.value.numel() > 0)  // otherwise another rank's
      move(update);
  }
  if (!others_.empty()) AdamW::apply(others_);
  others_.clear();
}

void Muon::move(const Update& update) const {
  const Tensor x = backend().empty(shape_of(update));
  const auto scale = static_cast<float>(1 / std::max(norm_of(update), min_norm));
  backend().run(ops::scale(direction(update).reshape(x.shape()), scale, x));
  orthogonalise(backend(), x);
  // SGD's rule without momentum does the rest: its weight decay is then decoupled.
  const double rows = static_cast<double>(x.size(0)), columns = static_cast<double>(x.size(1));
  const ops::ParameterUpdate<ops::Sgd> last{
      .rule = {.rate = static_cast<float>(update.lr),
               .decay = static_cast<float>(update.weight_decay),
               .gradient_factor = static_cast<float>(std::sqrt(std::max(1.0, rows / columns)))},
      .value = update.value,
      .gradient = x.reshape(update.value.shape()),
      .state = {},
      .ema = update.ema,
      .rounded = update.rounded};
  backend().run(ops::Update<ops::Sgd>{{&last, 1}});
}

std::vector<Optimizer::SlotTensors> Muon::slot_tensors() const {
  std::vector<SlotTensors> slots = AdamW::slot_tensors();
  slots.push_back({.name = "momentum_buffer", .tensors = momentum_buffer_});
  return slots;
}

}  // namespace lockstep::optim
