// Private to the room: the linear algebra of low-rank compression beside plain products. Every rank computes
// it from equal arguments and must get equal bits, whatever its processor and threads: so it is our own code.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::ddp {

/// `count` vectors of `length` elements; element i of vector v lies at data[v * vector_stride +
/// i * element_stride].
struct Vectors {
  float* data = nullptr;
  std::int64_t count = 0, length = 0;
  std::int64_t vector_stride = 0, element_stride = 1;
  float* vector(std::int64_t index) const { return data + index * vector_stride; }
};

struct Orthonormal {
  bool finite = true;    ///< otherwise nothing was changed
  bool complete = true;  ///< otherwise some vectors were combinations of those before, and are zero now
};

/// Makes the vectors orthonormal, each spanning with those before it what it spanned before: modified
/// Gram-Schmidt in float64, projecting twice where a vector nearly vanishes. scratch: count * length numbers.
Orthonormal orthonormalise(const Vectors& vectors, std::span<double> scratch);

/// With S = P Q, P: [n, rank], Q: [rank, m]: rest = M - share * S (unless rest is null), and then M = S.
/// M and rest: [n, m].
struct Expansion {
  std::int64_t n = 0, m = 0, rank = 0;
  const float* p = nullptr;
  const float* q = nullptr;
  float share = 0;
  float* matrix = nullptr;
  float* rest = nullptr;
};
void expand(const Expansion& expansion, int threads);

}  // namespace lockstep::ddp
