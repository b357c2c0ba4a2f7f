// Training on a real GPU: PyTorch's trajectories, and runs that move between it and the CPU.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>

#include "checkpoint/sample.h"
#include "comm/nccl/on_gpu.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/ops/elementwise.h"
#include "support/gpu_labels.h"
#include "support/ranks.h"
#include "train/golden_train.h"
#include "train/on_a_device.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(runs_on_a_gpu, *ranks(1, 2, 4))

Place on_gpu() {
  Place place(kernels::make_cuda_backend(own_gpu()));
  place.transport =
      comm::make_nccl_transport(world(), {.device = own_gpu(), .stream = place.backend->stream()});
  return place;
}

const std::string sgd = "name = sgd\nmomentum = 0.9\n";

using Values = std::vector<std::pair<std::string, Tensor>>;

/// Float32 values within a part of the largest of their tensor.
void check_close(const Values& found, const Values& wanted, double tolerance) {
  BOOST_REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const Tensor &a = found[i].second, &b = wanted[i].second;
    if (a.dtype() != DType::float32) {
      BOOST_TEST(std::memcmp(a.raw(), b.raw(), b.bytes()) == 0, found[i].first);
      continue;
    }
    double largest = 1e-3, most = 0;
    for (std::int64_t k = 0; k < b.numel(); ++k) {
      largest = std::max(largest, std::abs(static_cast<double>(b.data<float>()[k])));
      most = std::max(most, std::abs(static_cast<double>(a.data<float>()[k]) - b.data<float>()[k]));
    }
    BOOST_TEST(most <= tolerance * largest, found[i].first << " is off by " << most << " of " << largest);
  }
}

bool same_bits(const Values& a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].second.raw(), b[i].second.raw(), b[i].second.bytes()) != 0) return false;
  }
  return a.size() == b.size();
}

BOOST_AUTO_TEST_CASE(trajectories_are_those_of_pytorch) {
  Place gpu = on_gpu();
  train_all_cases(gpu.sums(), *gpu.backend);
}

BOOST_AUTO_TEST_CASE(it_starts_from_the_same_bits_and_trains_as_the_cpu_does) {
  for (const std::string& model : {mlp, gpt, resnet}) {
    Place cpu = on_cpu(), gpu = on_gpu();
    // Not AdamW, which makes steps of equal size of what is only rounding.
    const train::Config config = device_config(model, sgd);
    DeviceRun there(config, gpu), here(config, cpu);
    BOOST_TEST(same_bits(there.values(), here.values()));
    there.run_to(3);
    here.run_to(3);
    check_close(there.values(), here.values(), 2e-3);
    for (std::size_t i = 0; i < here.losses().size(); ++i)
      BOOST_TEST(std::abs(there.losses()[i] - here.losses()[i]) < 1e-3 * here.losses()[i]);
  }
}

BOOST_AUTO_TEST_CASE(the_same_steps_give_the_same_bits_again) {
  const train::Config config = device_config(gpt);
  Place gpu = on_gpu();
  DeviceRun one(config, gpu), two(config, gpu);
  one.run_to(4);
  two.run_to(4);
  BOOST_TEST(same_bits(one.values(), two.values()));
}

BOOST_AUTO_TEST_CASE(what_it_holds_is_saved_as_the_cpu_would_save_it) {
  const SharedFolder folder(world());
  for (const bool async : {false, true}) {
    Place cpu = on_cpu(), gpu = on_gpu();
    DeviceRun here(device_config(gpt), cpu), there(device_config(gpt), gpu);
    here.run_to(2);
    const std::string name = folder.file(async ? "async" : "sync");
    checkpoint::save_file(name + ".h5", here.contents(), world());
    const checkpoint::StateDict contents = there.contents();
    checkpoint::load_file(name + ".h5", contents, world());  // bits that the CPU made, on the GPU
    checkpoint::Store store(name, world(), {.async = async});
    const std::string saved = store.save_state_dict(2, there.contents());
    if (async) there.run_to(4);  // next to the writer
    store.finish();
    const auto found = checkpoint::read_index(saved, world()),
               wanted = checkpoint::read_index(name + ".h5", world());
    BOOST_REQUIRE(found.tensors.size() == wanted.tensors.size());
    for (std::size_t t = 0; t < found.tensors.size(); ++t)
      BOOST_TEST(found.tensors[t].digest == wanted.tensors[t].digest, found.tensors[t].name);
  }
}

