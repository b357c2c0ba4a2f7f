#include "lockstep/ops/loss.h"

#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

void check_logits(const char* operation, const Tensor& logits, const Tensor& targets) {
  if (logits.shape().rank() != 2)
    throw UsageError("{}: the logits have shape {}, not [rows, classes]", operation,
                     to_string(logits.shape()));
  require_shape(operation, "the targets", targets, {logits.size(0)});
}

}  // namespace

void CrossEntropy::check() const {
  check_logits(name, logits, targets);
  require_shape(name, "log_sum_exp", log_sum_exp, {logits.size(0)});
  require_shape(name, "the total", total, {2});
}

void CrossEntropyBackward::check() const {
  check_logits(name, logits, targets);
  require_shape(name, "log_sum_exp", log_sum_exp, {logits.size(0)});
  require_shape(name, "the factor", factor, {});
  require_shape(name, "dlogits", dlogits, logits.shape());
}

void CrossEntropyInPlace::check() const {
  check_logits(name, logits, targets);
  if (classes < 0 || classes > logits.size(1))
    throw UsageError("{}: {} classes in {} columns", name, classes, logits.size(1));
  require_shape(name, "the total", total, {2});
}

void ScaleUnlessOne::check() const { require_shape(name, "the factor", factor, {}); }

void CombineTotals::check() const {
  require_shape(name, "a total", a, {2});
  if (b) require_shape(name, "a total", b, {2});
  require_shape(name, "the total", total, {2});
}

void CountCorrect::check() const {
  check_logits(name, logits, targets);
  require_shape(name, "the count", correct, {});
}

}  // namespace lockstep::ops
