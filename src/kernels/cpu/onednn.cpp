#include "kernels/cpu/onednn.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep::kernels {
namespace {

// Sets of bits, one for each extension. oneDNN 2 and 3 number them alike up to AVX512-BF16. On Arm they give
// the width of SVE: avx512_core means 512 bits there, too.
constexpr unsigned avx512_core = 0x27, avx512_core_bf16 = 0xe7;

bool has(unsigned needed) {
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & needed) == needed;
}

}  // namespace

std::string onednn_version() {
  const dnnl_version_t* const version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
}

std::string onednn_build() { return dnnl_version()->hash; }

std::string onednn_instruction_set() {
  static constexpr std::pair<unsigned, const char*> names[] = {{0x1, "sse41"},
                                                               {0x3, "avx"},
                                                               {0x7, "avx2"},
                                                               {0x407, "avx2_vnni"},  // of oneDNN 2
                                                               {0xf, "avx2_vnni"},
                                                               {0x1f, "avx2_vnni_2"},
                                                               {avx512_core, "avx512_core"},
                                                               {0x67, "avx512_core_vnni"},
                                                               {avx512_core_bf16, "avx512_core_bf16"},
                                                               {0x1ef, "avx512_core_fp16"},
                                                               {0x3e7, "avx512_core_amx"},  // of oneDNN 2
                                                               {0xfef, "avx512_core_amx"},
                                                               {0x1fef, "avx512_core_amx_fp16"},
                                                               {0x201ff, "avx10_2"},
                                                               {0x22fff, "avx10_2_amx"}};
  const auto here = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  for (const auto& [isa, name] : names) {
    if (isa == here) return name;
  }
  return fmt::format("another (oneDNN's {:#x})", here);
}

bool onednn_has_avx512() { return has(avx512_core); }
bool onednn_has_bf16() { return has(avx512_core_bf16); }

}  // namespace lockstep::kernels
