#include "checkpoint/weights/pickle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "base/text.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

// The supported opcodes, by Python's names.
enum Opcode : unsigned char {
  MARK = '(',
  STOP = '.',
  BINFLOAT = 'G',
  BININT = 'J',
  BININT1 = 'K',
  BININT2 = 'M',
  NONE = 'N',
  BINPERSID = 'Q',
  REDUCE = 'R',
  NEWOBJ = 0x81,
  BINUNICODE = 'X',
  APPEND = 'a',
  BUILD = 'b',
  GLOBAL = 'c',
  EMPTY_DICT = '}',
  APPENDS = 'e',
  BINGET = 'h',
  LONG_BINGET = 'j',
  EMPTY_LIST = ']',
  BINPUT = 'q',
  LONG_BINPUT = 'r',
  SETITEM = 's',
  TUPLE = 't',
  EMPTY_TUPLE = ')',
  SETITEMS = 'u',
  PROTO = 0x80,
  TUPLE1 = 0x85,
  TUPLE2 = 0x86,
  TUPLE3 = 0x87,
  NEWTRUE = 0x88,
  NEWFALSE = 0x89,
  LONG1 = 0x8a,
  LONG4 = 0x8b,
  SHORT_BINUNICODE = 0x8c,
  BINUNICODE8 = 0x8d,
  STACK_GLOBAL = 0x93,
  MEMOIZE = 0x94,
  FRAME = 0x95,
  // Refused, but by the name that follows, not by the opcode.
  INST = 'i',
};

/// Reasons to refuse an opcode, for those of real pickles.
std::string_view what_needs(unsigned char opcode) {
  struct Reason {
    unsigned char opcode;
    std::string_view text;
  };
  static constexpr std::array<Reason, 14> reasons{{{'B', "bytes"},
                                                   {'C', "bytes"},
                                                   {0x8e, "bytes"},
                                                   {0x96, "bytes"},
                                                   {'T', "bytes"},
                                                   {'U', "bytes"},
                                                   {0x97, "a buffer outside it"},
                                                   {0x8f, "a set"},
                                                   {0x90, "a set"},
                                                   {0x91, "a set"},
                                                   {0x92, "an object of a class (NEWOBJ_EX)"},
                                                   {'o', "an object of a class (OBJ)"},
                                                   {0x82, "a registered extension (EXT1)"},
                                                   {'0', "a value that it drops (POP)"}}};
  const auto* const found = std::ranges::find(reasons, opcode, &Reason::opcode);
  return found == reasons.end() ? "" : found->text;
}

}  // namespace

/// The stack machine.
class PickleReader {
 public:
  using Ref = Pickle::Ref;

  PickleReader(Pickle& pickle, std::string_view bytes, std::span<const PickleName> vocabulary,
               const std::string& where)
      : values_(pickle.values_), bytes_(bytes), vocabulary_(vocabulary), where_(where) {}

  Ref run() {
    begin();
    for (;;) {
      const auto opcode = take<unsigned char>();
      if (opcode == STOP) return end();
      step(opcode);
    }
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    throw DataError("{}, byte {}: {}", where_, at_, fmt::format(text, std::forward<Args>(args)...));
  }

  // Bytes.

  std::string_view take_bytes(std::uint64_t count) {
    if (count > bytes_.size() - at_) fail("it ends too early: is it truncated?");
    const std::string_view bytes = bytes_.substr(at_, count);
    at_ += count;
    return bytes;
  }
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take_bytes(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view take_line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("it ends too early: is it truncated?");
    const std::string_view line = take_bytes(end - at_);
    ++at_;
    return line;
  }
  double take_big_endian_double() {
    std::string_view bytes = take_bytes(sizeof(double));
    std::uint64_t bits = 0;
    for (const char byte : bytes) bits = bits << 8 | static_cast<unsigned char>(byte);
    return std::bit_cast<double>(bits);
  }
  /// Little endian, in two's complement, of any length.
  Pickle::Value take_integer(std::uint64_t bytes) {
    const std::string_view digits = take_bytes(bytes);
    if (digits.size() > sizeof(std::int64_t)) return Pickle::LargeInteger{};
    std::int64_t value = !digits.empty() && static_cast<signed char>(digits.back()) < 0 ? -1 : 0;
    std::memcpy(&value, digits.data(), digits.size());
    return value;
  }

  // The stack. A mark divides it: values below are not accessible until the mark is removed.

