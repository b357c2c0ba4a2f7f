// Text: windows of tokens in HDF5 files.
//
// A file has /tokens uint16 or uint32 [N]. The dataset or the file has the attributes vocabulary (every token
// is below it), tokenizer (its name; "bytes": one token per byte) and, if the name does not define the
// tokenizer, tokenizer_text (its definition). end_of_document, if present, is the token after each document;
// text_bytes the size of the text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

class RowStore;

/// Options of Text.
struct TextOptions {
  /// See ArraysOptions.
  std::int64_t memory_limit_bytes = std::int64_t{2} << 30;
  bool documents_apart = false;  ///< see Text
};

/// Sample i of a file is its tokens [i T, i T + T]: field x int64 [T] is the first T of them, y int64 [T] the
/// last T. Adjacent windows share one token; an incomplete last window is ignored. With documents_apart a
/// sample has the field positions, int64 [T], too: how many tokens of its document are before each token of x
/// in the sample; and y is -100, no target, where x ends a document. The constructor throws a
/// DataError with the file if it is missing, not HDF5, lacks /tokens, vocabulary or (with documents_apart)
/// end_of_document, has a wrong type, is
/// shorter than one window, or (like read()) if a token is not below the vocabulary; UsageError if context
/// < 1.
class Text final : public Dataset {
 public:
  /// One file, as samples of `context` tokens.
  Text(const std::string& path, std::int64_t context, const TextOptions& options = {});
  /// Several files as one data set, in this order.
  Text(const std::vector<std::string>& paths, std::int64_t context, const TextOptions& options = {});
  /// data.format = text. UsageError if the model does not read text, DataError if its vocabulary is smaller.
  explicit Text(const Request& request);
  static bool fits(const Request& request);  ///< whether the model reads text
  ~Text() override;

  std::int64_t size() const override { return size_; }  ///< number of samples
  const std::vector<Field>& fields() const override { return fields_; }
  bool sequential() const override { return true; }
  std::string name() const override;
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override;
  FieldMeaning meaning(std::string_view field) const override;
  void hold_on_node(comm::HostGroup& world, std::int64_t& memory_left_bytes) override;

  std::int64_t vocabulary() const { return vocabulary_; }    ///< number of different tokens
  std::string tokenizer() const { return tokenizer_.id(); }  ///< empty if the file does not name it

 private:
  struct Source {
    std::unique_ptr<RowStore> tokens;
    std::int64_t first = 0, windows = 0;
  };

  void add_file(const std::string& path, std::int64_t& memory_left_bytes);
  void copy_tokens(const Source& source, std::int64_t window, std::int64_t* x, std::int64_t* y) const;
  /// Sets the positions of a sample, and removes the targets of other documents.
  void part_documents(const std::int64_t* x, std::int64_t* y, std::int64_t* positions) const;

  std::int64_t context_;
  std::int64_t size_ = 0;
  std::int64_t vocabulary_ = 0;
  std::int64_t tokens_ = 0, text_bytes_ = 0;     // of all files; text_bytes: 0: not known
  std::optional<std::int64_t> end_of_document_;  // a token, if documents are apart
  StoredTokenizer tokenizer_;
  std::vector<Field> fields_;
  std::vector<Source> sources_;
};

}  // namespace lockstep::data
