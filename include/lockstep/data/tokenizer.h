// Tokenizer: converts text to tokens, and tokens to text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/registry.h"
#include "lockstep/hdf5/dataset.h"

namespace lockstep::data {

/// Converts between text and tokens, integers in [0, vocabulary()). Several threads may use one at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::int64_t vocabulary() const = 0;  ///< number of different tokens
  /// The tokens of a text; empty for an empty text.
  virtual std::vector<std::int64_t> encode(std::string_view text) const = 0;
  /// The text of tokens. Throws UsageError for a token outside the vocabulary.
  virtual std::string decode(std::span<const std::int64_t> tokens) const = 0;
  /// The definition of the tokenizer, equal to the constructor's argument, without null bytes. Empty: the
  /// name defines the tokenizer.
  virtual std::string text() const { return ""; }

  /// The tokens of a prompt: as encode(), but texts of special tokens ("<|endoftext|>") become these.
  virtual std::vector<std::int64_t> encode_prompt(std::string_view text) const { return encode(text); }
  /// The token that ends each document; -1 if the tokenizer has none.
  virtual std::int64_t end_of_document() const { return -1; }
  /// Where encode() changes a text first (Unicode normal forms, a blank in front): the changed text. A text
  /// may be cut behind a line end, or before an ASCII character. begins: `text` begins a document.
  virtual std::string normalize(std::string_view text, [[maybe_unused]] bool begins) const {
    return std::string(text);
  }
  /// Whether normalize() changes any text.
  virtual bool normalizes() const { return false; }
  /// For long documents: appends the tokens of a normalised text up to the first place, at or behind `stop`,
  /// where encoding may begin anew, and returns this place. It returns an earlier one if the tokens of the
  /// rest depend on what follows `text`; never if `ends`: nothing does. The default is for tokenizers whose
  /// texts may be cut anywhere.
  virtual std::size_t encode_until(std::string_view text, std::size_t stop, [[maybe_unused]] bool ends,
                                   std::vector<std::int64_t>& tokens) const;
};

/// Text of tokens one by one, for a terminal: a character whose tokens are incomplete waits for the others.
class TokenStream {
 public:
  explicit TokenStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}  ///< which must outlive it
  /// The text that is complete now. Throws UsageError for a token outside the vocabulary.
  std::string add(std::int64_t token);
  std::string rest() { return std::exchange(waiting_, {}); }  ///< of a character that remains incomplete

 private:
  const Tokenizer& tokenizer_;
  std::string waiting_;
};

/// The size of a text, from its tokens; the ends of documents have none.
class TextSize {
 public:
  explicit TextSize(const Tokenizer& tokenizer);  ///< of these tokens
  /// Tokens of the vocabulary.
  template <class Token>
  void add(std::span<const Token> tokens) {
    for (const Token token : tokens) bytes_ += bytes_of_[static_cast<std::size_t>(token)];
  }
  std::int64_t bytes() const { return bytes_; }  ///< so far

 private:
  std::vector<std::int64_t> bytes_of_;  // by token
  std::int64_t bytes_ = 0;
};

/// One token per byte.
class Bytes final : public Tokenizer {
 public:
  explicit Bytes([[maybe_unused]] const std::string& text = "") {}  ///< `text` is empty

  std::int64_t vocabulary() const override { return 256; }  ///< the values of a byte
  std::vector<std::int64_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int64_t> tokens) const override;
};

/// Tokenizers by name; each is constructed from its text.
using Tokenizers = lockstep::Registry<Tokenizer, const std::string&>;
/// Adds the built-in tokenizers: bytes, bpe.
void add_built_in(Tokenizers& registry);

/// A tokenizer as data files and checkpoints store it.
struct StoredTokenizer {
  std::string name{};  ///< its name in a registry; empty: unknown
  std::string text{};  ///< Tokenizer::text()

  /// The tokenizer of an id().
  static StoredTokenizer of(std::string_view id, std::string text);
  /// The name, and with a text also a digest of both: "bpe 8d3c0e6f12a4b597". Equal ids mean equal tokens.
  std::string id() const;
  /// Constructs the tokenizer. Errors name `file`, which stores it: UsageError with all known names if the
  /// registry lacks this one; DataError if the tokenizer does not return the text.
  std::unique_ptr<Tokenizer> make(const Tokenizers& registry, const std::string& file) const;
};
/// What users call a tokenizer: "bytes", or a path: a tokenizer.json of Hugging Face, a folder with one or
/// with vocab.json and merges.txt (GPT-2), one of these two, or a data file. end_of_document: the token at
/// the end of documents, instead of the file's. UsageError if there is no such file, DataError if it is
/// damaged or of another kind.
StoredTokenizer read_tokenizer(const std::string& name, const std::string& end_of_document = "");
/// Reads the attributes `tokenizer` and `tokenizer_text` of tokens or of a file.
StoredTokenizer stored_tokenizer(const hdf5::Object& object);
/// Sets the attributes `vocabulary`, `tokenizer` and, if the tokenizer has them, `tokenizer_text` and
/// `end_of_document`. DataError if the text has more than 60,000 bytes and the file is not
/// hdf5::CreateOptions::checksummed.
void store_tokenizer(hdf5::Dataset& tokens, const std::string& name, const Tokenizer& tokenizer);

}  // namespace lockstep::data
