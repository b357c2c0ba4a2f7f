// For tests: pickles in parts, and files of torch.save with them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "checkpoint/weights/pytorch.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/convert.h"
#include "support/mentions.h"
#include "support/temporary_folder.h"

namespace lockstep::test::pickles {

/// A file of PyTorch 2.15 (pytorch_files.py).
inline std::string file_of_pytorch(const std::string& name) {
  return std::string(std::getenv("LOCKSTEP_SOURCE_DIR")) + "/tests/checkpoint/pytorch_files/" + name;
}

// Parts of pickles.
inline std::string text(const std::string& value) {
  const auto bytes = static_cast<std::uint32_t>(value.size());
  return "X" + std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + value;
}
inline std::string number(std::int64_t value) {
  return "\x8a\x08" + std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
inline std::string numbers(const std::vector<std::int64_t>& values) {
  std::string tuple = "(";
  for (const std::int64_t value : values) tuple += number(value);
  return tuple + "t";
}
inline std::string name(const std::string& module, const std::string& value) {
  return "c" + module + "\n" + value + "\n";
}
inline std::string storage(const std::string& key, std::int64_t elements,
                           const std::string& type = "FloatStorage") {
  return "(" + text("storage") + name("torch", type) + text(key) + text("cpu") + number(elements) + "tQ";
}
inline std::string tensor_in(const std::string& storage, std::int64_t offset,
                             const std::vector<std::int64_t>& shape,
                             const std::vector<std::int64_t>& strides) {
  return name("torch._utils", "_rebuild_tensor_v2") + "(" + storage + number(offset) + numbers(shape) +
         numbers(strides) + "\x89" + name("collections", "OrderedDict") + ")RtR";
}
/// Eight floats in storage 0.
inline std::string tensor(std::int64_t offset, const std::vector<std::int64_t>& shape,
                          const std::vector<std::int64_t>& strides) {
  return tensor_in(storage("0", 8), offset, shape, strides);
}
inline std::string dict(const std::string& items) { return "}(" + items + "u"; }
inline std::string pickle(const std::string& value) { return "\x80\x02" + value + "."; }

struct Files {
  TemporaryFolder folder;
  std::string path = folder.file("a.pt");

  void write(const std::vector<std::pair<std::string, std::string>>& entries) {
    std::filesystem::remove(path);
    OpenFile file(path, OpenFile::Mode::create_or_truncate);
    checkpoint::ZipWriter zip(file);
    for (const auto& [entry, bytes] : entries) zip.add(entry, std::as_bytes(std::span(bytes)));
    zip.finish();
  }
  /// An archive with that pickle and storage 0, eight floats 1 to 8.
  void write(const std::string& pickled, const std::vector<float>& values = {1, 2, 3, 4, 5, 6, 7, 8}) {
    write({{"archive/data.pkl", pickled},
           {"archive/data/0", std::string(reinterpret_cast<const char*>(values.data()), 8 * sizeof(float))}});
  }
  void refused(const std::string& pickled, const char* why, const char* key = "") {
    write(pickled);
    BOOST_CHECK_EXCEPTION((checkpoint::PytorchFile{path, key}), DataError, mentions("a.pt: ", why));
  }
  std::vector<float> floats(const checkpoint::PytorchFile& file, std::size_t i) {
    std::vector<float> values(file.views().at(i).bytes / sizeof(float));
    file.read(i, std::as_writable_bytes(std::span(values)));
    return values;
  }
};

/// A linear layer, as in training.pt.
struct Layer {
  Param weight, bias;
  ModelState state{.params = {&weight, &bias}, .buffers = {}, .statistics = {}};

  Layer() {
    weight.name = "weight", weight.value = Tensor::zeros({2, 3});
    bias.name = "bias", bias.value = Tensor::zeros({2});
  }
};

}  // namespace lockstep::test::pickles
