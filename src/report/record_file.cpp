#include "report/record_file.h"

#include <algorithm>
#include <cstring>

#include "base/processor.h"

namespace lockstep::report {
namespace {

constexpr std::size_t length_bytes = sizeof(std::uint64_t), crc_bytes = sizeof(std::uint32_t);

template <class Number>
void append_number(std::string& to, Number number) {
  to.append(reinterpret_cast<const char*>(&number), sizeof number);
}

template <class Number>
Number number_at(std::string_view bytes, std::size_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

/// As records store it: rotated and shifted, so that the checksum of data that hold checksums is a good one.
std::uint32_t masked_crc32c(std::string_view data) {
  const std::uint32_t crc = crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  std::uint32_t crc = 0xffffffffU;
  std::size_t done = 0;
  for (std::uint64_t word = 0; done + sizeof word <= data.size(); done += sizeof word) {
    std::memcpy(&word, data.data() + done, sizeof word);
    crc = crc32c_with_word(crc, word);
  }
  for (; done < data.size(); ++done) crc = crc32c_with_byte(crc, static_cast<std::uint8_t>(data[done]));
  return ~crc;
}

std::string record_of(std::string_view data) {
  std::string record;
  record.reserve(length_bytes + crc_bytes + data.size() + crc_bytes);
  append_number(record, static_cast<std::uint64_t>(data.size()));
  append_number(record, masked_crc32c(record));
  record += data;
  append_number(record, masked_crc32c(data));
  return record;
}

std::optional<std::string_view> RecordReader::at(std::uint64_t offset, std::uint64_t bytes) {
  constexpr std::uint64_t least_bytes = 1 << 20;
  if (offset > size_ || bytes > size_ - offset) return std::nullopt;
  if (offset < buffer_offset_ || offset + bytes > buffer_offset_ + buffer_.size()) {
    buffer_.resize(std::min(std::max(bytes, least_bytes), size_ - offset));
    file_.read_at(offset, buffer_.data(), buffer_.size());
    buffer_offset_ = offset;
  }
  return std::string_view(buffer_).substr(offset - buffer_offset_, bytes);
}

std::optional<std::string_view> RecordReader::next() {
  constexpr std::size_t head_bytes = length_bytes + crc_bytes;
  const std::optional<std::string_view> head = at(position_, head_bytes);
  if (!head || number_at<std::uint32_t>(*head, length_bytes) != masked_crc32c(head->substr(0, length_bytes)))
    return std::nullopt;
  const auto bytes = number_at<std::uint64_t>(*head, 0);
  if (bytes > size_) return std::nullopt;
  const std::optional<std::string_view> body = at(position_ + head_bytes, bytes + crc_bytes);
  if (!body || number_at<std::uint32_t>(*body, bytes) != masked_crc32c(body->substr(0, bytes)))
    return std::nullopt;
  position_ += head_bytes + bytes + crc_bytes;
  return body->substr(0, bytes);
}

}  // namespace lockstep::report
