// Operations as values. An operation is a struct. Its members are its operands (tensors) and attributes. It
// declares its name, the role of each operand, the rules of its shapes, and its cost:
//
//   struct Scale {
//     static constexpr const char* name = "scale";
//     Tensor x;
//     float factor = 1;
//     Tensor y;                                                            // may be x
//     static void operands(auto& op, auto&& each) { each(in("x", op.x), out("y", op.y)); }
//     void check() const { require_alike(name, "y", y, x); }               // UsageError with the shapes
//   };
//
// kernels::Backend::run(op) checks it and carries it out. Code that handles operations of any type (the
// backend's checks, profiles, computation on float32 copies, captures, other devices) reads the roles: only
// the struct and its kernels know an operation.
//
// Conventions. All tensors are on the backend's device. The caller allocates outputs; they do not overlap
// inputs unless the operation says so. A batch of 0 is legal everywhere. With the attribute `accumulate`
// results are added to the contents of the updated outputs; otherwise they overwrite them. Activations and
// their gradients are float32 or bf16, all of one type in an operation; sums are float32 or wider, and a
// result is rounded once, to nearest even.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

template <class Signature>
class FunctionRef;

/// Refers to a callable that outlives it; never allocates. For parameters (std::function_ref of C++26).
template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  /// Refers to `callable`.
  template <class Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef>) FunctionRef(const Callable& callable)
  noexcept  // NOLINT: an argument may be a lambda
      : callable_(std::addressof(callable)), call_([](const void* target, Arguments... arguments) -> Result {
          return (*static_cast<const Callable*>(target))(std::forward<Arguments>(arguments)...);
        }) {}

  /// Calls it.
  Result operator()(Arguments... arguments) const {
    return call_(callable_, std::forward<Arguments>(arguments)...);
  }

 private:
  const void* callable_;
  Result (*call_)(const void*, Arguments...);
};

}  // namespace lockstep

namespace lockstep::ops {

enum class Access : std::uint8_t {
  read,
  write,   ///< all of it
  update,  ///< read and written, or only written, as an attribute (accumulate) selects
};

/// Element types of an operand.
enum class Holds : std::uint8_t {
  activations,  ///< float32 or bf16, the same for all activations of the operation
  weights,      ///< float32 or bf16: the operation rounds them to the activations' type
  floats,       ///< float32 or bf16, independent of the activations
  float32,
  float64,
  int64,
  int32,
  uint8,
  anything,  ///< any type that check() allows
};
using enum Holds;

/// What one part of an operation gets of an operand, if the operation runs in parts
/// (kernels::Backend::run_parts).
enum class Split : std::uint8_t {
  rows,      ///< an equal run of the first dimension
  shared,    ///< all of it, like weights
  per_part,  ///< one element of the first dimension, which an operation alone does not have: a result each
};

/// How an operation uses an operand, and which type and layout the operand must have.
struct Role {
  Access access = Access::read;
  Holds holds = Holds::activations;
  bool optional = false;        ///< may be absent
  bool channel_blocks = false;  ///< any layout; otherwise plain
  /// The operand has one row, or one element, for each row of the operation, and rows do not depend on each
  /// other: the operation may run on some rows at a time. Such operands are then [rows, n], or [rows] for one
  /// element each. A row is the last dimension of the first such operand of two or more dimensions.
  bool by_row = false;
  bool part = false;  ///< of Columns: the rest of the matrix does not change
  Split split = Split::rows;
};

/// A member of an operation, with its role.
template <class Member>
struct Operand {
  const char* name;
  Member& member;  ///< of the operation
  Role role;

  constexpr Operand optional() const { return with(&Role::optional); }       ///< the same; may be absent
  constexpr Operand blocked() const { return with(&Role::channel_blocks); }  ///< the same; any layout
  /// The same; rows do not depend on each other.
  constexpr Operand by_row() const { return with(&Role::by_row); }
  constexpr Operand shared() const { return with(Split::shared); }      ///< the same; all parts use it
  constexpr Operand per_part() const { return with(Split::per_part); }  ///< the same; one for each part

