// Making backends.
#include "kernels/reference.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(backend)

using namespace kernels;

BOOST_AUTO_TEST_CASE(a_cpu_backend_has_the_threads_it_was_given) {
  const auto backend = make_backend(Device::cpu(), 3);
  BOOST_TEST(backend->threads() == 3);
  BOOST_CHECK(backend->device() == Device::cpu());
  BOOST_CHECK_THROW(make_cpu_backend(0), UsageError);
}

BOOST_AUTO_TEST_CASE(the_instruction_set_of_this_processor_has_a_name) {
  BOOST_TEST(make_cpu_backend()->instruction_set().find("another") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_freed_tensor_serves_the_next_of_its_size) {
  const auto backend = make_cpu_backend();
  const void* first = backend->empty({10, 10}).raw();
  const std::size_t reserved = backend->reserved_bytes();
  BOOST_TEST(backend->empty({100}).raw() == first);
  BOOST_TEST(backend->reserved_bytes() == reserved);
}

BOOST_AUTO_TEST_CASE(a_channel_block_rounds_memory_up) {
  const Tensor tensor = make_cpu_backend()->empty({2, 9, 3, 3}, DType::float32, 8);
  BOOST_TEST(tensor.channel_block() == 8);
  BOOST_TEST(tensor.stored_numel() == 2 * 16 * 9);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
