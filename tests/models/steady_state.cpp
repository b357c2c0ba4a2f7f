// Steady state: once shapes have been seen, forward and backward of every model take no memory from the
// system.
//
// Our code gets memory in two ways: operator new, counted here on every thread, and the backend's pool, whose
// size is compared. What oneDNN allocates inside its own calls is told apart by the caller's address and only
// reported.
#include <dlfcn.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <new>

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/models/registry.h"

namespace {

std::atomic<long> own_allocations{0}, library_allocations{0};

void* counted(std::size_t bytes, std::size_t alignment, const void* caller) {
  Dl_info where{};
  const bool library =
      dladdr(caller, &where) != 0 && where.dli_fname && std::strstr(where.dli_fname, "libdnnl");
  ++(library ? library_allocations : own_allocations);
  const std::size_t unit = std::max(alignment, sizeof(void*));
  void* const memory = std::aligned_alloc(unit, std::max(unit, (bytes + unit - 1) / unit * unit));
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new[](std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace lockstep::test {
namespace {

struct Work {
  models::ModelConfig config;
  Tensor x, y;
};

std::vector<Work> all_work() {
  const Tensor images = Tensor::zeros({4, 3, 8, 8}), labels = Tensor::zeros({4}, DType::int64);
  const Tensor tokens = Tensor::zeros({3, 16}, DType::int64);
  const models::ModelConfig resnet{
      .name = "resnet", .blocks = {1, 1}, .width = 16, .in_channels = 3, .classes = 10};
  models::ModelConfig sync = resnet;
  sync.batch_norm = "sync";
  return {
      {{.name = "mlp", .sizes = {192, 64, 32, 10}, .dropout = 0.1}, images, labels},
      {resnet, images, labels},
      {sync, images, labels},
      {{.name = "gpt", .layers = 2, .heads = 2, .channels = 32, .context = 16, .vocab = 48, .dropout = 0.1},
       tokens,
       tokens}};
}

BOOST_AUTO_TEST_CASE(the_count_sees_allocations) {
  const long before = own_allocations;
  const std::vector<int> numbers(static_cast<std::size_t>(before) % 7 + 100);
  BOOST_TEST(own_allocations - before >= 1);
  BOOST_TEST(numbers.size() >= 100u);
}

BOOST_AUTO_TEST_CASE(steps_after_the_third_allocate_nothing) {
  const auto self = comm::make_self_communicator();
  for (const int threads : {1, 2}) {
    for (const Work& work : all_work()) {
      const auto model = models::make_model(work.config, 1);
      const auto backend = kernels::make_cpu_backend(threads);
      LocalGradients gradients(*model, *backend);
      Tape tape(*backend);
      long before = 0, library_before = 0;
      std::size_t reserved = 0;
      constexpr std::uint64_t warm = 3, steps = 8;
      for (std::uint64_t step = 0; step < steps; ++step) {
        if (step == warm) {
          reserved = backend->reserved_bytes();
          library_before = library_allocations;
          before = own_allocations;
        }
        gradients.clear();
        tape.begin({.step = step, .sink = &gradients, .layer_communicator = self.get()});
        backward(cross_entropy(model->forward(tape, work.x), work.y));
        tape.finish_backward();
        tape.begin({.training = false, .record = false});
        model->forward(tape, work.x);
      }
      const long own = own_allocations - before, library = library_allocations - library_before;
      BOOST_TEST_CONTEXT(work.config.name << ", batch norm " << work.config.batch_norm << ", " << threads
                                          << " threads") {
        // Attention's threads take a strip of working memory each, when they first work at the same moment:
        // which step that is in is chance.
        const long late_strips = work.config.name == "gpt" ? threads - 1 : 0;
        BOOST_TEST(own <= late_strips);
        if (late_strips == 0) BOOST_TEST(backend->reserved_bytes() == reserved);
        BOOST_TEST_MESSAGE(work.config.name << ": oneDNN made " << library / long{steps - warm}
                                            << " objects of its own a step");
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::test
