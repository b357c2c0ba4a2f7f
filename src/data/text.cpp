#include "lockstep/data/text.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <limits>

#include "data/data_file.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/hdf5/file.h"
#include "lockstep/ops/loss.h"

namespace lockstep::data {
namespace {

[[noreturn]] void throw_token(const std::string& path, std::int64_t index, std::int64_t token,
                              std::int64_t vocabulary) {
  throw DataError("{}: token {} of /tokens is {}, which is not in the vocabulary of {}", path, index, token,
                  vocabulary);
}

void check_tokens(const RowStore& store, std::int64_t vocabulary) {
  store.for_each_value([&](std::int64_t i, std::int64_t token) {
    if (token >= vocabulary) throw_token(store.path(), i, token, vocabulary);
  });
}

std::int64_t checked_context(const Request& request) {
  if (request.context == 0)
    throw UsageError("data.format = text: the model of model.name does not read text");
  return request.context;
}

}  // namespace

Text::Text(const std::string& path, std::int64_t context, const TextOptions& options)
    : Text(std::vector<std::string>{path}, context, options) {}

Text::Text(const std::vector<std::string>& paths, std::int64_t context, const TextOptions& options)
    : context_(context) {
  if (paths.empty()) throw UsageError("text: the list of files is empty");
  if (context < 1) throw UsageError("text: context {} must be at least 1", context);
  if (options.documents_apart) end_of_document_ = -1;
  std::int64_t memory_left_bytes = options.memory_limit_bytes;
  for (const std::string& path : paths) add_file(path, memory_left_bytes);
  for (const char* const name : {"x", "y"})
    fields_.push_back({.name = name, .dtype = DType::int64, .shape = {context_}, .classes = vocabulary_});
  if (end_of_document_) fields_.push_back({.name = "positions", .dtype = DType::int64, .shape = {context_}});
}

Text::Text(const Request& request)
    : Text(request.files, checked_context(request),
           {.memory_limit_bytes = request.memory_limit_bytes, .documents_apart = request.documents_apart}) {
  if (request.classes > 0 && vocabulary_ > request.classes)
    throw DataError("{}: has a vocabulary of {} tokens, but model.vocab = {}", name(), vocabulary_,
                    request.classes);
}

bool Text::fits(const Request& request) {
  return request.context > 0 && request.fields.empty() && !request.normalizes;
}

Text::~Text() = default;

FieldMeaning Text::meaning(std::string_view field) const {
  FieldMeaning meaning = Dataset::meaning(field);
  const double bytes = tokens_ > 0 ? static_cast<double>(text_bytes_) / static_cast<double>(tokens_) : 0;
  meaning.tokens = {{tokenizer_.id(), tokenizer_.text, vocabulary_, bytes}, sources_.front().tokens->path()};
  return meaning;
}

void Text::hold_on_node(comm::HostGroup& world, std::int64_t& memory_left_bytes) {
  std::vector<RowStore*> stores;
  for (const Source& source : sources_)
    if (!source.tokens->in_memory()) stores.push_back(source.tokens.get());
  RowStore::hold_on_node(stores, world, memory_left_bytes);
  comm::run_on_all(world, [&] {
    for (const RowStore* const store : stores)
      if (store->in_memory()) check_tokens(*store, vocabulary_);
  });
}

void Text::add_file(const std::string& path, std::int64_t& memory_left_bytes) {
  const auto opened = std::make_shared<const hdf5::File>(hdf5::File::open(path));
  const hdf5::File& file = *opened;
  hdf5::Dataset tokens = open_tokens(file);
  if (tokens.shape().size() != 1 || (tokens.dtype() != DType::uint16 && tokens.dtype() != DType::uint32)) {
    throw DataError("{}: /tokens is {} [{}]; must be uint16 or uint32 [N]", path, tokens.type_name(),
                    fmt::join(tokens.shape(), ", "));
  }
  if (tokens.rows() - 1 < context_) {
    throw DataError("{}: /tokens has {} tokens, but one window of context {} needs {}", path, tokens.rows(),
                    context_, context_ + 1);
  }
  const auto attribute_owner = [&](const char* attribute) -> const hdf5::Object& {
    if (!tokens.has_attribute(attribute) && file.has_attribute(attribute)) return file;
    return tokens;
  };
  const std::int64_t vocabulary = attribute_owner("vocabulary").int64_attribute("vocabulary");
  StoredTokenizer tokenizer = stored_tokenizer(attribute_owner("tokenizer"));
  if (vocabulary < 1 || vocabulary > (std::int64_t{1} << 32)) {
    throw DataError("{}: attribute 'vocabulary' of /tokens is {}; must be from 1 to 2^32", path, vocabulary);
  }
  if (!sources_.empty() && (vocabulary != vocabulary_ || tokenizer.id() != tokenizer_.id())) {
    throw DataError("{}: has vocabulary {} of tokenizer '{}', but {} has {} of '{}'", path, vocabulary,
                    tokenizer.id(), sources_.front().tokens->path(), vocabulary_, tokenizer_.id());
  }
  if (end_of_document_) {
    if (!tokens.has_attribute("end_of_document"))
      throw DataError(
          "{}: /tokens has no attribute end_of_document, the token after each document, which data.documents "
          "= mask needs; lockstep prepare text writes it with --tokenizer FILE",
          path);
    const std::int64_t end = tokens.int64_attribute("end_of_document");
    if (end < 0 || end >= vocabulary)
      throw DataError("{}: attribute end_of_document of /tokens is {}, which is not in the vocabulary of {}",
                      path, end, vocabulary);
    if (!sources_.empty() && end != end_of_document_)
      throw DataError("{}: documents end with token {}, but with {} in {}", path, end, *end_of_document_,
                      sources_.front().tokens->path());
    end_of_document_ = end;
  }
  const std::int64_t bytes = tokens.has_attribute("text_bytes") ? tokens.int64_attribute("text_bytes")
                             : tokenizer.name == "bytes"        ? tokens.rows()
                                                                : 0;
  text_bytes_ = bytes > 0 && (sources_.empty() || text_bytes_ > 0) ? text_bytes_ + bytes : 0;
  tokens_ += tokens.rows();
  vocabulary_ = vocabulary;
  tokenizer_ = std::move(tokenizer);

  const DType stored_as = *tokens.dtype();
  Source source;
  source.first = size_;
  source.windows = (tokens.rows() - 1) / context_;
  StoredFiles files;
  source.tokens = std::make_unique<RowStore>(opened, std::move(tokens), stored_as, memory_left_bytes, files);
  if (source.tokens->in_memory()) check_tokens(*source.tokens, vocabulary);
  size_ += source.windows;
  sources_.push_back(std::move(source));
}

std::string Text::name() const { return name_of_files(sources_[0].tokens->path(), sources_.size()); }

void Text::copy_tokens(const Source& source, std::int64_t window, std::int64_t* x, std::int64_t* y) const {
  const std::int64_t first = window * context_;
  source.tokens->with_values(first, context_ + 1, [&](const auto* tokens) {
    for (std::int64_t t = 0; t <= context_; ++t) {
      const auto token = static_cast<std::int64_t>(tokens[t]);
      if (token >= vocabulary_) throw_token(source.tokens->path(), first + t, token, vocabulary_);
      if (t < context_) x[t] = token;
      if (t > 0) y[t - 1] = token;
    }
  });
}

void Text::part_documents(const std::int64_t* x, std::int64_t* y, std::int64_t* positions) const {
  constexpr std::int64_t no_target = ops::CrossEntropyOptions{}.ignore_index;
  std::int64_t position = 0;
  for (std::int64_t t = 0; t < context_; ++t) {
    positions[t] = position++;
    if (x[t] != end_of_document_) continue;
    y[t] = no_target;
    position = 0;
  }
}

void Text::read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const {
  check_read(samples, into);
  auto* x_row = into[0].data<std::int64_t>();
  auto* y_row = into[1].data<std::int64_t>();
  auto* positions_row = end_of_document_ ? into[2].data<std::int64_t>() : nullptr;
  for (const std::int64_t sample : samples) {
    const Source& source = source_of(sources_, sample);
    copy_tokens(source, sample - source.first, x_row, y_row);
    if (end_of_document_) {
      part_documents(x_row, y_row, positions_row);
      positions_row += context_;
    }
    x_row += context_;
    y_row += context_;
  }
}

}  // namespace lockstep::data
