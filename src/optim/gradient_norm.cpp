#include "lockstep/optim/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/ops/update.h"

namespace lockstep::optim {

GradientNorm::GradientNorm(GradientSource& source) : source_(source) {
  const std::span<Param* const> params = source.params();
  ranges_.resize(params.size());
  for (std::size_t i = 0; i < params.size(); ++i)
    if (params[i]->trainable) order_.push_back(i);
  std::sort(order_.begin(), order_.end(),
            [&](std::size_t a, std::size_t b) { return params[a]->name < params[b]->name; });
  std::size_t total = 0;
  for (const std::size_t i : order_) {
    const std::int64_t count = (params[i]->value.numel() + block_elements - 1) / block_elements;
    ranges_[i] = {.first = total, .count = static_cast<std::size_t>(count)};
    total += ranges_[i].count;
  }
  read_.resize(total);
  parts_.reserve(order_.size());
  const Partition* const partition = source.partition();
  if (partition && total > 0) {
    share_blocks(*partition, static_cast<std::int64_t>(total));
  } else {
    blocks_ = source.backend().empty({static_cast<std::int64_t>(total)}, DType::float64);
  }
}

void GradientNorm::share_blocks(const Partition& partition, std::int64_t total) {
  std::vector<std::vector<comm::ElementRange>> blocks_of_rank(static_cast<std::size_t>(partition.ranks()));
  for (const std::size_t i : order_) {
    for (int rank = 0; rank < partition.ranks(); ++rank) {
      const comm::ElementRange elements = partition.range(i, rank);
      const std::int64_t before = (elements.first + block_elements - 1) / block_elements;
      const std::int64_t end = (elements.end() + block_elements - 1) / block_elements;
      blocks_of_rank[static_cast<std::size_t>(rank)].push_back(
          {.first = static_cast<std::int64_t>(ranges_[i].first) + before, .count = end - before});
    }
  }
  slices_ = comm::Slices(total, blocks_of_rank);
  flat_buffer_ = partition.transport().allocate_buffer(static_cast<std::size_t>(total) * sizeof(double), 1);
  blocks_ = Tensor::view(flat_buffer_->accumulator(0), {total}, DType::float64, source_.backend().device());
}

double GradientNorm::measure() {
  if (launch_step_ != 0 && launch_step_ == source_.steps_begun()) return norm_of_read();
  fill_blocks();
  return combine();
}

kernels::Transfer GradientNorm::launch() {
  fill_blocks();
  launch_step_ = source_.steps_begun();
  return to_read();
}

kernels::Transfer GradientNorm::to_read() {
  return {blocks_, Tensor::view(read_.data(), blocks_.shape(), DType::float64)};
}

void GradientNorm::fill_blocks() {
  const std::span<Param* const> params = source_.params();
  const Partition* const partition = source_.partition();
  std::exception_ptr error;
  parts_.clear();
  try {
    for (const std::size_t i : order_) {
      const comm::ElementRange own =
          partition ? partition->mine(i) : comm::ElementRange{.first = 0, .count = params[i]->value.numel()};
      add_part(i, own.first, own.end());
    }
    source_.backend().run(ops::BlockSumsOfSquares{parts_});
  } catch (...) {
    error = std::current_exception();
  }
  if (flat_buffer_) gather_blocks();  // even after an error, as other ranks wait for this rank's part
  parts_.clear();
  if (error) std::rethrow_exception(error);
}

void GradientNorm::gather_blocks() {
  comm::GradientTransport& transport = source_.partition()->transport();
  const comm::Work work = transport.start_all_gather({.flat_buffer = flat_buffer_.get(),
                                                      .offset_bytes = 0,
                                                      .count = slices_.count(),
                                                      .dtype = DType::float64},
                                                     slices_);
  transport.order_after(work);
}

void GradientNorm::fill_blocks(std::size_t index, std::int64_t begin, std::int64_t end) {
  parts_.clear();
  add_part(index, begin, end);
  source_.backend().run(ops::BlockSumsOfSquares{parts_});
  parts_.clear();
}

void GradientNorm::add_part(std::size_t index, std::int64_t begin, std::int64_t end) {
  const Param& param = *source_.params()[index];
  const std::int64_t elements = param.value.numel();
  if (begin < 0 || begin > end || end > elements || (begin % block_elements != 0 && begin != end) ||
      (end % block_elements != 0 && end != elements))
    throw UsageError("gradient norm: elements [{}, {}) of '{}' ({} elements) are not whole blocks of {}",
                     begin, end, param.name, elements, block_elements);
  const Range range = ranges_[index];
  if (begin == end) return;
  const auto first = static_cast<std::int64_t>(range.first) + begin / block_elements;
  const std::int64_t count = (end - begin + block_elements - 1) / block_elements;
  const Tensor sums = blocks_.rows(first, first + count);
  if (param.gradient)
    parts_.push_back({param.gradient.reshape({elements}).rows(begin, end), sums});
  else
    source_.backend().fill(sums, 0);
}

double GradientNorm::combine() {
  const kernels::Transfer blocks = to_read();
  source_.backend().copy(blocks.from, blocks.to);
  return norm_of_read();
}

double GradientNorm::norm_of_read() const {
  double sum = 0;
  for (const std::size_t i : order_) {
    // launch() runs before the step knows which gradients no rank has: these do not count.
    if (!source_.params()[i]->gradient) continue;
    for (std::size_t b = 0; b < ranges_[i].count; ++b) sum += read_[ranges_[i].first + b];
  }
  const double norm = std::sqrt(sum) / source_.count();
  if (!std::isfinite(norm)) throw_not_finite();
  return norm;
}

void GradientNorm::throw_not_finite() const {
  if (!(source_.count() > 0))
    throw TrainingError("gradient norm: the step's count is {}, so its mean gradient is not defined",
                        source_.count());
  for (const std::size_t i : order_)
    for (std::size_t b = 0; source_.params()[i]->gradient && b < ranges_[i].count; ++b)
      if (!std::isfinite(read_[ranges_[i].first + b]))
        throw TrainingError(
            "the gradient of '{}' is not finite (elements {} to {}); lower the learning rate, or clip "
            "gradients",
            source_.params()[i]->name, static_cast<std::int64_t>(b) * block_elements,
            std::min(static_cast<std::int64_t>(b + 1) * block_elements, source_.params()[i]->value.numel()) -
                1);
  throw TrainingError("the gradient norm is not finite: the sum of the gradients' squares overflows float64");
}

double gradient_norm(GradientSource& source) { return GradientNorm(source).measure(); }

double clip_factor(double norm, double clip) {
  if (!std::isfinite(clip) || clip < 0)
    throw UsageError("a clipping norm of {} is invalid: give a positive number, or 0 for no clipping", clip);
  if (clip == 0) return 1;
  return std::min(1.0, clip / (norm + 1e-6));
}

}  // namespace lockstep::optim
