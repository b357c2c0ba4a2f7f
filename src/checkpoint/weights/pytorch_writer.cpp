// Writes files of torch.save.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "base/output.h"
#include "checkpoint/weights/element_types.h"
#include "checkpoint/weights/pytorch.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

/// Parts of a pickle of protocol 2.
class PickleText {
 public:
  void code(std::string_view opcodes) { text_ += opcodes; }
  void name(std::string_view module, std::string_view name) {
    text_ += fmt::format("c{}\n{}\n", module, name);
  }
  void text(std::string_view value) {
    text_ += 'X';
    bytes(static_cast<std::uint32_t>(value.size()));
    text_ += value;
  }
  void number(std::int64_t value) {
    if (value <= std::numeric_limits<std::uint8_t>::max()) {
      text_ += 'K';
      bytes(static_cast<std::uint8_t>(value));
    } else if (value <= std::numeric_limits<std::int32_t>::max()) {
      text_ += 'J';
      bytes(static_cast<std::int32_t>(value));
    } else {
      text_ += "\x8a\x08";
      bytes(value);
    }
  }
  /// A tuple of numbers from 0 on.
  void numbers(std::span<const std::int64_t> values) {
    text_ += '(';
    for (const std::int64_t value : values) number(value);
    text_ += 't';
  }
  const std::string& whole() const { return text_; }

 private:
  template <class T>
  void bytes(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  std::string text_;
};

std::vector<std::int64_t> row_major_strides(const Shape& shape) {
  std::vector<std::int64_t> strides(shape.extents().size());
  std::int64_t stride = 1;
  for (std::size_t i = strides.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(1, shape.extents()[i]);
  }
  return strides;
}

/// torch._utils._rebuild_tensor_v2(storage KEY, 0, shape, strides, False, OrderedDict())
void add_tensor(PickleText& pickle, const Tensor& tensor, std::size_t key) {
  const std::string_view storage = type_of(tensor.dtype()).storage;
  if (storage.empty())
    throw UsageError("{} is not a type of a storage in PyTorch", to_string(tensor.dtype()));
  pickle.name("torch._utils", "_rebuild_tensor_v2");
  pickle.code("((");
  pickle.text("storage");
  pickle.name("torch", storage.substr(std::string_view("torch.").size()));
  pickle.text(std::to_string(key));
  pickle.text("cpu");
  pickle.number(tensor.numel());
  pickle.code("tQ");
  pickle.number(0);
  pickle.numbers(tensor.shape().extents());
  pickle.numbers(row_major_strides(tensor.shape()));
  pickle.code("\x89");
  pickle.name("collections", "OrderedDict");
  pickle.code(")RtR");
}

std::span<const std::byte> bytes_of_text(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

/// The pickle of torch.save for an OrderedDict of contiguous tensors on the CPU, each with a storage of its
/// own. It consists of fixed parts.
void write_pytorch(const std::string& path, std::span<const NamedTensor> tensors,
                   const std::map<std::string, std::string>& metadata) {
  PickleText pickle;
  pickle.code("\x80\x02");
  pickle.name("collections", "OrderedDict");
  pickle.code(")R(");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    pickle.text(tensors[i].name);
    add_tensor(pickle, tensors[i].value, i);
  }
  pickle.code("u.");
  write_whole(path, temporary_path(path, std::to_string(::getpid())), [&](OpenFile& file) {
    ZipWriter zip(file);
    zip.add("archive/data.pkl", bytes_of_text(pickle.whole()));
    zip.add("archive/byteorder", bytes_of_text("little"));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& tensor = tensors[i].value;
      zip.add(fmt::format("archive/data/{}", i),
              {static_cast<const std::byte*>(tensor.raw()), tensor.bytes()});
    }
    for (const auto& [key, value] : metadata) zip.add("archive/" + key, bytes_of_text(value));
    zip.add("archive/version", bytes_of_text("3\n"));
    zip.finish();
  });
}

}  // namespace lockstep::checkpoint
