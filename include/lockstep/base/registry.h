// Registry: the models, tasks, optimizers, data sets or tokenizers that a configuration can name, with their
// options.
#pragma once

#include <algorithm>
#include <any>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/option.h"

namespace lockstep {

/// Thing::Traits, if there is such a struct: properties of a class that need no object.
template <class Thing>
auto no_traits() {
  if constexpr (requires { typename Thing::Traits; })
    return typename Thing::Traits{};
  else
    return nullptr;
}

/// Things by name, with their options. Entries have stable addresses: a Choice refers to its entry.
template <class Thing, class... Arguments>
class Registry {
 public:
  struct Type;
  /// A section of a configuration: which thing, and its options.
  struct Choice {
    const Type* type = nullptr;  ///< null: not chosen yet
    std::any options;            ///< of the thing's type Options

    std::string name() const { return type ? type->name : ""; }  ///< empty: not chosen yet
    /// The text of an option; empty where this thing has no such option.
    std::string value(std::string_view option) const {
      if (!type) return "";
      const auto row = std::ranges::find(type->options, option, &Option<Choice>::name);
      return row == type->options.end() ? "" : row->get(*this);
    }
    /// The options of a thing of this class; null if this is another one.
    template <class T>
    const typename T::Options* options_of() const {
      return std::any_cast<typename T::Options>(&options);
    }
    /// The same, to change them.
    template <class T>
    typename T::Options* options_of() {
      return std::any_cast<typename T::Options>(&options);
    }
    /// Throws UsageError if options are missing or do not fit each other.
    std::unique_ptr<Thing> make(Arguments... arguments) const { return type->make(options, arguments...); }
  };
  /// An entry: what a name stands for.
  struct Type {
    std::string name;                ///< as configurations name it
    bool built_in = false;           ///< see mark_built_in()
    bool replaces_built_in = false;  ///< a program's entry that replaces the built-in one of this name
    std::string section;             ///< the section of its options; empty: the section that names the thing
    std::vector<Option<Choice>> options;  ///< the keys of the section besides `name`
    std::any defaults;                    ///< of the thing's type Options
    /// Throws Misfit if options do not fit each other. None if the Options have no check().
    std::function<void(const std::any& options)> check;
    decltype(no_traits<Thing>()) traits{};  ///< Thing::Traits::of<T>()
    /// Constructs the thing from its options.
    std::function<std::unique_ptr<Thing>(const std::any& options, Arguments...)> make;
  };

  Registry() = default;
  Registry(Registry&&) = default;
  Registry& operator=(Registry&&) = default;

  /// T: a Thing with a copyable struct T::Options, whose options() describes its members, and with a
  /// constructor T(const T::Options&, Arguments...), or with the options last. A T without Options has no
  /// options, and its constructor takes the arguments alone. A constant T::Options::section names the section
  /// of a configuration that has the options; without it they are in the section that names the thing.
  /// Replaces a built-in entry of this name. Throws UsageError if another entry has the name, if two options
  /// have the same name, or if a name has other characters than letters, digits, '_', '-' and '.' (options:
  /// no '.').
  template <class T>
  Registry& add(std::string name) {
    static_assert(is_of_this_kind<T>());
    if constexpr (requires { typename T::Options; }) {
      return add<T>(std::move(name), typename T::Options{});
    } else {
      static_assert(std::is_constructible_v<T, Arguments...>,
                    "a Model without Options needs a public constructor (std::uint64_t seed), a Task without "
                    "Options (), a Dataset (const std::vector<std::string>& files), an Optimizer "
                    "(GradientSource&), a Tokenizer (const std::string& text)");
      type_named<T>(std::move(name)).make = [](const std::any&,
                                               Arguments... arguments) -> std::unique_ptr<Thing> {
        return std::make_unique<T>(arguments...);
      };
      return *this;
    }
  }
  /// The same, where a configuration has other defaults than a program.
  template <class T, class Options = typename T::Options>
  Registry& add(std::string name, const Options& defaults) {
    static_assert(is_of_this_kind<T>());
    static_assert(
        requires { Options::options(); },
        "a struct Options describes its members: with LOCKSTEP_KEYS(member, \"meaning\", ...), or by "
        "options()");
    constexpr bool options_last = std::is_constructible_v<T, Arguments..., const Options&>;
    static_assert(options_last || std::is_constructible_v<T, const Options&, Arguments...>,
                  "a Model with Options needs a public constructor (const Options&, std::uint64_t seed), a "
                  "Task with Options (const Options&), an Optimizer (GradientSource&, const Options&)");
    std::vector<Option<Choice>> rows = option::within<Choice>(
        Options::options(), [](auto& choice) -> auto& { return *std::any_cast<Options>(&choice.options); });
    for (std::size_t i = 0; i < rows.size(); ++i)
      check_new_option(name, std::span(rows).first(i), rows[i].name);
    Type& type = type_named<T>(std::move(name));
    type.options = std::move(rows);
    type.defaults = defaults;
    if constexpr (requires { Options::section; }) type.section = Options::section;
    if constexpr (requires { defaults.check(); })
      type.check = [](const std::any& options) { std::any_cast<const Options&>(options).check(); };
    type.make = [](const std::any& options, Arguments... arguments) -> std::unique_ptr<Thing> {
      const auto& of_type = std::any_cast<const Options&>(options);
      if constexpr (options_last)
        return std::make_unique<T>(arguments..., of_type);
      else
        return std::make_unique<T>(of_type, arguments...);
    };
    return *this;
  }

