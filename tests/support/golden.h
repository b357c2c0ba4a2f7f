// Reference cases computed by PyTorch (golden/generate.py): finding, reading and comparing them.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/hdf5/file.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::test {

/// $LOCKSTEP_GOLDEN, or tests/golden under $LOCKSTEP_SOURCE_DIR.
std::filesystem::path golden_directory();
/// Files whose name begins with `prefix` and ends with `suffix`, sorted. Throws DataError if there is none.
std::vector<std::filesystem::path> golden_files(std::string_view prefix, std::string_view suffix);

/// One group of a file, described wholly by its attribute "case".
class GoldenCase {
 public:
  GoldenCase(std::shared_ptr<hdf5::File> file, const std::string& name);

  const std::string& name() const { return name_; }  ///< "layers.h5: conv_0"
  const nlohmann::json& what() const { return what_; }
  bool has(const std::string& path) const { return file_->exists(group_ + "/" + path); }
  /// Names of the datasets of a group, sorted; none if it does not exist.
  std::vector<std::string> names(const std::string& path) const;
  /// float32, float64 or int64 in its own shape, on the CPU. Throws DataError if it does not exist.
  Tensor tensor(const std::string& path) const;

 private:
  std::shared_ptr<hdf5::File> file_;
  std::string group_, name_;
  nlohmann::json what_;
};

/// Calls `check` for every case of every file of golden_files(prefix, ".h5"). Cases are the groups of the
/// file, or those of a group in it.
void for_each_golden_case(std::string_view prefix, const std::function<void(const GoldenCase&)>& check,
                          const std::string& group = "");

/// |found - b| <= absolute + of_largest * m + relative * |b|, m the largest |b| of the tensor (but at least
/// smallest_largest).
struct Tolerance {
  double absolute = 0, of_largest = 0, relative = 0, smallest_largest = 0;
};
inline constexpr Tolerance layer_tolerance{.of_largest = 1e-5, .relative = 1e-4, .smallest_largest = 1};
/// Of functions of single elements.
inline constexpr Tolerance elementwise_tolerance{.absolute = 4e-6, .relative = 4e-6};
inline constexpr Tolerance optimizer_tolerance{.absolute = 1e-6, .relative = 1e-5};
inline constexpr Tolerance trajectory_tolerance{.of_largest = 5e-5, .relative = 1e-4};
inline constexpr Tolerance loss_tolerance{.relative = 1e-4};
/// Of passes in bf16, beside references in float32.
inline constexpr Tolerance bf16_tolerance{.of_largest = 2e-2};
inline constexpr Tolerance bf16_loss_tolerance{.relative = 2e-2};
inline constexpr Tolerance exact{};

/// Itself, or a copy that the backend makes.
template <class Backend>
Tensor in_float32(Backend& backend, const Tensor& tensor) {
  if (tensor.dtype() != DType::bfloat16) return tensor;
  const Tensor floats = backend.empty(tensor.shape(), DType::float32, tensor.channel_block());
  backend.copy(tensor, floats);
  return floats;
}

/// Empty if no element of `found` (float32, float64 or int64, plain) is further from that of `wanted` than
/// allowed(its index); else one line: case, tensor, how many elements are off, and the worst of them. What is
/// not finite matches nothing.
std::string mismatch(const GoldenCase& golden, std::string_view tensor_name, const Tensor& found,
                     const Tensor& wanted, const std::function<double(std::int64_t)>& allowed);
std::string mismatch(const GoldenCase& golden, std::string_view tensor_name, const Tensor& found,
                     const Tensor& wanted, const Tolerance& tolerance);
/// Against the case's own tensor of that path.
std::string mismatch(const GoldenCase& golden, const std::string& path, const Tensor& found,
                     const Tolerance& tolerance);

}  // namespace lockstep::test
