// How the emulated GPU carries kernels out. Compiled for the CPU only.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <csignal>
#include <numeric>
#include <vector>

#include "emulated_gpu/races.h"

namespace {

using lockstep::emulated_gpu::races;

constexpr int block = 64;

/// The stream on which a test's kernels run; what they did is there when it returns.
struct Stream {
  Stream() { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
  ~Stream() { cudaStreamDestroy(stream); }
  void finish() { cudaStreamSynchronize(stream); }
  cudaStream_t stream = nullptr;
};

/// Until it goes, a race does not end the program.
struct RacesAreCounted {
  RacesAreCounted() { races().count_only(true); }
  ~RacesAreCounted() {
    races().count_only(false);
    races().take_count();
  }
};

/// Each thread takes what the one at the other end of the block has put down.
__global__ void reverse(bool barrier, int* values) {
  __shared__ int room[block];
  room[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (barrier) __syncthreads();
  values[threadIdx.x] = room[block - 1 - threadIdx.x];
}

/// The same within a warp.
__global__ void reverse_warps(bool barrier, int* values) {
  __shared__ int room[block];
  room[threadIdx.x] = static_cast<int>(threadIdx.x) ^ 31;
  if (barrier) __syncwarp();
  values[threadIdx.x] = room[threadIdx.x ^ 31];
}

/// Sums over the block by one room, in two rounds; the barrier is behind the reads of a round.
__global__ void sum_rounds(bool barrier, int* sums) {
  __shared__ int room[block];
  for (int round = 0; round < 2; ++round) {
    room[threadIdx.x] = round;
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < block; ++i) sum += room[i];
    sums[threadIdx.x] += sum;
    if (barrier) __syncthreads();
  }
}

__device__ unsigned thread_of_launch() { return blockIdx.x * blockDim.x + threadIdx.x; }

__global__ void look_at_shared(float* found) {
  extern __shared__ float room[];
  found[thread_of_launch()] = room[threadIdx.x];
  room[threadIdx.x] = 1;
}

__global__ void look_at_fixed_shared(float* found) {
  __shared__ float room[block];
  found[thread_of_launch()] = room[threadIdx.x];
  room[threadIdx.x] = 1;
}

__global__ void number_blocks(int* next, int* order) { order[(*next)++] = static_cast<int>(blockIdx.x); }

/// Each block adds to what the one before it has left.
__global__ void add_to_neighbour(const int* from, int* to) { to[blockIdx.x + 1] = from[blockIdx.x] + 1; }

/// Of more than a page of those that races are kept in.
struct Large {
  int values[10000];
};
__global__ void copy_whole(const Large* from, Large* to) { *to = *from; }

__global__ void store_in_all(int* to) { *to = static_cast<int>(blockIdx.x); }

/// Bytes side by side.
__global__ void store_own(char* to) { to[blockIdx.x] = static_cast<char>(blockIdx.x + to[blockIdx.x]); }

__global__ void store(int value, int* to) { *to = value; }

__global__ void meet_unless(unsigned thread) {
  if (threadIdx.x != thread) __syncthreads();
}

__global__ void exchange_in_half_a_warp() {
  if (threadIdx.x < 16) __shfl_sync(0xffffffffu, 1, 0);
}

/// The signal that ends a process which does this.
template <class Work>
int ending_of(const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    freopen("/dev/null", "w", stderr);
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

template <class Kernel>
std::vector<int> values_of(Kernel kernel, bool barrier) {
  Stream on;
  std::vector<int> values(block);
  kernel<<<1, block, 0, on.stream>>>(barrier, values.data());
  on.finish();
  return values;
}

BOOST_AUTO_TEST_CASE(a_missing_barrier_shows) {
  std::vector<int> reversed(block);
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  std::vector<int> in_order(block);
  std::iota(in_order.begin(), in_order.end(), 0);
  const std::vector<int> sums(block, block);
  BOOST_TEST((values_of(reverse, true) == reversed));
  BOOST_TEST((values_of(reverse, false) != reversed));
  BOOST_TEST((values_of(reverse_warps, true) == in_order));
  BOOST_TEST((values_of(reverse_warps, false) != in_order));
  BOOST_TEST((values_of(sum_rounds, true) == sums));
  BOOST_TEST((values_of(sum_rounds, false) != sums));
}

BOOST_AUTO_TEST_CASE(shared_memory_is_new_to_every_block) {
  Stream on;
  std::vector<float> found(2 * 4 * block);
  look_at_shared<<<4, block, block * sizeof(float), on.stream>>>(found.data());
  look_at_fixed_shared<<<4, block, 0, on.stream>>>(found.data() + 4 * block);
  on.finish();
  BOOST_TEST(std::ranges::all_of(found, [](float x) { return std::isnan(x); }));
}

BOOST_AUTO_TEST_CASE(more_than_48_kib_of_shared_memory_are_asked_for_first) {
  Stream on;
  std::vector<float> found(block);
  const auto launch_with = [&](int bytes) {
    look_at_shared<<<1, block, bytes, on.stream>>>(found.data());
    on.finish();
    return cudaGetLastError();
  };
  const auto allow = [](int bytes) {
    return cudaFuncSetAttribute(look_at_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  BOOST_TEST(launch_with(48 * 1024) == cudaSuccess);
  BOOST_TEST(launch_with(48 * 1024 + 4) == cudaErrorInvalidValue);
  BOOST_TEST(allow(228 * 1024) == cudaErrorInvalidValue);
  BOOST_TEST(cudaGetLastError() == cudaErrorInvalidValue);
  BOOST_TEST(allow(64 * 1024) == cudaSuccess);
  BOOST_TEST(launch_with(64 * 1024) == cudaSuccess);
  BOOST_TEST(launch_with(64 * 1024 + 4) == cudaErrorInvalidValue);
}

BOOST_AUTO_TEST_CASE(blocks_run_in_an_order_that_is_drawn) {
  const RacesAreCounted racing;  // for a number
  const auto order = [] {
    Stream on;
    int next = 0;
    std::vector<int> found(32);
    number_blocks<<<32, 1, 0, on.stream>>>(&next, found.data());
    on.finish();
    return found;
  };
  const std::vector<int> first = order(), second = order();
  BOOST_TEST(!std::ranges::is_sorted(first));
  BOOST_TEST((first != second));
  std::vector<int> sorted = first;
  std::ranges::sort(sorted);
  BOOST_TEST((std::ranges::adjacent_find(sorted) == sorted.end()));
}

BOOST_AUTO_TEST_CASE(blocks_that_depend_on_each_other_are_found) {
  const bool before = races().checks();
  races().check(true);
  const RacesAreCounted meanwhile;
  std::vector<int> numbers(9);
  std::vector<char> bytes(8);
  const auto found = [&](const auto& launch) {
    races().take_count();
    Stream on;
    launch(on.stream);
    on.finish();
    return races().take_count();
  };
  const int alone = found([&](auto on) { store_own<<<8, 1, 0, on>>>(bytes.data()); });
  if (races().sees_accesses()) {  // a build with LOCKSTEP_EMULATED_RACES
    BOOST_TEST(alone == 0);       // bytes of one word
    BOOST_TEST(found([&](auto on) { add_to_neighbour<<<8, 1, 0, on>>>(numbers.data(), numbers.data()); }) >
               0);
    BOOST_TEST(found([&](auto on) { store_in_all<<<8, 1, 0, on>>>(numbers.data()); }) > 0);
    BOOST_TEST(found([&](auto on) { store_in_all<<<1, 8, 0, on>>>(numbers.data()); }) == 0);
    std::vector<Large> larges(2);
    const auto copy = [&](int blocks, int threads) {
      return found([&](auto on) { copy_whole<<<blocks, threads, 0, on>>>(&larges[0], &larges[1]); });
    };
    BOOST_TEST(copy(1, 8) == 0);
    BOOST_TEST(copy(8, 1) > 0);
  }
  races().check(before);
}

BOOST_AUTO_TEST_CASE(an_operand_that_was_freed_ends_the_program) {
  const auto store_in = [](bool freed) {
    Stream on;
    int* values = nullptr;
    cudaMallocAsync(reinterpret_cast<void**>(&values), sizeof(int), on.stream);
    if (freed) cudaFreeAsync(values, on.stream);
    store<<<1, 1, 0, on.stream>>>(1, values);
    on.finish();
  };
  BOOST_TEST(ending_of([&] { store_in(true); }) == SIGABRT);
  BOOST_TEST(ending_of([&] { store_in(false); }) == 0);
}

struct Place {
  int number;
  int* values;
};

__global__ void store_at(Place place) { place.values[place.number] = 1; }

/// The memory of one device, used by a kernel in a stream of another or of the same.
void store_across(int of_memory, int of_stream, bool in_structure) {
  int* values = nullptr;
  cudaSetDevice(of_memory);
  cudaMalloc(reinterpret_cast<void**>(&values), sizeof(int));
  cudaSetDevice(of_stream);
  Stream on;
  if (in_structure) {
    store_at<<<1, 1, 0, on.stream>>>(Place{0, values});
  } else {
    store<<<1, 1, 0, on.stream>>>(1, values);
  }
  on.finish();
}

BOOST_AUTO_TEST_CASE(an_operand_of_another_device_ends_the_program) {
  for (const bool in_structure : {false, true}) {
    if (in_structure && !lockstep::emulated_gpu::MayHoldAddresses<Place>) continue;
    BOOST_TEST(ending_of([&] { store_across(0, 1, in_structure); }) == SIGABRT);
    BOOST_TEST(ending_of([&] { store_across(1, 0, in_structure); }) == SIGABRT);
    BOOST_TEST(ending_of([&] { store_across(1, 1, in_structure); }) == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_kernel_is_launched_into_streams_of_the_current_device_only) {
  Stream on;
  int stored = 0;
  cudaSetDevice(1);
  store<<<1, 1, 0, on.stream>>>(1, &stored);
  BOOST_TEST(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  cudaSetDevice(0);
  on.finish();
  BOOST_TEST(stored == 0);
  store<<<1, 1, 0, on.stream>>>(1, &stored);
  BOOST_TEST(cudaGetLastError() == cudaSuccess);
  on.finish();
  BOOST_TEST(stored == 1);
}

BOOST_AUTO_TEST_CASE(what_a_gpu_leaves_undefined_ends_the_program) {
  const auto ending_of_meeting = [](int threads, unsigned missing) {
    return ending_of([&] {
      Stream on;
      meet_unless<<<1, threads, 0, on.stream>>>(missing);
      on.finish();
    });
  };
  BOOST_TEST(ending_of_meeting(block, 5) == SIGABRT);
  BOOST_TEST(ending_of_meeting(2048, 5) == SIGABRT);  // more threads than a block may have
  BOOST_TEST(ending_of_meeting(block, block) == 0);
  BOOST_TEST(ending_of([] {
               Stream on;
               exchange_in_half_a_warp<<<1, block, 0, on.stream>>>();
               on.finish();
             }) == SIGABRT);
}

}  // namespace
