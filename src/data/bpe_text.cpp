#include "data/bpe_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "lockstep/base/error.h"

namespace lockstep::data {

const char* const gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

using nlohmann::json;

constexpr std::int64_t max_tokens = 1 << 22;
// Of the model: the library `tokenizers` passes over keys of it that it does not know, but of no file.
constexpr const char* document_end_key = "end_of_document";
// Of base models: their files name the ends of chat messages elsewhere.
constexpr std::array document_ends{"<|endoftext|>", "<|end_of_text|>"};

/// The character of each byte in a byte-level vocabulary: printable ones of Latin-1 their own, the others
/// those from U+0100 on.
constexpr std::array<char16_t, 256> byte_characters = [] {
  std::array<char16_t, 256> characters{};
  char16_t next = 256;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const bool prints =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
    characters[byte] = prints ? static_cast<char16_t>(byte) : next++;
  }
  return characters;
}();

std::string characters_of(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const char16_t character = byte_characters[static_cast<unsigned char>(byte)];
    if (character < 0x80) {
      text += static_cast<char>(character);
    } else {
      text += static_cast<char>(0xC0 | character >> 6);
      text += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
  return text;
}

/// Of a token of a vocabulary. One with other characters, such as an added token, is its own text.
std::string bytes_of_token(const std::string& token) {
  static const auto byte_of = [] {
    std::array<int, 0x800> bytes{};
    bytes.fill(-1);
    for (std::size_t byte = 0; byte < 256; ++byte) bytes[byte_characters[byte]] = static_cast<int>(byte);
    return bytes;
  }();
  std::string bytes;
  for (std::size_t at = 0; at < token.size(); ++at) {
    auto character = static_cast<std::size_t>(static_cast<unsigned char>(token[at]));
    if (character >= 0xE0) return token;
    if (character >= 0x80)
      character = (character & 0x1F) << 6 | (static_cast<unsigned char>(token[++at]) & 0x3Fu);
    if (byte_of[character] < 0) return token;
    bytes += static_cast<char>(byte_of[character]);
  }
  return bytes;
}

[[noreturn]] void refuse(const std::string& key, const std::string& what, const char* takes) {
  throw DataError("tokenizer: {} is {}, which is not supported; it may be {}", key,
                  beginning_of(on_one_line(what), 80), takes);
}

bool has(const json& object, const char* name) { return object.contains(name) && !object[name].is_null(); }

/// A value of a type; `key`: of the object.
template <class T>
T value_of(const json& object, const std::string& key, const char* name, std::optional<T> otherwise = {}) {
  if (!object.is_object()) throw DataError("tokenizer: {} is not an object", key);
  if (!has(object, name) && otherwise) return *otherwise;
  if (!object.contains(name)) throw DataError("tokenizer: {}.{} is missing", key, name);
  const json& value = object[name];
  const bool fits =
      std::is_same_v<T, bool> ? value.is_boolean()
      : std::is_same_v<T, std::string>
          ? value.is_string()
          : value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::int64_t>() >= 0);
  if (!fits) throw DataError("tokenizer: {}.{} is {}", key, name, beginning_of(json_text(value), 80));
  return value.get<T>();
}

void read_normalizer(const json& one, const std::string& key, BpeText& out) {
  const auto type = value_of<std::string>(one, key, "type");
  if (type == "Sequence" && one.contains("normalizers") && one["normalizers"].is_array()) {
    for (const json& each : one["normalizers"]) read_normalizer(each, key + " Sequence", out);
  } else if (type == "NFC" || type == "NFKC") {
    out.form = std::max(out.form, type == "NFC" ? NormalForm::nfc : NormalForm::nfkc);
  } else {
    refuse(key, type, "null, NFC, NFKC or a Sequence of these");
  }
}

