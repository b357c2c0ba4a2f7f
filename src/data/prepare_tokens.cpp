// Takes over tokens that other programs wrote: nanoGPT's files, llm.c's with their header.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "data/array_writer.h"
#include "data/input.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

constexpr std::size_t header_bytes = 1024;
struct Header {
  std::int32_t magic, version, tokens;
};

/// What the header of llm.c's files says, of GPT-2's tokens and Llama 3's; null: there is none.
const char* type_in(const Header& header) {
  if (header.magic == 20240520 && header.version == 1) return "uint16";
  return header.magic == 20240801 && header.version == 7 ? "uint32" : nullptr;
}

struct TokenFile {
  std::string path, type;
  std::int64_t tokens = 0, header = 0;
};

std::size_t bytes_of(const std::string& type) { return type == "uint16" ? 2 : type == "uint32" ? 4 : 8; }

TokenFile inspected(const std::string& path, const std::string& dtype) {
  Input input(path);
  std::vector<std::byte> start(header_bytes);
  start.resize(input.read(start));
  const std::int64_t bytes = std::ssize(start) + count_rest(input);
  TokenFile file{path, dtype};
  Header header{};
  if (start.size() == header_bytes) std::memcpy(&header, start.data(), sizeof header);
  if (const char* const type = type_in(header)) {
    file.type = type;
    file.header = header_bytes;
    if (bytes - file.header != header.tokens * static_cast<std::int64_t>(bytes_of(type)))
      throw DataError("{}: its header says {} tokens of {}, but {} bytes follow it", path, header.tokens,
                      type, bytes - file.header);
    if (!dtype.empty() && dtype != type)
      throw UsageError("--dtype {}: {} has tokens of {}, its header says", dtype, path, type);
  }
  if (file.type.empty())
    throw UsageError(
        "{}: has no header of llm.c; name the type of its tokens: --dtype uint16, uint32 or int64", path);
  const auto size = static_cast<std::int64_t>(bytes_of(file.type));
  if (bytes % size != 0)
    throw DataError("{}: has {} bytes, which are not whole tokens of {}", path, bytes, file.type);
  file.tokens = (bytes - file.header) / size;
  return file;
}

template <class T>
void copy(const TokenFile& file, std::int64_t vocabulary, ArrayWriter& writer, TextSize& size) {
  Input input(file.path);
  std::vector<std::byte> header(static_cast<std::size_t>(file.header));
  input.read(header);
  std::vector<T> buffer(std::size_t{1} << 16);
  for (std::int64_t at = 0; const std::size_t got = input.read(std::as_writable_bytes(std::span(buffer)));) {
    const std::span<const T> tokens(buffer.data(), got / sizeof(T));
    const auto wrong = std::ranges::find_if(tokens, [&](T token) {
      return std::cmp_less(token, 0) || std::cmp_greater_equal(token, vocabulary);
    });
    if (wrong != tokens.end())
      throw DataError("{}: token {} is {}, which is not in the vocabulary of {}", file.path,
                      at + (wrong - tokens.begin()), *wrong, vocabulary);
    writer.add(0, tokens);
    size.add(tokens);
    at += std::ssize(tokens);
  }
}

}  // namespace

Summary prepare_tokens(std::span<const std::string> inputs, const Output& output, const std::string& dtype,
                       const TextPreparation& how, const Tokenizers& registry) {
  check_output(inputs, output);
  if (!dtype.empty() && dtype != "uint16" && dtype != "uint32" && dtype != "int64")
    throw UsageError("--dtype {}: must be uint16, uint32 or int64", quote(dtype));
  const StoredTokenizer stored = read_tokenizer(how.tokenizer, how.end_of_document);
  const auto tokenizer = stored.make(registry, how.tokenizer);
  Summary summary{.classes = tokenizer->vocabulary()};
  std::vector<TokenFile> files;
  for (const std::string& input : inputs)
    summary.samples += files.emplace_back(inspected(input, dtype)).tokens;
  if (summary.samples == 0) throw DataError("{}: not written: no tokens in {}", output.path, inputs.front());
  ArrayWriter writer(output, {{.name = "tokens",
                               .rows = summary.samples,
                               .dtype = summary.classes > 1 << 16 ? DType::uint32 : DType::uint16,
                               .texts = {{"tokenizer_text", stored.text}}}});
  store_tokenizer(writer.dataset(0), stored.name, *tokenizer);
  TextSize size(*tokenizer);
  for (const TokenFile& file : files) {
    if (file.type == "uint16") copy<std::uint16_t>(file, summary.classes, writer, size);
    if (file.type == "uint32") copy<std::uint32_t>(file, summary.classes, writer, size);
    if (file.type == "int64") copy<std::int64_t>(file, summary.classes, writer, size);
  }
  if (stored.name != "bytes") writer.dataset(0).set_attribute("text_bytes", size.bytes());
  writer.finish();
  writer.publish();
  return summary;
}

}  // namespace lockstep::data