 private:
  constexpr Operand with(bool Role::*flag) const {
    Operand changed{name, member, role};
    changed.role.*flag = true;
    return changed;
  }
  constexpr Operand with(Split split) const {
    Operand changed{name, member, role};
    changed.role.split = split;
    return changed;
  }
};

template <class Member>
constexpr Operand<Member> in(const char* name, Member& member, Holds holds = activations) {
  return {name, member, {.access = Access::read, .holds = holds}};
}
template <class Member>
constexpr Operand<Member> out(const char* name, Member& member, Holds holds = activations) {
  return {name, member, {.access = Access::write, .holds = holds}};
}
template <class Member>
constexpr Operand<Member> in_out(const char* name, Member& member, Holds holds = activations) {
  return {name, member, {.access = Access::update, .holds = holds}};
}

namespace detail {
struct TakesAll {  // nvcc does not support a lambda in a concept
  void operator()(const auto&...) const {}
};
}  // namespace detail

template <class Type>
concept HasOperands = requires(const Type& value) {
  Type::operands(value, detail::TakesAll{});
};

/// All formulas, folds or rules that devices implement.
template <class... Type>
struct TypeList {
  /// Calls the template call operator of `each` for every type.
  template <class Each>
  static void for_each(const Each& each) {
    (each.template operator()<Type>(), ...);
  }
};

/// The arithmetic and the memory traffic of an operation.
struct Cost {
  double flops = 0;  ///< of products, two for each multiply-add; 0 for others
  double bytes = 0;  ///< of all operands, each counted once: the traffic without caches
};

// A member is a Tensor, an array of them, Columns, a struct with operands, or a span of these.

/// `count` columns of a matrix [batch, time, width], from `first` on. The heads of an attention are side by
/// side in them, or each begins head_step columns after the one before.
struct Columns {
  Tensor matrix;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t head_step = 0;  ///< 0: side by side
};

using Visit = FunctionRef<void(const char* name, const Role&, const Tensor&)>;
/// Returns the tensor that replaces another.
using Replace = FunctionRef<Tensor(const Role&, const Tensor&)>;

namespace detail {

template <class Operation>
const Operation& as(const void* operation) {
  return *static_cast<const Operation*>(operation);
}

template <class Operation, class Each>
void walk(Operation& operation, const Each& each);

/// Calls each(name, role, tensor) for every tensor of a member; each.elements() visits an array or span.
template <class Member, class Each>
void walk_member(const char* name, const Role& role, Member& member, const Each& each) {
  using Type = std::remove_const_t<Member>;
  if constexpr (std::is_same_v<Type, Tensor>) {
    each(name, role, member);
  } else if constexpr (std::is_same_v<Type, Columns>) {
    Role part = role;
    part.part = true;
    each(name, part, member.matrix);
  } else if constexpr (HasOperands<Type>) {
    walk(member, each);
  } else {
    for (auto& element : each.elements(member)) walk_member(name, role, element, each);
  }
}

template <class Operation, class Each>
void walk(Operation& operation, const Each& each) {
  Operation::operands(operation, [&](const auto&... operand) {
    (walk_member(operand.name, operand.role, operand.member, each), ...);
  });
}

struct Visitor {
  Visit each;

  void operator()(const char* name, const Role& role, const Tensor& tensor) const {
    each(name, role, tensor);
  }
  template <class Elements>
  const Elements& elements(const Elements& of) const {
    return of;
  }
};

struct Replacer {
  Replace by;
  /// The memory of replaced spans; it lives as long as the changed operation.
  std::vector<std::shared_ptr<void>>& kept;

  void operator()(const char*, const Role& role, Tensor& tensor) const {
    if (tensor) tensor = by(role, tensor);
  }
  template <std::size_t Count>
  std::array<Tensor, Count>& elements(std::array<Tensor, Count>& of) const {
    return of;
  }
  template <class Part>
  std::vector<Part>& elements(std::span<const Part>& of) const {
    const auto changed = std::make_shared<std::vector<Part>>(of.begin(), of.end());
    kept.push_back(changed);
    of = *changed;
    return *changed;
  }
};

}  // namespace detail

class AnyOperation;

/// Describes all operations of one type. Its address is the type's identity.
struct OperationType {
  const char* name;
  void (*check)(const void*);         ///< throws UsageError if the shapes do not fit
  void (*visit)(const void*, Visit);  ///< calls a function with every tensor
  /// Runs a function with other tensors in place of its own.
  void (*replace)(const void*, bool accumulate, std::uint32_t part, Replace,
                  FunctionRef<void(const AnyOperation&)>);
  Cost (*cost)(const void*);                         ///< what it computes and moves
  std::string (*label)(const void*);                 ///< name and sizes, for profiles
  const char* (*changes_between_runs)(const void*);  ///< why a captured graph cannot contain it; null: it can
};

template <class Operation>
const OperationType& type_of();

/// A reference to an operation of any type.
class AnyOperation {
 public:
  /// Refers to the operation, which must outlive this.
  template <class Operation>
  requires HasOperands<Operation> AnyOperation(const Operation& operation)  // NOLINT: run(MatMul{...})
      : AnyOperation(type_of<Operation>(), &operation) {}
  /// Refers to an operation of this type.
  AnyOperation(const OperationType& type, const void* operation) : type_(&type), operation_(operation) {}

