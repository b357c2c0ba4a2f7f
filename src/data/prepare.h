// Makes data files (arrays.h and text.h describe them) from common formats.
//
// Inputs may be gzipped. They are read twice, to count and then to write, a MiB at a time (or one image or
// line if that is more). The output gets its name when it is complete and on storage. Bad input throws
// DataError with the file and the line or position; no output remains. One process calls these, not every
// rank.
//
// `statistics` is the path of another data file whose mean, std and class names the output takes (evaluation
// data takes those of the training data); empty: those of the images themselves.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/shape.h"
#include "lockstep/comm/host_group.h"
#include "lockstep/data/augment.h"

namespace lockstep::data {

/// The file to make. UsageError unless the name is free, or `replace` is set and it is a regular file. An
/// input is never replaced.
struct Output {
  std::string path{};
  bool replace = false;
};

/// What was written, for a message.
struct Prepared {
  std::int64_t samples = 0;          ///< images, or tokens
  Shape image{};                     ///< [C, H, W]; of text none
  std::string element_type{};        ///< of /x or /tokens
  std::int64_t classes = 0;          ///< the largest label + 1, or the vocabulary
  std::vector<std::string> notes{};  ///< what was left out, and why: "a.csv:1 is a heading, skipped"
  std::vector<std::string> warnings{};
  bool one_label = false;                  ///< of images: every label is the same
  std::vector<std::string> class_names{};  ///< of images whose labels were names: label i has name i
};

struct CsvOptions {
  /// The column that is the label: "last", "first", its name in the heading, or its number, from 1.
  std::string label = "last";
  char separator = '\0';  ///< of fields; '\0': comma, semicolon or tab, as the first line of each file tells
  std::optional<bool> heading{};  ///< each file has one; none: its first two lines tell
  Shape image{};                  ///< [C, H, W]; rank 0: every value is one channel, [values, 1, 1]
  std::string statistics{};
};
/// A line is one sample: numbers and a label, which is an integer from 0 on, or a name. Fields may be in
/// double quotes. Left out, with a note: blank lines, a heading (docs/data.md says what is one; DataError if
/// it may be a sample as well), and what numbers or names the rows without a name. A value that is missing is
/// a DataError (names of labels that look like one are classes, with a warning), and so are headings that
/// differ between files or from the names in `statistics`, and labels that are names here and numbers there.
/// /x is uint8 if every value is an integer in [0, 255] and /x of `statistics` is uint8, too, else float32;
/// its attribute names has the heading. Names become labels in their order as bytes, from 0, or those of the
/// class names in `statistics` if that has any, and are stored as text, a line each, in the attribute classes
/// of /y. Throws UsageError if there is no column `label`, or several.
Prepared prepare_csv(std::span<const std::string> inputs, const Output& output,
                     const CsvOptions& options = {});

/// MNIST's format: files of unsigned bytes, images [N, H, W] or [N, C, H, W] and labels [N], distinguished by
/// their headers. The first file of labels belongs to the first of images, and so on.
Prepared prepare_idx(std::span<const std::string> inputs, const Output& output,
                     const std::string& statistics = {});

struct CifarOptions {
  int label_bytes = 0;  ///< 1 (CIFAR-10), 2 (CIFAR-100: coarse, fine); 0: from the size of the first file
  bool coarse = false;  ///< CIFAR-100: the 20 coarse labels instead of the 100 fine ones
  std::string statistics{};
};
/// The binary version of CIFAR: records of labels and 3 x 32 x 32 bytes.
Prepared prepare_cifar(std::span<const std::string> inputs, const Output& output,
                       const CifarOptions& options = {});

/// How pictures are packed.
struct PackOptions {
  enum class Encode { keep, jpeg, raw };

  Encode encode = Encode::keep;  ///< files as they are; JPEG of quality 95; or pixels, for images
  std::int64_t size = 0;         ///< jpeg: of the shorter side, 0: as it is; raw: of the square at the centre
  int files = 0;                 ///< how many to write; 0: one for each file_bytes of the pictures
  bool skip_bad = false;         ///< leaves out what cannot be decoded
  PictureOptions pictures{};
  static constexpr std::int64_t file_bytes = std::int64_t{1} << 30;
};
constexpr std::array<const char*, 3> words(PackOptions::Encode) { return {"keep", "jpeg", "raw"}; }
/// A folder of pictures (PictureList), in the order of their names: /x has the bytes of all, /x_offsets where
/// each begins, /y the classes. raw: images as other preparations make them. Of several files, number 1 of 4
/// is OUT-00001-of-00004.h5. Each rank makes some; the bytes are the same at any number of ranks, and files
/// of an earlier start stay. Collective. DataError, with the pictures' names, if some cannot be decoded.
Prepared prepare_pictures(const std::string& folder, const Output& output, const PackOptions& options,
                          comm::HostGroup& world);

/// Text files and folders of them (in the order of their names, without links), one token a byte: vocabulary
/// 256, tokenizer "bytes". Files that are not text (archives, UTF-16, null bytes near their
/// start, many control characters anywhere) are skipped in a folder, and else a DataError.
Prepared prepare_text(std::span<const std::string> inputs, const Output& output);

}  // namespace lockstep::data
