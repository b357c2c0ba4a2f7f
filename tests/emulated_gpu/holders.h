// What tests of the emulated runtime hold: streams, events, memory, and notes of what was carried out.
#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <vector>

#include "emulated_gpu/streams.h"

namespace lockstep::test {

struct Stream {
  Stream() { BOOST_REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess); }
  ~Stream() {
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream; }
  cudaStream_t stream = nullptr;
};

struct Event {
  explicit Event(unsigned flags = cudaEventDisableTiming) { cudaEventCreateWithFlags(&event, flags); }
  ~Event() { cudaEventDestroy(event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event; }
  cudaEvent_t event = nullptr;
};

/// Of `count` floats.
struct DeviceMemory {
  explicit DeviceMemory(std::size_t floats) : count(floats) {
    BOOST_REQUIRE(cudaMalloc(reinterpret_cast<void**>(&first), bytes()) == cudaSuccess);
  }
  ~DeviceMemory() { cudaFree(first); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::size_t bytes() const { return count * sizeof(float); }
  std::vector<float> read(cudaStream_t stream) const {
    std::vector<float> values(count);
    BOOST_REQUIRE(cudaMemcpyAsync(values.data(), first, bytes(), cudaMemcpyDeviceToHost, stream) ==
                  cudaSuccess);
    return values;
  }
  std::size_t count;
  float* first = nullptr;
};

struct PinnedMemory {
  explicit PinnedMemory(std::size_t floats) {
    BOOST_REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&first), floats * sizeof(float)) == cudaSuccess);
  }
  ~PinnedMemory() { cudaFreeHost(first); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  float* first = nullptr;
};

/// Notes the numbers of what is carried out.
struct Notes {
  void ask(cudaStream_t stream, int number) {
    lockstep::emulated_gpu::enqueue(stream, [this, number] { done.push_back(number); });
  }
  std::vector<int> done;
};

inline bool all_nan(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isnan(x); });
}

inline cudaError_t last_error_of(cudaError_t result) {
  BOOST_TEST(cudaPeekAtLastError() == result);
  BOOST_TEST(cudaGetLastError() == result);
  BOOST_TEST(cudaGetLastError() == cudaSuccess);
  return result;
}

}  // namespace lockstep::test