  const OperationType& type() const { return *type_; }  ///< the description of its type
  const char* name() const { return type_->name; }      ///< in errors and profiles
  const void* get() const { return operation_; }        ///< the operation, as void

  /// UsageError unless every operand is present, on the device, and of the type and layout of its role, and
  /// the shapes fit. The text is the same on every device.
  void check(const Device& device) const;
  /// Calls each(name, role, tensor) for every operand; optional ones may be absent.
  void visit(Visit each) const { type_->visit(operation_, each); }
  /// Calls then() with the same operation on other tensors; absent tensors stay absent. accumulate: sets the
  /// attribute of that name.
  void with(Replace replace, FunctionRef<void(const AnyOperation&)> then, bool accumulate = false) const {
    type_->replace(operation_, accumulate, 0, replace, then);
  }
  /// Calls then() with part number `part` of `parts`. Its random numbers are those of a shard as many further
  /// on. UsageError if an operand has no such parts.
  void with_part(int part, int parts, FunctionRef<void(const AnyOperation&)> then) const;
  /// bf16 if an activation is bf16, otherwise float32.
  DType activation_type() const;
  /// Whether any activation, weight or floats operand is bf16.
  bool has_bf16() const;
  Cost cost() const { return type_->cost(operation_); }
  /// The name in profiles; products with their sizes.
  std::string label() const { return type_->label(operation_); }
  /// Why a captured graph could not repeat it ("it reads a clock"); null: it can.
  const char* changes_between_runs() const { return type_->changes_between_runs(operation_); }

 private:
  const OperationType* type_;
  const void* operation_;
};

/// The bytes of all operands. updates_read: updated operands count twice, as read and written.
double bytes_of_operands(const AnyOperation& operation, bool updates_read = true);

/// "matmul 3 x 4 -> 5"
std::string label_of(const char* name, const std::string& sizes);

/// An operation may also have check(), cost() and changes_between_runs(), as AnyOperation has; or sizes(),
/// which throws UsageError if shapes do not fit, and whose result may have flops() and text() for a product.
template <class Operation>
const OperationType& type_of() {
  static constexpr OperationType type = {
      .name = Operation::name,
      .check =
          [](const void* op) {
            const Operation& operation = detail::as<Operation>(op);
            if constexpr (requires { operation.check(); })
              operation.check();
            else if constexpr (requires { operation.sizes(); })
              (void)operation.sizes();
          },
      .visit = [](const void* op,
                  Visit each) { detail::walk(detail::as<Operation>(op), detail::Visitor{each}); },
      .replace =
          [](const void* op, bool accumulate, std::uint32_t part, Replace by,
             FunctionRef<void(const AnyOperation&)> then) {
            Operation changed = detail::as<Operation>(op);
            std::vector<std::shared_ptr<void>> kept;
            detail::walk(changed, detail::Replacer{by, kept});
            if constexpr (requires { changed.accumulate; })
              changed.accumulate = changed.accumulate || accumulate;
            if constexpr (requires { changed.key.shard; }) changed.key.shard += part;
            then(changed);
          },
      .cost = [](const void* op) -> Cost {
        const Operation& operation = detail::as<Operation>(op);
        if constexpr (requires { operation.cost(); }) return operation.cost();
        Cost cost;
        if constexpr (requires { operation.accumulate; })
          cost.bytes = bytes_of_operands(operation, operation.accumulate);
        else
          cost.bytes = bytes_of_operands(operation);
        if constexpr (requires { operation.sizes().flops(); }) cost.flops = operation.sizes().flops();
        return cost;
      },
      .label = [](const void* op) -> std::string {
        if constexpr (requires { detail::as<Operation>(op).sizes().text(); })
          return label_of(Operation::name, detail::as<Operation>(op).sizes().text());
        else
          return Operation::name;
      },
      .changes_between_runs = [](const void* op) -> const char* {
        if constexpr (requires { detail::as<Operation>(op).changes_between_runs(); })
          return detail::as<Operation>(op).changes_between_runs();
        else
          return nullptr;
      },
  };
  return type;
}

}  // namespace lockstep::ops
