#include "kernels/roofline.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::kernels {

void Roofline::add(const std::string& name, std::int64_t launches, double bytes, double flops) {
  constexpr RooflineConstants gpu;
  RooflineFigures& figures = by_name_[name];
  ++figures.calls;
  figures.launches += launches;
  figures.bytes += bytes;
  figures.flops += flops;
  figures.ms += 1e3 * (std::max(bytes / gpu.bytes_per_s, flops / gpu.flops_per_s) +
                       static_cast<double>(launches) * gpu.launch_s);
  if (name.starts_with("attention")) {
    figures.kind = RooflineFigures::Kind::attention;
  } else if (flops > 0) {
    figures.kind = RooflineFigures::Kind::product;
  }
}

std::vector<RooflineFigures> Roofline::operations() const {
  std::vector<RooflineFigures> all;
  for (const auto& [name, figures] : by_name_) {
    all.push_back(figures);
    all.back().name = name;
  }
  std::ranges::stable_sort(all, std::ranges::greater(), &RooflineFigures::ms);
  return all;
}

namespace {

/// The operands of an operation, by name.
struct Operands {
  explicit Operands(const ops::AnyOperation& operation) {
    operation.visit([this](const char* name, const ops::Role&, const Tensor& tensor) {
      if (tensor) all.emplace_back(name, &tensor);
    });
  }
  const Tensor* named(std::string_view name) const {
    const auto found = std::ranges::find(all, name, &std::pair<std::string_view, const Tensor*>::first);
    return found == all.end() ? nullptr : found->second;
  }
  double bytes(std::string_view name) const {
    const Tensor* const tensor = named(name);
    return tensor ? static_cast<double>(tensor->bytes()) : 0;
  }
  std::int64_t count(std::string_view name) const {
    return std::ranges::count(all, name, &std::pair<std::string_view, const Tensor*>::first);
  }

  std::vector<std::pair<std::string_view, const Tensor*>> all;
};

/// Bytes of sums over the rows of x: of its columns' chunks, written and read (kernels/cuda/column_sums.cuh).
double chunk_bytes(const Tensor& x, int sums) {
  constexpr std::int64_t min_rows = 32, max_chunks = 512;
  const std::int64_t width = std::max<std::int64_t>(1, x.size(-1)), rows = x.numel() / width;
  const std::int64_t chunks = std::min(max_chunks, (rows + min_rows - 1) / min_rows);
  return 2.0 * sums * static_cast<double>(chunks * width * static_cast<std::int64_t>(sizeof(float)));
}

constexpr std::int64_t sort_launches = 5;         // CUB's radix sort of keys of up to 24 bits
constexpr std::int64_t updates_of_a_launch = 96;  // kernels/cuda/update.cu
constexpr std::int64_t sums_of_a_launch = 768;    // of squares

}  // namespace

GpuWork gpu_work(const ops::AnyOperation& operation) {
  const std::string_view name = operation.name();
  const Operands operands(operation);
  GpuWork work{.launches = 1, .bytes = operation.cost().bytes};
  if (name == "layer_norm_backward") {  // all gradients, and the fold of those of chunks of rows
    const Tensor& x = *operands.named("x");
    const auto pack = static_cast<std::int64_t>(16 / bytes_of(x.dtype()));
    const bool one_pass = x.size(-1) % pack == 0 && x.size(-1) <= 4 * 32 * pack;
    work.launches = one_pass ? 2 : 3;
    work.bytes += chunk_bytes(x, 2);
    if (!one_pass) work.bytes += operands.bytes("dy") + operands.bytes("x");
  } else if (name == "rms_norm_backward") {
    work.launches = 3;
    work.bytes += operands.bytes("dy") + operands.bytes("x") + chunk_bytes(*operands.named("x"), 1);
  } else if (name == "sum_rows") {
    work.launches = 2;
    work.bytes += chunk_bytes(*operands.named("x"), 1);
  } else if (name == "cross_entropy" ||
             name == "cross_entropy_in_place") {  // the targets are checked, losses of rows are folded
    work.launches = 3;
  } else if (name == "embedding" || name == "gather" || name == "count_correct") {
    work.launches = 2;
  } else if (name == "embedding_backward" || name == "gather_backward") {
    work.launches = 3 + sort_launches;
  } else if (name == "attention_backward") {  // sums of rows, the gradients, dq in its own type
    work.launches = 3;
  } else if (name == "block_sums_of_squares") {
    work.launches = (operands.count("x") + sums_of_a_launch - 1) / sums_of_a_launch;
  } else if (const std::int64_t updates = operands.count("value"); updates > 1) {
    work.launches = (updates + updates_of_a_launch - 1) / updates_of_a_launch;
  } else if (name.starts_with("linear") && operation.has_bf16()) {
    const Tensor* const bias = operands.named("bias");
    if (bias && bias->dtype() == DType::float32) ++work.launches;  // its cast
  }
  return work;
}

