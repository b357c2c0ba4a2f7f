// What is known of GPUs by their names and numbers, without any.
#include "kernels/gpus.h"

#include <boost/test/unit_test.hpp>

#include "support/mentions.h"

namespace lockstep::test {
namespace {

using kernels::bf16_tflops_of, kernels::code_for;

BOOST_AUTO_TEST_SUITE(gpus)

BOOST_AUTO_TEST_CASE(a_build_with_machine_code_for_the_gpu_has_no_remark) {
  for (const char* const built : {"90", "80;90", "80-real 90-real 100", "90a", "90a-real", "native"}) {
    BOOST_TEST(code_for(built, 9, 0).runs);
    BOOST_TEST(code_for(built, 9, 0).remark == "", built);
  }
  BOOST_TEST(code_for("80", 8, 6).remark == "");  // of an older one of the same major version
  BOOST_TEST(code_for("100f", 10, 3).remark == "");
}

BOOST_AUTO_TEST_CASE(a_build_with_ptx_for_the_gpu_says_what_the_first_start_does_and_how_to_build) {
  for (const char* const built : {"80", "75-real 80", "80-real 80-virtual", "80-virtual", "100-real 80"}) {
    const kernels::GpuCode found = code_for(built, 9, 0);
    BOOST_TEST(found.runs, built);
    BOOST_TEST(contains(found.remark, "sm_90"), found.remark);
    BOOST_TEST(contains(found.remark, "first start"), found.remark);
    BOOST_TEST(found.remedy == "build with -DLOCKSTEP_CUDA_ARCHITECTURES=90");
  }
  BOOST_TEST(contains(code_for("75-real 80", 9, 0).remark, "machine code for sm_75 sm_80, not for sm_90:"));
  BOOST_TEST(contains(code_for("80-virtual", 9, 0).remark, "no machine code for sm_90:"));
}

BOOST_AUTO_TEST_CASE(a_build_without_code_for_the_gpu_does_not_run_there) {
  for (const char* const built :
       {"80-real", "80-real;100", "100-virtual", "100a", "70-real", "90a", "90a-virtual"}) {
    const kernels::GpuCode found = code_for(built, 9, 5);
    BOOST_TEST(!found.runs, built);
    BOOST_TEST(contains(found.remark, "nor PTX"), found.remark);
    BOOST_TEST(found.remedy == "build with -DLOCKSTEP_CUDA_ARCHITECTURES=95");
  }
  BOOST_TEST(!code_for("86", 8, 0).runs);
  BOOST_TEST(!code_for("90a", 10, 0).runs);  // "a" is for that kind alone, also as PTX
  BOOST_TEST(!code_for("100a", 10, 3).runs);
  BOOST_TEST(!code_for("100f", 12, 0).runs);
}

BOOST_AUTO_TEST_CASE(a_gpu_that_is_too_old_is_not_told_to_build_for_it) {
  const kernels::GpuCode found = code_for("80", 7, 5);
  BOOST_TEST(!found.runs);
  BOOST_TEST(contains(found.remark, "7.5"), found.remark);
  BOOST_TEST(contains(found.remedy, "8.0"), found.remedy);
}

BOOST_AUTO_TEST_CASE(the_peak_of_a_gpu_is_of_its_whole_name) {
  BOOST_TEST(bf16_tflops_of("NVIDIA H200").value() == 989);
  BOOST_TEST(bf16_tflops_of("NVIDIA H100 80GB HBM3").value() == 989);
  BOOST_TEST(bf16_tflops_of("NVIDIA H100 PCIe").value() == 756);
  BOOST_TEST(bf16_tflops_of("NVIDIA H100 NVL").value() == 835);
  BOOST_TEST(bf16_tflops_of("NVIDIA GH200 480GB").value() == 989);
  BOOST_TEST(bf16_tflops_of("NVIDIA A100-SXM4-80GB").value() == 312);
  BOOST_TEST(bf16_tflops_of("NVIDIA L40S").value() == 362);
  BOOST_TEST(bf16_tflops_of("NVIDIA GeForce RTX 4090").value() == 165);
  for (const char* const other :
       {"NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 3090 Ti",
        "GRID A100-10C", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "NVIDIA A1000", "NVIDIA L400", "Tesla T4", ""})
    BOOST_TEST(!bf16_tflops_of(other).has_value(), other);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