  /// Marks all entries so far as built in: a program's entry of the same name replaces them.
  void mark_built_in() {
    for (Type& type : types_) type.built_in = true;
  }

  const std::deque<Type>& types() const { return types_; }  ///< in the order of registration
  /// In the order of registration.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Type& type : types_) names.push_back(type.name);
    return names;
  }
  /// Whether there is an entry of this name.
  bool has(std::string_view name) const {
    return std::ranges::find(types_, name, &Type::name) != types_.end();
  }
  /// The entry with this name, with default options. Throws UsageError, with the nearest name, if no entry
  /// has it.
  Choice configure(const std::string& name) const {
    option::check_word(name, names());
    const auto type = std::ranges::find(types_, name, &Type::name);
    return {.type = &*type, .options = type->defaults};
  }
  /// Names and options, a line each. Two programs with equal texts accept the same configurations.
  std::string text() const {
    std::string text;
    for (const Type& type : types_) {
      text += type.name + (type.section.empty() ? "" : " [" + type.section + "]") +
              (type.replaces_built_in ? ", the program's" : "") + "\n";
      for (const Option<Choice>& option : type.options)
        text += "  " + option.name + ": " + option.form() + "\n";
    }
    return text;
  }

 private:
  static bool consists_of(std::string_view name, std::string_view marks) {
    return !name.empty() && std::ranges::all_of(name, [&](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             marks.find(c) != marks.npos;
    });
  }
  template <class T>
  static consteval bool is_of_this_kind() {
    static_assert(std::is_base_of_v<Thing, T>,
                  "a registered class must derive from lockstep::Model, Task, Dataset, Tokenizer or "
                  "optim::Optimizer");
    static_assert(!std::is_abstract_v<T>,
                  "a registered class must define every pure virtual function of its base: forward() of a "
                  "Model, loss() of a Task, size(), fields(), name() and read() of a Dataset, algorithm(), "
                  "apply() and slot_tensors() of an Optimizer, vocabulary(), encode() and decode() of a "
                  "Tokenizer");
    return true;
  }
  /// A new entry, without options.
  template <class T>
  Type& type_named(std::string name) {
    if (!consists_of(name, "_-."))
      throw UsageError("the name \"{}\" is invalid: use letters, digits, _, - and .", name);
    const auto before = std::ranges::find(types_, name, &Type::name);
    const bool replaces = before != types_.end();
    if (replaces && !before->built_in) throw UsageError("the name {} is registered twice", name);
    Type& type = replaces ? *before : types_.emplace_back();
    type = Type{};
    type.name = std::move(name);
    type.replaces_built_in = replaces;
    if constexpr (requires { typename Thing::Traits; }) type.traits = Thing::Traits::template of<T>();
    return type;
  }
  /// `name` is reserved: it is a key of every section.
  static void check_new_option(const std::string& type, std::span<const Option<Choice>> before,
                               const std::string& name) {
    if (!consists_of(name, "_-"))
      throw UsageError("{}: the option \"{}\" is invalid: use letters, digits, _ and -", type, name);
    if (name == "name" || std::ranges::find(before, name, &Option<Choice>::name) != before.end())
      throw UsageError("{}: the option {} already exists; give it another name", type, name);
  }

  std::deque<Type> types_;
};

}  // namespace lockstep
