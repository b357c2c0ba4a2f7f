// Rows of a table by number, and their gradient.
#include <limits>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/operands.h"
#include "kernels/problems.h"

namespace lockstep::kernels {

void CudaBackend::embedding(const Tensor& indices, const Tensor& weight, const Tensor& y) {
  const Operands args{"embedding", device()};
  const Table table = table_of(args.operation, indices, weight, y);
  const auto* const index = args.elements<std::int64_t>("the indices", indices);
  const float* const from = args.plain_floats("the table", weight);
  void* const to = args.plain_of_type("y", y, y.dtype());
  const Launch on = launch();
  launch_check_data(on, index, table.uses, table.rows, nullptr, DataFault::index_outside, checked_embedding,
                    static_cast<DataFault*>(fault_.raw()));
  launch_embedding(on, index, table.uses, from, table.rows, table.width, y.dtype(), to);
}

void CudaBackend::embedding_backward(const Tensor& dy, const Tensor& indices, const Tensor& dweight,
                                     bool accumulate) {
  const Operands args{"embedding_backward", device()};
  const Table table = table_of(args.operation, indices, dweight, dy);
  if (std::max(table.uses, table.rows) >= std::numeric_limits<std::int32_t>::max()) {
    throw UsageError("{} on a GPU: {} indices into {} rows are too many; at most 2147483646 are built",
                     args.operation, table.uses, table.rows);
  }
  const auto* const index = args.elements<std::int64_t>("the indices", indices);
  const void* const from = args.plain_of_type("dy", dy, dy.dtype());
  float* const to = args.plain_floats("dweight", dweight);
  const Launch on = launch();
  const std::size_t bytes = table.uses == 0 ? 0 : embedding_backward_bytes(table.uses, index_);
  const Tensor work = scratch(static_cast<std::int64_t>(bytes), DType::uint8);
  launch_embedding_backward(on, dy.dtype(), from, index, table.uses, table.rows, table.width, to, accumulate,
                            work.raw(), bytes);
}

}  // namespace lockstep::kernels
