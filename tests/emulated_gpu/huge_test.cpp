// Kernels over more than 2^31 elements, whose numbers no int holds, with little memory: the elements are one
// piece of memory again and again. Only the last ones have their own, so that nobody takes others for them.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/cuda/twins.h"
#include "lockstep/ops/gather.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/update.h"
#include "ops/norm.h"
#include "ops/strided_copy.h"
#include "support/gpu_labels.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(huge_test, Twins, *large())

using ops::StridedView;

/// No other memory is near, so what is read or written far outside ends the program.
class Elements {
 public:
  /// All are of one value.
  Elements(std::int64_t count, float value)
      : count_(count),
        bytes_((static_cast<std::size_t>(count) * sizeof(float) / piece_bytes + 2) * piece_bytes) {
    void* const room =
        mmap(nullptr, 3 * bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const int file = memfd_create("elements", 0);
    BOOST_REQUIRE((room != MAP_FAILED && ftruncate(file, piece_bytes) == 0));
    room_ = static_cast<std::byte*>(room);
    for (std::size_t at = 0; at < bytes_; at += piece_bytes) {
      const bool last = at + piece_bytes == bytes_;
      const int flags = MAP_FIXED | (last ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
      BOOST_REQUIRE(mmap(room_ + bytes_ + at, piece_bytes, PROT_READ | PROT_WRITE, flags, last ? -1 : file,
                         0) != MAP_FAILED);
    }
    close(file);
    float* const first_piece = reinterpret_cast<float*>(room_ + bytes_);
    for (std::size_t i = 0; i < piece_bytes / sizeof(float); ++i) first_piece[i] = value;
    for (std::int64_t i = count - own; i < count; ++i) data()[i] = value;
  }
  ~Elements() { munmap(room_, 3 * bytes_); }
  Elements(const Elements&) = delete;
  Elements& operator=(const Elements&) = delete;

  /// The last ones count from 0 to 6 again and again.
  Elements& count_at_end() {
    for (std::int64_t i = count_ - own; i < count_; ++i) data()[i] = number(i);
    return *this;
  }
  static constexpr std::int64_t own = 1 << 20;
  static float number(std::int64_t i) { return static_cast<float>(i % 7); }

  Tensor tensor(const kernels::Backend& on, Shape shape, std::int64_t first = 0) const {
    return Tensor::view(data() + first, shape, DType::float32, on.device());
  }
  float operator[](std::int64_t i) const { return data()[i]; }

 private:
  static constexpr std::size_t piece_bytes = std::size_t{8} << 20, alignment = 512;
  /// They end where their memory ends, nearly.
  float* data() const {
    const std::size_t taken =
        (static_cast<std::size_t>(count_) * sizeof(float) + alignment - 1) / alignment * alignment;
    return reinterpret_cast<float*>(room_ + 2 * bytes_ - taken);
  }

  std::int64_t count_;
  std::size_t bytes_;
  std::byte* room_ = nullptr;
};

constexpr std::int64_t width = 2051, rows = (std::int64_t{1} << 20) + 3, count = rows * width;
static_assert(count > std::int64_t{1} << 31 && Elements::own > width);

/// wanted(i): of the last elements.
template <class Wanted>
void check_end(kernels::Backend& gpu, const Elements& found, const Wanted& wanted, double tolerance = 0) {
  const Tensor there = gpu.empty({1}), here = Tensor::empty({1});
  gpu.fill(there, 0);
  gpu.copy(there, here);  // which waits
  for (std::int64_t i = count - 3 * width; i < count; ++i)
    BOOST_TEST_REQUIRE(std::abs(found[i] - wanted(i)) <= tolerance,
                       "element " << i << " is " << found[i] << ", not " << wanted(i));
}

BOOST_AUTO_TEST_CASE(multiples_reach_the_end_in_packs_and_one_by_one) {
  Elements x(count, 1);
  const Elements y(count, 0);
  x.count_at_end();
  for (const std::int64_t first : {0, 1}) {
    const auto part = [&](const Elements& of) { return of.tensor(gpu(), {count - first}, first); };
    const float factor = 2 + static_cast<float>(first);
    gpu().run(ops::scale(part(x), factor, part(y)));
    check_end(gpu(), y, [&](std::int64_t i) { return factor * Elements::number(i); });
  }
}

BOOST_AUTO_TEST_CASE(a_row_is_added_to_all) {
  Draw draw;
  const Elements x(count, 1), y(count, 0);
  const Tensor row = draw.normal({width});
  gpu().run(
      ops::add_rows(x.tensor(gpu(), {rows, width}), to_gpu(fixed(row)), y.tensor(gpu(), {rows, width})));
  check_end(gpu(), y, [&](std::int64_t i) { return 1 + row.data<float>()[i % width]; });
}

BOOST_AUTO_TEST_CASE(a_part_of_each_row_is_copied) {
  Elements x(count, 1);
  const Elements y(count, 0);
  x.count_at_end();
  const auto part = [&](const Elements& of) {
    return StridedView(of.tensor(gpu(), {rows, width})).narrowed(1, 1, width - 1);
  };
  gpu().run(ops::StridedCopy{part(x), part(y)});
  check_end(gpu(), y, [](std::int64_t i) { return i % width == 0 ? 0 : Elements::number(i); });
}

BOOST_AUTO_TEST_CASE(rows_of_a_table_are_found) {
  Draw draw;
  const Elements y(count, 0);
  const Tensor table = draw.normal({5, width}), indices = draw.indices({rows}, 5);
  gpu().run(ops::Embedding{to_gpu(fixed(indices)), to_gpu(fixed(table)), y.tensor(gpu(), {rows, width})});
  check_end(gpu(), y, [&](std::int64_t i) {
    return table.data<float>()[indices.data<std::int64_t>()[i / width] * width + i % width];
  });
}

BOOST_AUTO_TEST_CASE(a_step_reaches_the_end) {
  Elements value(count, 1);
  const Elements gradient(count, 1);
  value.count_at_end();
  ops::ParameterUpdate<ops::Sgd> update{.rule = {.rate = 0.5f, .decay = 0, .gradient_factor = 1},
                                        .value = value.tensor(gpu(), {count}),
                                        .gradient = gradient.tensor(gpu(), {count}),
                                        .state = {}};
  gpu().run(ops::Update<ops::Sgd>{{&update, 1}});
  check_end(gpu(), value, [](std::int64_t i) { return Elements::number(i) - 0.5f; });
}

BOOST_AUTO_TEST_CASE(gradients_of_a_loss_reach_the_end) {
  Elements x(count, 1);
  const Elements dx(count, 0);
  x.count_at_end();
  const Tensor targets = Tensor::zeros({rows}, DType::int64), logs = Tensor::zeros({rows});
  gpu().run(ops::CrossEntropyBackward{x.tensor(gpu(), {rows, width}),
                                      to_gpu(fixed(targets)),
                                      {},
                                      to_gpu(fixed(logs)),
                                      to_gpu(fixed(scalar(1))),
                                      dx.tensor(gpu(), {rows, width})});
  const auto wanted = [](std::int64_t i) {  // the sums of the rows' exponentials were said to be 1
    return std::exp(Elements::number(i)) - (i % width == 0 ? 1.0f : 0.0f);
  };
  check_end(gpu(), dx, wanted, 1e-3);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
