// The kinds of data sets that every program has, and which of them data.format = auto takes.
#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/text.h"

namespace lockstep::data {

void add_built_in(Registry& registry) {
  registry.add<Arrays>("arrays").add<Images>("images").add<Text>("text");  // the last is asked first
}

Registry::Choice kind_of(const Registry& registry, const std::string& name, const Request& request) {
  if (!name.empty()) return registry.configure(name);
  const auto& types = registry.types();
  for (auto type = types.rbegin(); type != types.rend(); ++type)
    if (type->traits.fits && type->traits.fits(request)) return registry.configure(type->name);
  throw UsageError("data.format: no kind of data set fits these files; name one of {}",
                   option::joined(registry.names(), ", "));
}

}  // namespace lockstep::data