class MetaMemory::State final : public StorageOwner, public std::enable_shared_from_this<State> {
 public:
  State()
      : first_(static_cast<std::byte*>(
            ::mmap(nullptr, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (first_ == MAP_FAILED) throw_no_room();
  }
  ~State() override { ::munmap(first_, room_bytes); }

  StorageRef allocate(std::size_t bytes) {
    constexpr std::size_t alignment = 512;
    const std::size_t size = (std::max<std::size_t>(1, bytes) + alignment - 1) / alignment * alignment;
    const std::lock_guard lock(mutex_);
    auto block = std::make_unique<Storage>();
    std::vector<void*>& unused = unused_[size];
    if (unused.empty()) {
      if (room_bytes - used_bytes_ < size) throw_no_room();
      block->data = first_ + used_bytes_;
      used_bytes_ += size;
    } else {
      block->data = unused.back();
      unused.pop_back();
    }
    block->bytes = size;
    block->device = Device::cuda(0);
    block->owner = shared_from_this();
    return StorageRef(block.release());
  }
  void release(Storage* block) noexcept override {
    const std::lock_guard lock(mutex_);
    unused_.at(block->bytes).push_back(block->data);
    delete block;
  }

 private:
  static constexpr std::size_t room_bytes = std::size_t{1} << 42;
  [[noreturn]] static void throw_no_room() {
    throw FailureError("roofline: no address space is left; see ulimit -v");
  }

  std::byte* first_;
  std::mutex mutex_;
  std::size_t used_bytes_ = 0;
  std::map<std::size_t, std::vector<void*>> unused_;  // by size
};

MetaMemory::MetaMemory() : state_(std::make_shared<State>()) {}
StorageRef MetaMemory::allocate(std::size_t bytes) const { return state_->allocate(bytes); }

namespace {

class MetaBackend final : public Backend {
 public:
  explicit MetaBackend(Roofline& into) : into_(into) {}

  Device device() const override { return Device::cuda(0); }
  int threads() const override { return 1; }
  std::string instruction_set() const override { return "none"; }
  Tensor empty(Shape shape, DType dtype, int channel_block) override {
    const auto bytes = static_cast<std::size_t>(stored_numel(shape, channel_block)) * bytes_of(dtype);
    return Tensor::over(memory_.allocate(bytes), shape, dtype, channel_block);
  }
  std::size_t reserved_bytes() const override { return 0; }
  int preferred_channel_block(std::int64_t channels, DType) const override {
    return static_cast<int>(std::max<std::int64_t>(1, channels));
  }
  Shape attention_saved_shape(std::int64_t batch, int heads, std::int64_t queries,
                              std::int64_t) const override {
    return {batch, heads, queries};
  }

 protected:
  void perform(const ops::AnyOperation& operation) override {
    const GpuWork work = gpu_work(operation);
    into_.add(operation.label(), work.launches, work.bytes, operation.cost().flops);
  }
  void copy_elements(const Tensor& from, const Tensor& to) override {
    if (to.device() == Device::cpu()) {
      const Transfer one{from, to};
      return read_elements({&one, 1});
    }
    if (from.device() != Device::cpu())
      into_.add(from.dtype() == to.dtype() ? "copy" : "cast", 1,
                static_cast<double>(from.bytes() + to.bytes()), 0);
  }
  void read_elements(std::span<const Transfer> transfers) override {
    for (const auto& [from, to] : transfers) {
      if (to.dtype() == DType::float64) {
        std::fill_n(to.data<double>(), to.numel(), 1.0);
      } else if (to.dtype() == DType::float32) {
        std::fill_n(to.data<float>(), to.numel(), 1.0F);
      } else if (to.dtype() == DType::int64) {
        std::fill_n(to.data<std::int64_t>(), to.numel(), std::int64_t{1});
      } else {
        std::memset(to.raw(), 0, to.bytes());
      }
    }
  }

 private:
  Roofline& into_;
  MetaMemory memory_;
};

}  // namespace

std::unique_ptr<Backend> make_meta_backend(Roofline& into) { return std::make_unique<MetaBackend>(into); }

}  // namespace lockstep::kernels