BOOST_AUTO_TEST_CASE(a_run_moves_to_the_gpu_and_back) {
  const SharedFolder folder(world());
  const train::Config config = device_config(resnet, sgd);
  Place cpu = on_cpu(), gpu = on_gpu();
  DeviceRun straight(config, cpu), first(config, cpu), second(config, gpu), third(config, cpu);
  straight.run_to(3);
  first.run_to(1);
  checkpoint::save_file(folder.file("1.h5"), first.contents(), world());
  checkpoint::load_file(folder.file("1.h5"), second.contents(), world());
  BOOST_TEST(same_bits(second.values(), first.values()));
  second.run_to(2);
  checkpoint::save_file(folder.file("2.h5"), second.contents(), world());
  checkpoint::load_file(folder.file("2.h5"), third.contents(), world());
  BOOST_TEST(same_bits(third.values(), second.values()));
  third.run_to(3);
  check_close(third.values(), straight.values(), 2e-3);
}

/// A batch of this many samples of so many numbers, each its own.
class Numbers final : public Pairs {
 public:
  explicit Numbers(std::int64_t width) : Pairs("numbers", 4096, {width}, 4096), width_(width) {}

 private:
  void read_pairs(std::span<const std::int64_t> samples, const Tensor& x, const Tensor& y) const override {
    const auto width = static_cast<std::size_t>(width_);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      std::fill_n(x.data<float>() + i * width, width, static_cast<float>(samples[i]));
      y.data<std::int64_t>()[i] = samples[i];
    }
  }

  std::int64_t width_;
};

void check_batches(std::int64_t width, int samples, std::int64_t steps) {
  const Numbers numbers(width);
  const auto gpu = kernels::make_cuda_backend(own_gpu());
  data::LoaderOptions options{.global_batch = samples, .shards = 1, .seed = 3};
  data::Loader here(numbers, options, 0, 1);
  options.backend = gpu.get();
  data::Loader there(numbers, options, 0, 1);
  // Nothing waits between steps: what a batch held is added up behind the program.
  std::vector<Tensor> sums;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Tensor x = there.at(step).shards[0]["x"], sum = gpu->empty({width});
    for (int again = 0; again < 8; ++again) gpu->run(ops::SumRows{x, sum, false});
    sums.push_back(sum);
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    double wanted = 0;
    const Tensor y = here.at(step).shards[0]["y"];
    for (std::int64_t i = 0; i < y.numel(); ++i) wanted += static_cast<double>(y.data<std::int64_t>()[i]);
    const Tensor found = kernels::on_cpu(sums[static_cast<std::size_t>(step)], gpu.get());
    for (std::int64_t k = 0; k < width; k += width / 3)
      BOOST_TEST(std::abs(found.data<float>()[k] - wanted) < 1e-4 * wanted, "step " << step);
  }
}

BOOST_AUTO_TEST_CASE(batches_arrive_while_it_computes) { check_batches(64, 32, 24); }
BOOST_AUTO_TEST_CASE(large_batches_arrive_while_it_computes, *large()) { check_batches(1024, 512, 24); }

BOOST_AUTO_TEST_CASE(reads_of_many_pieces_bring_every_byte) {
  const auto gpu = kernels::make_cuda_backend(own_gpu());
  for (const std::int64_t elements : {0, 1, (4 << 20) / 4, (4 << 20) / 4 + 1, 5 * (4 << 20) / 4 + 3}) {
    const Tensor host = Tensor::empty({elements}), back = Tensor::zeros({elements});
    for (std::int64_t i = 0; i < elements; ++i) host.data<float>()[i] = static_cast<float>(i % 16'777'213);
    gpu->copy(kernels::on_device(host, *gpu), back);
    BOOST_TEST((elements == 0 || std::memcmp(host.raw(), back.raw(), host.bytes()) == 0), elements);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