  Ref make(Pickle::Value value) {
    if (values_.size() == Pickle::max_values) fail("it has more than {} values", Pickle::max_values);
    values_.push_back(std::move(value));
    return static_cast<Ref>(values_.size() - 1);
  }
  void push(Ref ref) { stack_.push_back(ref); }
  void push_new(Pickle::Value value) { push(make(std::move(value))); }
  /// The top `count` values, the last one at the end.
  std::span<const Ref> top(std::size_t count) const {
    if (stack_.size() - (marks_.empty() ? 0 : marks_.back()) < count)
      fail("it needs more values than the stack has");
    return std::span(stack_).last(count);
  }
  Ref pop() {
    const Ref ref = top(1)[0];
    stack_.pop_back();
    return ref;
  }
  /// Removes the last mark; returns the values above it.
  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Ref> values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }
  void push_tuple(std::size_t count) {
    const std::span<const Ref> last = top(count);
    std::vector<Ref> values(last.begin(), last.end());
    stack_.resize(stack_.size() - count);
    push_new(Pickle::Tuple{std::move(values)});
  }

  // Names and calls.

  void push_name(std::string_view module, std::string_view name) {
    const std::string whole = fmt::format("{}.{}", module, name);
    const auto found = std::ranges::find(vocabulary_, whole, &PickleName::name);
    if (found == vocabulary_.end()) {
      const bool is_plain = whole.size() <= 120 && is_printable(whole);
      throw DataError("{} names {}: only tensors are read; nothing was executed; save model.state_dict()",
                      where_, is_plain ? whole : quote(whole));
    }
    push_new(Pickle::Name{static_cast<std::size_t>(found - vocabulary_.begin())});
  }
  std::string_view pop_text() {
    const auto* const text = std::get_if<std::string_view>(&values_[pop()]);
    if (!text) fail("a name is not a text");
    return *text;
  }
  void call() {
    const Ref arguments = pop(), function = pop();
    const auto* const name = std::get_if<Pickle::Name>(&values_[function]);
    if (!name || vocabulary_[name->index].use == PickleName::Use::constant)
      fail("it calls a value that is not a function: only tensors are read; nothing was executed");
    const auto* const tuple = std::get_if<Pickle::Tuple>(&values_[arguments]);
    if (!tuple) fail("arguments are not a tuple");
    if (vocabulary_[name->index].use == PickleName::Use::mapping && !tuple->values.empty())
      fail("it creates a dict from arguments");
    push_new(Pickle::Object{name->index, arguments, {}, none_});
  }

  // Containers.

  bool is_mapping(const Pickle::Object& object) const {
    return vocabulary_[object.name].use == PickleName::Use::mapping;
  }
  void append(std::span<const Ref> values) {
    auto* const list = std::get_if<Pickle::List>(&values_[top(1)[0]]);
    if (!list) fail("it appends to a value that is not a list");
    list->values.insert(list->values.end(), values.begin(), values.end());
  }
  void set_items(std::span<const Ref> values) {
    Pickle::Value& target = values_[top(1)[0]];
    Pickle::Items* items = nullptr;
    if (auto* const mapping = std::get_if<Pickle::Mapping>(&target)) items = &mapping->items;
    if (auto* const object = std::get_if<Pickle::Object>(&target); object && is_mapping(*object))
      items = &object->items;
    if (!items) fail("it sets items of a value that is not a dict");
    if (values.size() % 2 != 0) fail("a key has no value");
    for (std::size_t i = 0; i < values.size(); i += 2) items->emplace_back(values[i], values[i + 1]);
  }
  void build() {
    const Ref state = pop();
    auto* const object = std::get_if<Pickle::Object>(&values_[top(1)[0]]);
    const auto is_inert = [&] { return vocabulary_[object->name].use == PickleName::Use::inert; };
    if (!object || !(is_mapping(*object) || is_inert()))
      fail("it sets attributes of a value that is not an OrderedDict");
    object->attributes = state;
  }

  // The memo. Picklers number its values consecutively.

  void put(std::size_t index) {
    if (index > memo_.size())
      fail("it stores a value at index {} of the memo, which has {}", index, memo_.size());
    const Ref value = top(1)[0];
    if (index == memo_.size()) {
      memo_.push_back(value);
    } else {
      memo_[index] = value;
    }
  }
  void get(std::size_t index) {
    if (index >= memo_.size()) fail("it reads index {} of the memo, which has {}", index, memo_.size());
    push(memo_[index]);
  }

  void begin() {
    constexpr unsigned min_protocol = 2, max_protocol = 5;
    if (bytes_.size() > Pickle::max_bytes)
      throw DataError("{} has {} bytes, more than the {} allowed", where_, bytes_.size(), Pickle::max_bytes);
    if (bytes_.size() < 2 || static_cast<unsigned char>(bytes_[0]) != PROTO ||
        static_cast<unsigned char>(bytes_[1]) < min_protocol ||
        static_cast<unsigned char>(bytes_[1]) > max_protocol)
      throw DataError("{} is not a pickle of protocol {} to {}", where_, min_protocol, max_protocol);
    none_ = make(Pickle::None{});
    false_ = make(false);
    true_ = make(true);
    no_arguments_ = make(Pickle::Tuple{});
  }
  Ref end() const {
    if (stack_.size() != 1 || !marks_.empty()) fail("it ends with {} values instead of one", stack_.size());
    if (at_ != bytes_.size()) fail("bytes follow its end");
    return stack_.back();
  }

  void step(unsigned char opcode) {
    switch (opcode) {
      case PROTO:
        take<unsigned char>();
        return;
      case FRAME:
        if (take<std::uint64_t>() > bytes_.size() - at_) fail("a frame reaches beyond its end");
        return;
      case NONE:
        return push(none_);
      case NEWFALSE:
        return push(false_);
      case NEWTRUE:
        return push(true_);
      case BININT:
        return push_new(std::int64_t{take<std::int32_t>()});
      case BININT1:
        return push_new(std::int64_t{take<std::uint8_t>()});
      case BININT2:
        return push_new(std::int64_t{take<std::uint16_t>()});
      case LONG1:
        return push_new(take_integer(take<std::uint8_t>()));
      case LONG4:
        return push_new(take_integer(take<std::uint32_t>()));  // negative: too many
      case BINFLOAT:
        return push_new(take_big_endian_double());
      case SHORT_BINUNICODE:
        return push_new(take_bytes(take<std::uint8_t>()));
      case BINUNICODE:
        return push_new(take_bytes(take<std::uint32_t>()));
      case BINUNICODE8:
        return push_new(take_bytes(take<std::uint64_t>()));
      default:
        return step_of_containers(opcode);
    }
  }

  void step_of_containers(unsigned char opcode) {
    switch (opcode) {
      case MARK:
        return marks_.push_back(static_cast<std::uint32_t>(stack_.size()));
      case EMPTY_TUPLE:
        return push(no_arguments_);
      case TUPLE1:
        return push_tuple(1);
      case TUPLE2:
        return push_tuple(2);
      case TUPLE3:
        return push_tuple(3);
      case TUPLE:
        return push_new(Pickle::Tuple{pop_to_mark()});
      case EMPTY_LIST:
        return push_new(Pickle::List{});
      case EMPTY_DICT:
        return push_new(Pickle::Mapping{});
      case APPEND: {
        const Ref value = pop();
        return append(std::span(&value, 1));
      }
      case APPENDS: {
        const std::vector<Ref> values = pop_to_mark();
        return append(values);
      }
      case SETITEM: {
        const Ref value = pop(), key = pop();
        return set_items(std::array{key, value});
      }
      case SETITEMS: {
        const std::vector<Ref> values = pop_to_mark();
        return set_items(values);
      }
      default:
        return step_of_names(opcode);
    }
  }

  void step_of_names(unsigned char opcode) {
    switch (opcode) {
      case BINPUT:
        return put(take<std::uint8_t>());
      case LONG_BINPUT:
        return put(take<std::uint32_t>());
      case MEMOIZE:
        return put(memo_.size());
      case BINGET:
        return get(take<std::uint8_t>());
      case LONG_BINGET:
        return get(take<std::uint32_t>());
      case GLOBAL:
      case INST: {
        const std::string_view module = take_line(), name = take_line();
        push_name(module, name);
        if (opcode == INST)
          fail("it creates an object of a class (INST): only tensors are read; nothing was executed");
        return;
      }
      case STACK_GLOBAL: {
        const std::string_view name = pop_text(), module = pop_text();
        return push_name(module, name);
      }
      case NEWOBJ: {
        const Ref type = top(2)[0];
        const auto* const name = std::get_if<Pickle::Name>(&values_[type]);
        if (!name || vocabulary_[name->index].use != PickleName::Use::inert)
          fail("it holds an object of a class (NEWOBJ): only tensors are read; nothing was executed");
        return call();
      }
      case REDUCE:
        return call();
      case BUILD:
        return build();
      case BINPERSID:
        return push_new(Pickle::Persistent{pop()});
      default:
        if (const std::string_view what = what_needs(opcode); !what.empty())
          fail("it holds {}: only tensors are read; nothing was executed", what);
        fail("the opcode 0x{:02x} is not supported, as tensors do not need it; nothing was executed", opcode);
    }
  }

  std::vector<Pickle::Value>& values_;
  std::string_view bytes_;
  std::span<const PickleName> vocabulary_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::vector<Ref> stack_, memo_;
  std::vector<std::uint32_t> marks_;  ///< sizes of the stack
  Ref none_ = 0, false_ = 0, true_ = 0, no_arguments_ = 0;
};

Pickle::Pickle(std::string_view bytes, std::span<const PickleName> vocabulary, const std::string& where) {
  root_ = PickleReader(*this, bytes, vocabulary, where).run();
}

}  // namespace lockstep::checkpoint