/// `is_bytes`: ByteLevel has been there, which is the last.
void read_pre_tokenizer(const json& one, const std::string& key, BpeText& out, bool& is_bytes) {
  const auto type = value_of<std::string>(one, key, "type");
  const std::string name = key + " " + type;
  if (type == "Sequence" && one.contains("pretokenizers") && one["pretokenizers"].is_array()) {
    for (const json& each : one["pretokenizers"]) read_pre_tokenizer(each, key, out, is_bytes);
    return;
  }
  if (is_bytes) refuse(key, type + " after ByteLevel", "a Sequence that ends with ByteLevel");
  if (type == "ByteLevel") {
    is_bytes = true;
    out.adds_prefix_space = value_of<bool>(one, name, "add_prefix_space", true);
    if (out.adds_prefix_space && !out.steps.empty())
      refuse(name + ".add_prefix_space", "true after other steps", "false");
    if (value_of<bool>(one, name, "use_regex", true)) out.steps.push_back({name, gpt2_pattern});
  } else if (type == "Digits") {
    out.steps.push_back(
        {name, value_of<bool>(one, name, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)"});
  } else if (type == "Split") {
    const auto behavior = value_of<std::string>(one, name, "behavior");
    if (behavior != "Isolated") refuse(name + ".behavior", behavior, "Isolated");
    const json pattern = one.value("pattern", json());
    if (has(pattern, "Regex"))
      out.steps.push_back({name, value_of<std::string>(pattern, name + ".pattern", "Regex")});
    else
      out.steps.push_back(
          {name, literal_pattern(value_of<std::string>(pattern, name + ".pattern", "String"))});
  } else {
    refuse(key, type, "ByteLevel, or a Sequence of Split, Digits and, last, ByteLevel");
  }
}

void read_model(const json& model, BpeText& out) {
  const auto type = value_of<std::string>(model, "model", "type", std::string("BPE"));
  if (type != "BPE") refuse("model.type", type, "BPE");
  for (const char* const name : {"unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    if (has(model, name) && model[name] != "")
      refuse(fmt::format("model.{}", name), json_text(model[name]), "null");
  if (has(model, "dropout") && model["dropout"] != 0.0)
    refuse("model.dropout", json_text(model["dropout"]), "null");
  if (value_of<bool>(model, "model", "byte_fallback", false)) refuse("model.byte_fallback", "true", "false");
  out.ignores_merges = value_of<bool>(model, "model", "ignore_merges", false);
  if (!model.contains("vocab") || !model["vocab"].is_object())
    throw DataError("tokenizer: model.vocab is missing, or is not an object");
  for (const auto& [token, id] : model["vocab"].items()) {
    if (!id.is_number_integer() || id < 0 || id >= max_tokens)
      throw DataError("tokenizer: model.vocab: {} has the number {}; must be from 0 to {}", quote(token),
                      beginning_of(json_text(id), 80), max_tokens - 1);
    if (token.empty()) throw DataError("tokenizer: model.vocab has an empty token");
    const auto at = id.get<std::size_t>();
    if (out.tokens.size() <= at) out.tokens.resize(at + 1);
    std::string bytes = bytes_of_token(token);
    if (!out.tokens[at].empty() || !out.words.emplace(bytes, static_cast<BpeText::Id>(at)).second)
      throw DataError("tokenizer: model.vocab: {} or its number {} is there twice", quote(token), at);
    out.tokens[at] = std::move(bytes);
  }
  if (!model.contains("merges") || !model["merges"].is_array())
    throw DataError("tokenizer: model.merges is missing, or is not a list");
  for (const json& merge : model["merges"]) {
    const std::size_t number = out.merges.size();
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const auto& both = merge.get_ref<const std::string&>();
      const std::size_t blank = both.find(' ');
      left = both.substr(0, blank), right = blank == both.npos ? "" : both.substr(blank + 1);
    }
    if (left.empty() || right.empty() || right.find(' ') != right.npos)
      throw DataError("tokenizer: model.merges, number {}: must be two tokens, but is {}", number,
                      beginning_of(json_text(merge), 80));
    out.merges.emplace_back(bytes_of_token(left), bytes_of_token(right));
  }
}

void read_added(const json& root, BpeText& out) {
  const json tokens = root.value("added_tokens", json());
  if (!tokens.is_null() && !tokens.is_array()) throw DataError("tokenizer: added_tokens is not a list");
  for (const json& one : tokens) {
    const std::string key = fmt::format("added_tokens, number {}", out.added.size());
    const auto id = value_of<std::int64_t>(one, key, "id");
    BpeText::Added token{value_of<std::string>(one, key, "content"), static_cast<BpeText::Id>(id),
                         value_of<bool>(one, key, "special", false)};
    if (id < 0 || id >= max_tokens)
      throw DataError("tokenizer: {}: id {} must be from 0 to {}", key, id, max_tokens - 1);
    if (token.content.empty()) throw DataError("tokenizer: {}: content is empty", key);
    for (const char* const name : {"single_word", "lstrip", "rstrip"})
      if (value_of<bool>(one, key, name, false)) refuse(fmt::format("{}.{}", key, name), "true", "false");
    if (out.tokens.size() <= token.id) out.tokens.resize(token.id + 1);
    std::string& text = out.tokens[token.id];
    if (!text.empty() && text != token.content && text != bytes_of_token(token.content))
      throw DataError("tokenizer: {}: {} has the number of {}", key, quote(token.content), quote(text));
    text = token.content;
    out.added.push_back(std::move(token));
  }
}

void find_document_end(const json& root, BpeText& out) {
  const auto number_of = [&](const std::string& content) -> std::int64_t {
    const auto found = std::ranges::find(out.added, content, &BpeText::Added::content);
    return found == out.added.end() ? -1 : std::int64_t{found->id};
  };
  if (has(root["model"], document_end_key)) {
    const auto name = value_of<std::string>(root["model"], "model", document_end_key);
    out.end_of_document = number_of(name);
    if (out.end_of_document < 0)
      throw DataError("tokenizer: the token at the end of documents, {}, is not in added_tokens",
                      quote(name));
  }
  for (const char* const name : document_ends)
    if (out.end_of_document < 0) out.end_of_document = number_of(name);
}

/// The tokens that vocab.json and merges.txt do not name are those of GPT-2, and `end` if it is a token. All
/// fields are there: the library `tokenizers` has no defaults for them.
json of_gpt2(json vocabulary, const json& merges, const json& end) {
  json added = json::array();
  std::set<std::string> names(document_ends.begin(), document_ends.end());
  if (end.is_string()) names.insert(end.get<std::string>());
  for (const std::string& name : names)
    if (has(vocabulary, name.c_str()))
      added.push_back({{"id", vocabulary[name]}, {"content", name}, {"special", true}});
  for (json& one : added)
    for (const char* const field : {"single_word", "lstrip", "rstrip", "normalized"}) one[field] = false;
  const json bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", bytes},
          {"post_processor", nullptr},
          {"decoder", bytes},
          {"model", {{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merges", merges}}}};
}

json parsed_file(const std::string& path) { return parsed_json(read_text(path), path); }

json read_gpt2(const std::string& folder, const json& end) {
  const std::string path = folder + "/merges.txt", text = read_text(path);
  json merges = json::array();
  for (const std::string_view line : lines_of(text)) {
    const std::string_view merge = without_blanks(line);
    if (!merge.empty() && !(merges.empty() && merge.starts_with("#version"))) merges.push_back(merge);
  }
  return of_gpt2(parsed_file(folder + "/vocab.json"), merges, end);
}

}  // namespace

std::span<const unsigned char, 256> byte_alphabet() {
  static const auto order = [] {
    std::array<unsigned char, 256> bytes{};
    for (std::size_t byte = 0; byte < 256; ++byte) bytes[byte] = static_cast<unsigned char>(byte);
    std::ranges::sort(bytes, {}, [](unsigned char byte) { return byte_characters[byte]; });
    return bytes;
  }();
  return order;
}

std::string literal_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view(R"(\^$.[]|()?*+{}#-)").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

BpeText parse_bpe(std::string_view text) {
  const json root = parsed_json(text, "tokenizer");
  if (!root.is_object() || !root.contains("model"))
    throw DataError("tokenizer: has no model: is it a tokenizer.json of Hugging Face?");
  BpeText out;
  read_model(root["model"], out);
  if (has(root, "normalizer")) read_normalizer(root["normalizer"], "normalizer", out);
  bool is_bytes = false;
  if (has(root, "pre_tokenizer")) read_pre_tokenizer(root["pre_tokenizer"], "pre_tokenizer", out, is_bytes);
  if (!is_bytes) refuse("pre_tokenizer", "without ByteLevel", "ByteLevel, or a Sequence that ends with it");
  const std::string decoder =
      has(root, "decoder") ? value_of<std::string>(root["decoder"], "decoder", "type") : "null";
  if (decoder != "ByteLevel") refuse("decoder", decoder, "ByteLevel");
  read_added(root, out);
  find_document_end(root, out);
  return out;
}

std::string read_bpe(const std::string& path, const std::string& end_of_document) {
  const std::string folder = is_directory(path) ? path : directory_of(path), name = file_name_of(path);
  const bool is_gpt2 =
      is_directory(path) ? !exists(path + "/tokenizer.json") : name == "vocab.json" || name == "merges.txt";
  if (is_directory(path) && is_gpt2 && !exists(path + "/vocab.json"))
    throw DataError("{}: has neither tokenizer.json nor vocab.json and merges.txt", path);
  const std::string settings = folder + "/tokenizer_config.json";
  json config = exists(settings) && (is_gpt2 || is_directory(path)) ? parsed_file(settings) : json();
  if (is_gpt2 && config.is_object() && has(config, "tokenizer_class") &&
      !json_text(config["tokenizer_class"]).starts_with("\"GPT2Tokenizer"))
    throw DataError("{}: is of a {}: its tokenizer.json is needed", folder,
                    json_text(config["tokenizer_class"]));
  json end = config.is_object() ? config.value("eos_token", json()) : json();
  if (end.is_object()) end = end.value("content", json());
  if (!end_of_document.empty()) end = end_of_document;
  json root =
      is_gpt2 ? read_gpt2(folder, end) : parsed_file(is_directory(path) ? path + "/tokenizer.json" : path);
  if (!root.is_object() || !root.contains("model") || !root["model"].is_object())
    throw DataError("{}: has no model: is it a tokenizer.json of Hugging Face?", path);
  const std::string added = json_text(root.value("added_tokens", json()));
  const bool names_end =
      root["model"].contains(document_end_key) ||
      std::ranges::any_of(document_ends, [&](const char* one) { return added.find(one) != added.npos; });
  if (!end.is_null() && (!end_of_document.empty() || !names_end)) root["model"][document_end_key] = end;
  return json_text(root);
}

std::string make_bpe(std::span<const Pair> merges, const std::string& end_of_document) {
  json vocabulary{{end_of_document, 0}}, pairs = json::array();
  std::vector<std::string> tokens{end_of_document};
  const auto add = [&](const std::string& token) {
    if (bytes_of_token(token) == bytes_of_token(end_of_document))
      throw UsageError("--end-of-document {}: is also {}; name another token, such as {}",
                       quote(end_of_document),
                       tokens.size() <= 256 ? "a byte" : "a word that the text teaches", document_ends[0]);
    if (vocabulary.emplace(token, tokens.size()).second) tokens.push_back(token);
  };
  for (const unsigned char byte : byte_alphabet())
    add(characters_of(std::string(1, static_cast<char>(byte))));
  for (const auto& [left, right] : merges) {
    pairs.push_back({tokens[left], tokens[right]});
    add(tokens[left] + tokens[right]);
  }
  json root = of_gpt2(vocabulary, pairs, end_of_document);
  root["model"][document_end_key] = end_of_document;
  return json_text(root);
}

}  // namespace lockstep::data
