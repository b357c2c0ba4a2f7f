// Private to the module: Python pickles, read without running them. A pickle is a program for a stack machine
// that may call any function of Python. This reader only records a call, as an object with the name of the
// function, and refuses names outside a vocabulary. Opcodes: Python's Lib/pickletools.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::checkpoint {

/// A name of Python that a pickle may use.
struct PickleName {
  enum class Use : std::uint8_t {
    constant,  ///< a value: a type of elements
    function,  ///< called with a tuple of arguments
    mapping,   ///< called without arguments, and filled like a dict
    inert,     ///< a value, or a function or class of values that need no tensors
  };
  std::string_view name;  ///< "torch._utils._rebuild_tensor_v2"
  Use use;
};

/// The values of a pickle. Values refer to each other by number, and may do so in circles.
class Pickle {
 public:
  using Ref = std::uint32_t;
  using Items = std::vector<std::pair<Ref, Ref>>;  ///< keys and values, in order
  struct None {};
  struct LargeInteger {};  ///< beyond 64 bits
  struct Name {
    std::size_t index;  ///< into the vocabulary
  };
  struct Tuple {
    std::vector<Ref> values;
  };
  struct List {
    std::vector<Ref> values;
  };
  struct Mapping {
    Items items;
  };
  /// The result of a call.
  struct Object {
    std::size_t name;  ///< index into the vocabulary
    Ref arguments;     ///< a Tuple
    Items items;       ///< of a Use::mapping
    Ref attributes;    ///< what sets them: a Mapping, or None
  };
  /// A reference to data outside the pickle.
  struct Persistent {
    Ref id;
  };
  using Value = std::variant<None, bool, std::int64_t, LargeInteger, double, std::string_view, Name, Tuple,
                             List, Mapping, Object, Persistent>;

  static constexpr std::size_t max_bytes = std::size_t{32} << 20, max_values = std::size_t{2} << 20;

  /// Texts of the values are views into `bytes`. Recursion-free; memory in proportion to `bytes`, which are
  /// max_bytes at most, and max_values at most. `where` is for errors: "FILE: data.pkl". DataError on names
  /// outside the vocabulary, protocols other than 2 to 5, unsupported opcodes, and data that are not one
  /// complete pickle.
  Pickle(std::string_view bytes, std::span<const PickleName> vocabulary, const std::string& where);

  Ref root() const { return root_; }
  std::size_t size() const { return values_.size(); }  ///< references are below it
  const Value& operator[](Ref ref) const { return values_[ref]; }
  template <class T>
  const T* get(Ref ref) const {
    return std::get_if<T>(&values_[ref]);
  }

 private:
  friend class PickleReader;

  std::vector<Value> values_;
  Ref root_ = 0;
};

}  // namespace lockstep::checkpoint
