#include "lockstep/tensor/batch.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

Batch::Batch(int number, std::initializer_list<std::pair<std::string_view, Tensor>> fields) : index(number) {
  for (const auto& [name, tensor] : fields) add(name, tensor);
}

void Batch::add(std::string_view field, const Tensor& tensor) {
  if (count_ == max_fields) throw UsageError("a batch has at most {} fields", max_fields);
  names_[count_] = field;
  tensors_[count_] = tensor;
  ++count_;
}

const Tensor& Batch::operator[](std::string_view field) const {
  const auto found = std::ranges::find(names(), field);
  if (found == names().end()) {
    throw DataError("the data has no field '{}'; it has {} (data.fields names others)", field,
                    fmt::join(names(), ", "));
  }
  return tensors_[static_cast<std::size_t>(found - names().begin())];
}

bool Batch::has(std::string_view field) const { return std::ranges::find(names(), field) != names().end(); }

void Batch::set_ragged(std::int64_t samples) {
  if (samples < 0) throw UsageError("a batch of {} samples", samples);
  samples_ = samples;
}

Batch Batch::rows(std::int64_t begin, std::int64_t end) const {
  if (is_ragged()) {
    if (begin == 0 && end == samples_) return *this;
    if (begin < 0 || begin != end || end > samples_)
      throw UsageError(
          "a batch of {} samples that differ in size cannot be cut into samples {} to {}; with "
          "train.micro_batches = 1 data.max_rows bounds its size",
          samples_, begin, end);
    Batch none = map([](const Tensor& tensor) { return tensor.rows(0, 0); });
    none.samples_ = 0;
    return none;
  }
  return map([&](const Tensor& tensor) { return tensor.rows(begin, end); });
}

}  // namespace lockstep
