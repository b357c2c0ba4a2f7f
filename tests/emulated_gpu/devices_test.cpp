// Two emulated devices: what CUDA refuses between them, and the GPU half on the second one, from threads that
// never named it, and on both at once.
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/sample.h"
#include "comm/nccl/on_gpu.h"
#include "comm/sums.h"
#include "emulated_gpu/holders.h"
#include "emulated_gpu/runtime.h"
#include "kernels/cuda/libraries.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/ops/elementwise.h"
#include "support/environment.h"
#include "support/ranks.h"
#include "train/device.h"
#include "train/on_a_device.h"

namespace lockstep::test {
namespace {

using emulated_gpu::WithDevice;

BOOST_AUTO_TEST_SUITE(devices_test)

std::unique_ptr<Stream> stream_of(int device) {
  const WithDevice current(device);
  return std::make_unique<Stream>();
}

BOOST_AUTO_TEST_CASE(each_thread_begins_with_the_first) {
  const WithDevice second(1);
  int here = -1, there = -1;
  cudaGetDevice(&here);
  std::thread([&] { cudaGetDevice(&there); }).join();
  BOOST_TEST(here == 1);
  BOOST_TEST(there == 0);
}

BOOST_AUTO_TEST_CASE(an_event_is_recorded_in_streams_of_its_device_and_waited_for_by_all) {
  Notes notes;
  const Stream first;
  const Event event;
  const std::unique_ptr<Stream> second = stream_of(1);
  BOOST_TEST(last_error_of(cudaEventRecord(event, *second)) == cudaErrorInvalidResourceHandle);
  notes.ask(first, 1);
  const WithDevice current(1);
  BOOST_TEST(cudaEventRecord(event, first) == cudaSuccess);
  BOOST_TEST(cudaStreamWaitEvent(*second, event, 0) == cudaSuccess);
  notes.ask(*second, 2);
  BOOST_TEST(cudaStreamSynchronize(*second) == cudaSuccess);
  BOOST_TEST((notes.done == std::vector{1, 2}));
  BOOST_TEST(cudaEventQuery(event) == cudaSuccess);
  BOOST_TEST(cudaEventSynchronize(event) == cudaSuccess);
}

BOOST_AUTO_TEST_CASE(a_handle_of_cudnn_takes_streams_of_its_device_only) {
  const WithDevice current(1);
  cudnnHandle_t handle = nullptr;
  const Stream second;
  const std::unique_ptr<Stream> first = stream_of(0);
  BOOST_REQUIRE(kernels::cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS);
  BOOST_TEST(kernels::cudnnSetStream(handle, *first) == CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH);
  BOOST_TEST(kernels::cudnnSetStream(handle, second) == CUDNN_STATUS_SUCCESS);
  BOOST_TEST(kernels::cudnnDestroy(handle) == CUDNN_STATUS_SUCCESS);
}

BOOST_AUTO_TEST_SUITE_END()

// --- what runs on them
BOOST_AUTO_TEST_SUITE(on_two_devices, *ranks(1, 2))

Place on(int device) {
  Place place(kernels::make_cuda_backend(device));
  place.transport = comm::make_nccl_transport(
      world(),
      {.device = device, .stream = place.backend->stream(), .reproducible = true, .share_gpu = true});
  return place;
}

train::Config captured(const std::string& model, const std::string& precision = "fp32") {
  train::Config config = device_config(model);
  config.train.precision = precision;
  config.ddp.graph = ddp::Graph::always;
  return config;
}

const std::string plain_gpt = "name = gpt\nlayers = 2\nheads = 2\nchannels = 16\ncontext = 8\nvocab = 256\n";

void check_same(DeviceRun& found, DeviceRun& wanted) {
  BOOST_TEST(found.losses() == wanted.losses(), boost::test_tools::per_element());
  const auto a = found.values(), b = wanted.values();
  BOOST_REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    BOOST_TEST(std::memcmp(a[i].second.raw(), b[i].second.raw(), b[i].second.bytes()) == 0, a[i].first);
}

/// From a thread whose current device is still the first.
template <class Work>
void on_another_thread(const Work& work) {
  std::thread(work).join();
}

BOOST_AUTO_TEST_CASE(runs_on_both_by_turns_have_the_same_bits) {
  for (const auto& [model, precision] : {std::pair<std::string, std::string>{mlp, "fp32"},
                                         {plain_gpt, "bf16"},
                                         {resnet, "fp32"},
                                         {resnet, "bf16"}}) {
    const train::Config config = captured(model, precision);
    Place first = on(0), second = on(1);
    DeviceRun one(config, first), other(config, second);
    for (std::int64_t end = 1; end <= 7; ++end) {
      one.run_to(end);
      other.run_to(end);
    }
    check_same(other, one);
    BOOST_TEST(other.replicas().captured_steps().launches == 4);
    BOOST_TEST((other.model().state().params.front()->value.device() == Device::cuda(1)));
  }
}

/// Makes the first device current before each operation of another.
struct FirstIsCurrent final : kernels::Observer {
  void begin() override { cudaSetDevice(0); }
  void end(std::string_view, const ops::Cost&, bool) override {}
};

BOOST_AUTO_TEST_CASE(each_operation_makes_its_device_the_current_one) {
  for (const std::string& model : {plain_gpt, resnet}) {
    train::Config config = captured(model, "bf16");
    config.ddp.graph = ddp::Graph::never;
    Place first = on(0), second = on(1);
    DeviceRun wanted(config, first), found(config, second);
    FirstIsCurrent observer;
    wanted.run_to(3);
    second.backend->observe(&observer);
    found.run_to(3);
    second.backend->observe(nullptr);
    check_same(found, wanted);
  }
}

void check_sums(comm::GradientTransport& transport, cudaStream_t stream) {
  constexpr std::int64_t count = 1000;
  const comm::ShardMap map(world().size() + 1, world().size());
  MirroredBuffer flat_buffer(transport, stream, count * sizeof(float), 2);
  const auto sums = make_case<float>(flat_buffer.here, 0, count, map.shards(), 3);
  for (int round = 0; round < 2; ++round) {
    sums.fill(map, world().rank());
    flat_buffer.upload();
    comm::TreeSum sum = sums.sum;
    sum.flat_buffer = flat_buffer.there.get();
    cudaSetDevice(0);
    const comm::Work work = transport.start_tree_sum(sum, map);
    cudaSetDevice(0);
    transport.order_after(work);
    cudaSetDevice(0);
    const comm::Work covering = transport.after_graphs();
    flat_buffer.download();
    cudaSetDevice(0);
    BOOST_TEST(transport.done(covering));
    BOOST_TEST(sums.first_difference() == -1);
  }
}

BOOST_AUTO_TEST_CASE(a_transport_makes_its_device_the_current_one) {
  const Place second = on(1);
  auto* const stream = static_cast<cudaStream_t>(second.backend->stream());
  cudaSetDevice(0);
  const auto other = second.transport->duplicate();
  for (comm::GradientTransport* const transport : {second.transport.get(), other.get()}) {
    cudaSetDevice(0);
    check_sums(*transport, stream);
  }
  cudaSetDevice(0);
}

BOOST_AUTO_TEST_CASE(what_runs_on_the_second_goes_while_the_first_is_current) {
  Place second = on(1);
  auto run = std::make_unique<DeviceRun>(captured(plain_gpt, "bf16"), second);
  run->run_to(6);
  cudaSetDevice(0);
  run.reset();
  cudaSetDevice(0);
  second.transport.reset();
  cudaSetDevice(0);
  second.backend.reset();
  cudaSetDevice(0);
  BOOST_TEST(cudaGetLastError() == cudaSuccess);
}

BOOST_AUTO_TEST_CASE(a_batch_comes_to_the_second_from_the_loaders_thread) {
  const Vectors data;
  const WithDevice first(0);
  const auto gpu = kernels::make_cuda_backend(1);
  data::LoaderOptions options{.global_batch = 8, .shards = 1, .seed = 3};
  data::Loader here(data, options, 0, 1);
  options.backend = gpu.get();
  cudaSetDevice(0);
  data::Loader there(data, options, 0, 1);
  for (std::int64_t step = 0; step < 6; ++step) {
    cudaSetDevice(0);
    const Tensor x = there.at(step).shards[0]["x"], wanted = here.at(step).shards[0]["x"];
    BOOST_TEST((x.device() == Device::cuda(1)));
    cudaSetDevice(0);
    const Tensor found = kernels::on_cpu(x, gpu.get());
    BOOST_TEST(std::memcmp(found.raw(), wanted.raw(), wanted.bytes()) == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_backend_is_used_and_ends_on_threads_that_never_named_its_device) {
  std::unique_ptr<kernels::Backend> gpu = kernels::make_cuda_backend(1);
  Tensor x, y;
  std::unique_ptr<kernels::Graph> graph;
  std::unique_ptr<kernels::Timer> timer;
  on_another_thread([&] {
    x = gpu->empty({5});
    y = gpu->empty({5});
    gpu->fill(x, 1);
  });
  on_another_thread([&] { timer = gpu->make_timer(); });
  on_another_thread([&] {
    const auto capture = gpu->capture_graph(0);
    gpu->run(ops::scale(x, 2, y));
    graph = capture->finish();
  });
  on_another_thread([&] { timer->mark(0); });
  on_another_thread([&] { graph->launch(0); });
  on_another_thread([&] { timer->mark(1); });
  on_another_thread([&] {
    const Tensor back = Tensor::zeros({5});
    gpu->copy(y, back);
    for (int i = 0; i < 5; ++i) BOOST_TEST(back.data<float>()[i] == 2);
    BOOST_TEST(timer->elapsed_ms(0, 1) >= 0);
  });
  on_another_thread([&] {
    timer.reset();
    graph.reset();
    x = y = {};
    gpu.reset();
  });
}

BOOST_AUTO_TEST_CASE(an_asynchronous_checkpoint_is_written_of_the_second) {
  const SharedFolder folder(world());
  std::vector<std::string> saved;
  for (const int device : {0, 1}) {
    Place place = on(device);
    DeviceRun run(captured(mlp), place);
    run.run_to(4);
    cudaSetDevice(0);
    checkpoint::Store store(folder.file(std::to_string(device)), world(), {.async = true});
    saved.push_back(store.save_state_dict(4, run.contents()));
    run.run_to(6);  // next to the writer
    cudaSetDevice(0);
    store.finish();
  }
  const auto one = checkpoint::read_index(saved[0], world()),
             other = checkpoint::read_index(saved[1], world());
  BOOST_REQUIRE(one.tensors.size() == other.tensors.size());
  for (std::size_t t = 0; t < one.tensors.size(); ++t)
    BOOST_TEST(one.tensors[t].digest == other.tensors[t].digest, one.tensors[t].name);
}

BOOST_AUTO_TEST_CASE(ranks_take_a_device_each_and_share_none) {
  Environment environment;
  environment.unset("LOCKSTEP_SHARE_GPU");
  const train::RankDevice chosen = train::choose_device(world(), "cuda", true);
  BOOST_TEST((chosen.device == Device::cuda(world().rank())));
  Place own(kernels::make_cuda_backend(chosen.device.index));
  own.transport = comm::make_nccl_transport(
      world(), {.device = chosen.device.index, .stream = own.backend->stream(), .reproducible = true});
  environment.set("LOCKSTEP_SHARE_GPU", "1");
  Place shared = on(0);
  DeviceRun found(captured(resnet), own), wanted(captured(resnet), shared);
  found.run_to(6);
  wanted.run_to(6);
  check_same(found, wanted);
  BOOST_TEST(found.replicas().captured_steps().launches > 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
