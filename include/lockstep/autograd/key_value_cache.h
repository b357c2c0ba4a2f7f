// KeyValueCache: what causal attentions keep of the positions that a model has read.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/kernels/backend.h"
#include "lockstep/ops/attention.h"

namespace lockstep {

/// The keys and values of the positions that a model has read, one pair for each causal attention, in the
/// order in which the attentions run. A pass that has a cache (Pass::cache) reads only the positions after
/// them, its attentions attend to both, and the next Tape::begin() adds its positions to the cache. The model
/// must tell positions by field `positions` of its batch (Model::reads_positions()), not by their rows.
class KeyValueCache {
 public:
  explicit KeyValueCache(std::int64_t capacity) : capacity_(capacity) {}  ///< capacity: positions

  std::int64_t length() const { return length_ + added_; }  ///< positions that the model has read
  /// Forgets all positions, and keeps the memory: for a batch of the same size.
  void clear() { length_ = added_ = 0; }
  /// For Tape: a pass begins.
  void begin_pass();

  /// The keys or values of one attention.
  struct Rows {
    ops::Columns keys, values;  ///< [batch, heads, capacity, width]
    std::int64_t count;         ///< of positions, the first rows of keys and values
  };
  /// For the next attention of the pass: adds `sizes.keys` rows, and returns them with all before. UsageError
  /// beyond the capacity, or if another pass had another batch.
  Rows append(kernels::Backend& backend, const ops::Columns& keys, const ops::Columns& values,
              const ops::AttentionSizes& sizes);

 private:
  struct Layer {
    Tensor keys, values;
  };
  std::int64_t capacity_, length_ = 0, added_ = 0;  // added_: rows of the current pass
  std::size_t next_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace lockstep
