// Private to the module: names of Python that files of torch.save may use (Pickle).
#pragma once

#include <array>
#include <vector>

#include "checkpoint/weights/element_types.h"
#include "checkpoint/weights/pickle.h"

namespace lockstep::checkpoint::python {

/// What programs keep beside tensors.
inline constexpr std::array inert_names{"numpy._core.multiarray.scalar",
                                        "numpy.core.multiarray.scalar",
                                        "numpy._core.multiarray._reconstruct",
                                        "numpy.core.multiarray._reconstruct",
                                        "numpy.dtype",
                                        "numpy.ndarray",
                                        "_codecs.encode",
                                        "argparse.Namespace",
                                        "types.SimpleNamespace",
                                        "pathlib.PosixPath",
                                        "pathlib._local.PosixPath",
                                        "pathlib.WindowsPath",
                                        "datetime.datetime",
                                        "datetime.timedelta"};
/// What makes tensors and mappings of them.
inline constexpr std::array<PickleName, 9> functions{
    {{"collections.OrderedDict", PickleName::Use::mapping},
     {"collections.Counter", PickleName::Use::function},
     {"torch._utils._rebuild_tensor_v2", PickleName::Use::function},
     {"torch._utils._rebuild_tensor_v3", PickleName::Use::function},
     {"torch._utils._rebuild_parameter", PickleName::Use::function},
     {"torch._utils._rebuild_parameter_with_state", PickleName::Use::function},
     {"torch.Size", PickleName::Use::function},
     {"torch.device", PickleName::Use::function},
     {"torch.storage.UntypedStorage", PickleName::Use::constant}}};

/// The names that a pickle of tensors may use.
inline std::vector<PickleName> vocabulary() {
  std::vector<PickleName> names(functions.begin(), functions.end());
  for (const char* const name : inert_names) names.push_back({name, PickleName::Use::inert});
  for (const ElementType& type : element_types) {
    if (!type.storage.empty()) names.push_back({type.storage, PickleName::Use::constant});
    names.push_back({type.dtype, PickleName::Use::constant});
  }
  return names;
}

}  // namespace lockstep::checkpoint::python
