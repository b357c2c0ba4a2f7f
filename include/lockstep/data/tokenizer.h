// Tokenizer: converts text to tokens, and tokens to text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
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
  /// The definition of the tokenizer, equal to the constructor's argument: at most 60,000 bytes, no null
  /// bytes. Empty: the name defines the tokenizer.
  virtual std::string text() const { return ""; }
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
/// Adds the built-in tokenizer, bytes.
void add_built_in(Tokenizers& registry);

/// A tokenizer as data files and checkpoints store it.
struct StoredTokenizer {
  std::string name{};  ///< its name in a registry; empty: unknown
  std::string text{};  ///< Tokenizer::text()

  /// The name, and with a text also a digest of both: "bpe 8d3c0e6f12a4b597". Equal ids mean equal tokens.
  std::string id() const;
  /// Constructs the tokenizer. Errors name `file`, which stores it: UsageError with all known names if the
  /// registry lacks this one; DataError if the tokenizer does not return the text.
  std::unique_ptr<Tokenizer> make(const Tokenizers& registry, const std::string& file) const;
};
/// Reads the attributes `tokenizer` and `tokenizer_text` of tokens or of a file.
StoredTokenizer stored_tokenizer(const hdf5::Object& object);
/// Sets the attributes `vocabulary`, `tokenizer` and, if the tokenizer has a text, `tokenizer_text`.
/// DataError if the text is too long.
void store_tokenizer(hdf5::Dataset& tokens, const std::string& name, const Tokenizer& tokenizer);

}  // namespace lockstep::data
