// The kinds of data sets that every program has, and which of them data.format = auto takes.
#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/pictures.h"
#include "lockstep/data/text.h"

namespace lockstep::data {

void add_built_in(Registry& registry) {
  registry.add<Arrays>("arrays").add<Images>("images").add<Text>("text").add<Pictures>(
      "pictures");  // auto tries the last first
}

const Registry::Type* fitting_kind(const Registry& registry, const Request& request, bool own) {
  const auto& types = registry.types();
  const auto fits = [&](const Registry::Type& type) {
    return !(own && type.built_in) && type.traits.fits && type.traits.fits(request);
  };
  const auto last = std::find_if(types.rbegin(), types.rend(), fits);
  return last == types.rend() ? nullptr : &*last;
}

Registry::Choice kind_of(const Registry& registry, const std::string& name, const Request& request) {
  if (!name.empty()) return registry.configure(name);
  if (const Registry::Type* const kind = fitting_kind(registry, request))
    return registry.configure(kind->name);
  throw UsageError("data.format: no kind of data set fits these files; name one of {}",
                   option::joined(registry.names(), ", "));
}

}  // namespace lockstep::data
