#include "checkpoint/gpt2_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/cast.h"
#include "checkpoint/gpt2_names.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view layout_name = "huggingface";

Tensor filled(const Shape& shape, DType dtype, std::span<const float> values) {
  const Tensor tensor = Tensor::empty(shape, dtype);
  if (!cast_elements(hdf5::ElementType::float32, reinterpret_cast<const std::byte*>(values.data()), dtype,
                     static_cast<std::byte*>(tensor.raw()), tensor.numel()))
    throw DataError("a mask of attention cannot be {}", to_string(dtype));
  return tensor;
}

NamedTensor transposed(const std::string& name, const Tensor& matrix) {
  const Tensor out = Tensor::empty({matrix.size(1), matrix.size(0)}, matrix.dtype());
  transpose_elements(static_cast<const std::byte*>(matrix.raw()), matrix.size(0), matrix.size(1),
                     bytes_of(matrix.dtype()), static_cast<std::byte*>(out.raw()));
  return {name, out};
}

}  // namespace

std::string to_text(const Gpt2Layout& layout) {
  std::string text = fmt::format("{} prefix={}", layout_name, layout.prefix);
  if (!layout.head.empty()) text += fmt::format(" head={}", layout.head);
  if (!layout.embedding) text += " embedding=none";
  if (layout.mask) text += fmt::format(" mask={}", to_string(*layout.mask));
  if (layout.masked_bias) text += fmt::format(" masked_bias={}", to_string(*layout.masked_bias));
  return text;
}

std::optional<Gpt2Layout> gpt2_layout_in(std::string_view text) {
  const auto next_word = [&] {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return word;
  };
  if (next_word() != layout_name) return std::nullopt;
  Gpt2Layout layout;
  while (!text.empty()) {
    const std::string_view word = next_word();
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string_view key = word.substr(0, equals),
                           value = word.substr(std::min(equals + 1, word.size()));
    if (key == "prefix") layout.prefix = value;
    if (key == "head") layout.head = value;
    if (key == "embedding") layout.embedding = value != "none";
    if (key == "mask") layout.mask = gpt2_mask_dtype(value);
    if (key == "masked_bias") layout.masked_bias = gpt2_mask_dtype(value);
  }
  if (layout.head.empty()) layout.embedding = true;
  return layout;
}

std::optional<DType> gpt2_mask_dtype(std::string_view text) {
  for (const DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16, DType::uint8})
    if (text == to_string(dtype)) return dtype;
  return std::nullopt;
}

Tensor gpt2_mask(std::int64_t positions, DType dtype) {
  const Shape shape{1, 1, positions, positions};
  if (dtype == DType::uint8) {
    const Tensor mask = Tensor::zeros(shape, dtype);
    for (std::int64_t row = 0; row < positions; ++row)
      std::fill_n(mask.data<std::uint8_t>() + row * positions, row + 1, std::uint8_t{1});
    return mask;
  }
  std::vector<float> ones(static_cast<std::size_t>(positions * positions));
  for (std::int64_t row = 0; row < positions; ++row)
    std::fill_n(ones.begin() + row * positions, row + 1, 1.0f);
  return filled(shape, dtype, ones);
}

Tensor gpt2_masked_bias_of(DType dtype) {
  const float value = static_cast<float>(gpt2_masked_bias);
  return filled({}, dtype, {&value, 1});
}

bool is_gpt(std::span<const NamedTensor> tensors) {
  const bool embeds = std::ranges::count(tensors, gpt2_embedding_name, &NamedTensor::name) == 1;
  return embeds && has_fused_attention(tensors) &&
         std::ranges::all_of(
             tensors, [](const NamedTensor& tensor) { return tensor.name.starts_with(gpt2_model_prefix); });
}

std::vector<NamedTensor> in_layout(std::span<const NamedTensor> tensors, const Gpt2Layout& layout) {
  std::vector<NamedTensor> result;
  std::set<std::string> blocks;  // "h.0.attn."
  std::int64_t positions = 0;
  for (const NamedTensor& tensor : tensors) {
    const std::string within = tensor.name.substr(gpt2_model_prefix.size());
    const std::string name = layout.prefix + within;
    if (within == "wpe.weight") positions = tensor.value.size(0);
    if (const std::size_t at = within.find("attn.c_attn."); at != std::string::npos)
      blocks.insert(within.substr(0, at + std::string_view("attn.").size()));
    if (tensor.name == gpt2_embedding_name) {
      if (layout.embedding) result.push_back({name, tensor.value});
      if (!layout.head.empty()) result.push_back({layout.head, tensor.value});
    } else {
      result.push_back(is_gpt2_matrix(tensor.name) ? transposed(name, tensor.value)
                                                   : NamedTensor{name, tensor.value});
    }
  }
  for (const std::string& block : blocks) {
    if (layout.mask) result.push_back({layout.prefix + block + "bias", gpt2_mask(positions, *layout.mask)});
    if (layout.masked_bias)
      result.push_back({layout.prefix + block + "masked_bias", gpt2_masked_bias_of(*layout.masked_bias)});
  }
  return result;
}

}  // namespace lockstep::checkpoint
