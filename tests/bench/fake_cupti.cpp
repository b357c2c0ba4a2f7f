// A CUPTI with made-up records, for kernel_list.py's test: a buffer a step, and where they are asked for a
// record that was dropped, one without an end, and kernels that a compiler tries.
#include <cupti.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

CUpti_BuffersCallbackRequestFunc request;
CUpti_BuffersCallbackCompleteFunc complete;
std::vector<int> enabled;

/// Records of different kinds and sizes follow one another; before each is its size.
struct Buffer {
  std::uint8_t* bytes = nullptr;
  std::size_t size = 0, used = 0;
  template <class Record>
  Record& add(CUpti_ActivityKind kind) {
    const std::size_t length = sizeof(Record);
    std::memcpy(bytes + used, &length, sizeof length);
    auto& record = *reinterpret_cast<Record*>(bytes + used + 8);
    std::memset(static_cast<void*>(&record), 0, sizeof record);
    record.kind = kind;
    used += 8 + sizeof(Record);
    return record;
  }
};
std::size_t read_bytes = 0;  // of the buffer that is being read

void kernel(Buffer& buffer, const char* name, std::uint64_t ns, int grid) {
  auto& record = buffer.add<CUpti_ActivityKernel9>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  record.name = name;
  record.start = 1'000;
  record.end = 1'000 + ns;
  record.gridX = grid;
  record.gridY = record.gridZ = record.blockY = record.blockZ = 1;
  record.blockX = 256;
}

}  // namespace

extern "C" {
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  enabled.push_back(kind);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc first,
                                           CUpti_BuffersCallbackCompleteFunc second) {
  request = first;
  complete = second;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* dropped) {
  *dropped = std::getenv("FAKE_CUPTI_DROPS") ? 1 : 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid_bytes,
                                       CUpti_Activity** record) {
  if (!*record) read_bytes = 0;
  if (read_bytes == valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(buffer + read_bytes + 8);
  std::size_t length = 0;
  std::memcpy(&length, buffer + read_bytes, sizeof length);
  read_bytes += 8 + length;
  return CUPTI_SUCCESS;
}
/// The program's work: FAKE_STEPS steps of two launches of one kernel and one of another instance, after one
/// of each at the start.
CUptiResult cuptiActivityFlushAll(std::uint32_t) {
  const char* const steps = std::getenv("FAKE_STEPS");
  for (int step = -1; step < (steps ? std::atoi(steps) : 0); ++step) {
    Buffer buffer;
    std::size_t records = 0;
    request(&buffer.bytes, &buffer.size, &records);
    kernel(buffer, "_ZN8lockstep12_GLOBAL__N_14foldIfEEvPKT_i", 2'000'000, 4 + step);
    if (step >= 0) kernel(buffer, "_ZN8lockstep12_GLOBAL__N_14foldIfEEvPKT_i", 1'000'000, 2);
    kernel(buffer, "_ZN6outer_3runINS_4sumsIfLi4EEEiEEvT_", 500'000,
           1);  // void outer_::run<outer_::sums<float, 4>, int>(...)
    kernel(buffer, "triton_poi_fused_0d1", 250'000, 1);
    if (step < 0 && std::getenv("FAKE_CUPTI_TUNES"))  // as a compiler that tries kernels
      for (int trial = 0; trial < std::atoi(std::getenv("FAKE_CUPTI_TUNES")); ++trial)
        kernel(buffer, trial ? "triton_poi_fused_0d1" : "tried_once", 1'000, 1);
    if (step == 0 && std::getenv("FAKE_CUPTI_UNFINISHED"))
      buffer.add<CUpti_ActivityKernel9>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL).start = 1'000;
    auto& copy = buffer.add<CUpti_ActivityMemcpy5>(CUPTI_ACTIVITY_KIND_MEMCPY);
    copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
    copy.bytes = 64;
    copy.end = 100'000;
    auto& fill = buffer.add<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET);
    fill.bytes = 32;
    fill.end = 50'000;
    if (enabled.size() == 3) complete(nullptr, 0, buffer.bytes, buffer.size, buffer.used);
  }
  return CUPTI_SUCCESS;
}
}
