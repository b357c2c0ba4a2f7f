#include "lockstep/ops/operation.h"

#include <fmt/format.h>

namespace lockstep::ops {
namespace {

bool is_activation_type(DType type) { return type == DType::float32 || type == DType::bfloat16; }

/// The only type that a role allows; null if it allows several.
const DType* type_of_role(Holds holds) {
  static constexpr std::pair<Holds, DType> types[] = {{Holds::float32, DType::float32},
                                                      {Holds::float64, DType::float64},
                                                      {Holds::int64, DType::int64},
                                                      {Holds::int32, DType::int32},
                                                      {Holds::uint8, DType::uint8}};
  for (const auto& [asks, type] : types) {
    if (asks == holds) return &type;
  }
  return nullptr;
}

/// Checks operands one after the other.
class OperandCheck {
 public:
  OperandCheck(const char* operation, const Device& device) : operation_(operation), device_(device) {}

  void operator()(const char* name, const Role& role, const Tensor& tensor) {
    if (!tensor) {
      if (role.optional) return;
      throw UsageError("{}: {} is missing", operation_, name);
    }
    if (!(tensor.device() == device_))
      throw UsageError("{} on {}: {} is on {}", operation_, to_string(device_), name,
                       to_string(tensor.device()));
    if (!role.channel_blocks && tensor.channel_block() != 1)
      throw UsageError("{}: {} is stored in channel blocks of {}; it must be plain", operation_, name,
                       tensor.channel_block());
    check_type(name, role.holds, tensor.dtype());
  }

 private:
  void check_type(const char* name, Holds holds, DType type) {
    if (holds == Holds::anything) return;
    if (const DType* const role_type = type_of_role(holds)) {
      if (type == *role_type) return;
      throw UsageError("{}: {} is {}, not {}", operation_, name, to_string(type), to_string(*role_type));
    }
    if (!is_activation_type(type))
      throw UsageError("{}: {} is {}, neither float32 nor bfloat16", operation_, name, to_string(type));
    if (holds != Holds::activations) return;
    if (!first_) {
      first_ = name;
      first_type_ = type;
    } else if (type != first_type_) {
      throw UsageError("{}: {} is {}, but {} is {}", operation_, name, to_string(type), first_,
                       to_string(first_type_));
    }
  }

  const char* operation_;
  const Device& device_;
  const char* first_ = nullptr;  // activation
  DType first_type_ = DType::float32;
};

}  // namespace

void AnyOperation::check(const Device& device) const {
  OperandCheck check(name(), device);
  visit([&](const char* operand, const Role& role, const Tensor& tensor) { check(operand, role, tensor); });
  type_->check(operation_);
}

void AnyOperation::with_part(int part, int parts, FunctionRef<void(const AnyOperation&)> then) const {
  const auto part_of = [&](const Role& role, const Tensor& whole) {
    if (role.split == Split::shared) return whole;
    const std::int64_t extent = whole.shape().rank() == 0 ? 0 : whole.size(0), rows = extent / parts;
    const bool fits = role.split == Split::per_part ? extent == parts : extent % parts == 0;
    if (whole.shape().rank() == 0 || !fits)
      throw UsageError("{}: an operand of shape {} does not have {} parts", name(), to_string(whole.shape()),
                       parts);
    const Tensor own = whole.rows(part * rows, (part + 1) * rows);
    if (role.split == Split::rows) return own;
    return own.reshape(Shape(own.shape().extents().subspan(1)));
  };
  type_->replace(operation_, false, static_cast<std::uint32_t>(part), part_of, then);
}

DType AnyOperation::activation_type() const {
  DType type = DType::float32;
  visit([&](const char*, const Role& role, const Tensor& tensor) {
    if (role.holds == Holds::activations && tensor && tensor.dtype() == DType::bfloat16)
      type = DType::bfloat16;
  });
  return type;
}

bool AnyOperation::has_bf16() const {
  bool has = false;
  visit([&](const char*, const Role& role, const Tensor& tensor) {
    const bool may = role.holds == activations || role.holds == weights || role.holds == floats;
    has = has || (may && tensor && tensor.dtype() == DType::bfloat16);
  });
  return has;
}

std::string label_of(const char* name, const std::string& sizes) { return fmt::format("{} {}", name, sizes); }

double bytes_of_operands(const AnyOperation& operation, bool updates_read) {
  double bytes = 0;
  operation.visit([&](const char*, const Role& role, const Tensor& tensor) {
    if (tensor)
      bytes += static_cast<double>(tensor.bytes()) * (updates_read && role.access == Access::update ? 2 : 1);
  });
  return bytes;
}

}  // namespace lockstep::ops
