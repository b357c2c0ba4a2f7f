// The part of the protocol buffer wire format that event files need: an encoder, and an iterator over the
// fields of an encoded message.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::report {

static_assert(std::endian::native == std::endian::little, "numbers are copied in memory order");

enum class WireType { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

/// Encodes a message. The encoding is canonical if fields are added in ascending order.
class Message {
 public:
  void add(int field, std::int64_t value) {
    key(field, WireType::varint);
    varint(static_cast<std::uint64_t>(value));
  }
  void add(int field, double value) {
    key(field, WireType::fixed64);
    raw(&value, sizeof value);
  }
  void add(int field, float value) {
    key(field, WireType::fixed32);
    raw(&value, sizeof value);
  }
  void add(int field, std::string_view bytes) {
    key(field, WireType::bytes);
    varint(bytes.size());
    encoded_ += bytes;
  }
  void add(int field, const Message& message) { add(field, std::string_view(message.encoded_)); }
  void add_packed(int field, std::span<const double> values) {
    add(field, std::string_view(reinterpret_cast<const char*>(values.data()), values.size_bytes()));
  }

  const std::string& encoded() const { return encoded_; }
  bool empty() const { return encoded_.empty(); }

 private:
  void key(int field, WireType type) {
    varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(type));
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) encoded_ += static_cast<char>(value | 0x80);
    encoded_ += static_cast<char>(value);
  }
  void raw(const void* data, std::size_t bytes) { encoded_.append(static_cast<const char*>(data), bytes); }

  std::string encoded_;
};

/// Iterates over the fields of an encoded message, up to its end or to an invalid field.
class Fields {
 public:
  struct Field {
    int number = 0;
    WireType type = WireType::varint;
    std::uint64_t varint = 0;     ///< the value of a varint
    std::string_view bytes = {};  ///< the value of any other type: 4, 8 or any number of bytes
  };

  explicit Fields(std::string_view message) : rest_(message) {}

  std::optional<Field> next() {
    const std::optional<std::uint64_t> key = varint();
    if (!key) return std::nullopt;
    Field field{.number = static_cast<int>(*key >> 3), .type = static_cast<WireType>(*key & 7)};
    std::optional<std::uint64_t> value;
    switch (field.type) {
      case WireType::varint:
        value = varint();
        if (!value) return std::nullopt;
        field.varint = *value;
        return field;
      case WireType::fixed64:
        value = 8;
        break;
      case WireType::fixed32:
        value = 4;
        break;
      case WireType::bytes:
        value = varint();
        break;
      default:
        return std::nullopt;
    }
    if (!value || *value > rest_.size()) return std::nullopt;
    field.bytes = rest_.substr(0, *value);
    rest_.remove_prefix(*value);
    return field;
  }

 private:
  std::optional<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  std::string_view rest_;
};

}  // namespace lockstep::report
