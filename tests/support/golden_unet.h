// The U-Nets of golden/diffusion.py: from the arguments and parameters of a case to a Unet.
#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "lockstep/kernels/backend.h"
#include "lockstep/models/unet.h"
#include "support/golden.h"

namespace lockstep::test {

/// From the arguments of UNetModel.
inline models::Unet::Options unet_options_of(const nlohmann::json& arguments) {
  using Options = models::Unet::Options;
  Options options;
  const auto rows = Options::options();
  for (const auto& [key, value] : arguments.items()) {
    const auto row = std::ranges::find(rows, key, &Option<Options>::name);
    if (row == rows.end()) throw DataError("unknown argument {}", key);
    if (value.is_null()) continue;
    std::string text = value.dump();  // "[4,3]": a list has blanks between its numbers
    std::erase_if(text, [](char letter) { return letter == '[' || letter == ']'; });
    std::ranges::replace(text, ',', ' ');
    row->set(options, text);
  }
  return options;
}

/// The parameters of a case; all of the Unet's must be there, and no others.
inline void load_unet(const GoldenCase& golden, models::Unet& unet) {
  const ModelState state = unet;
  const std::vector<std::string> names = golden.names("param");
  BOOST_REQUIRE_EQUAL(names.size(), state.params.size());
  for (Param* const param : state.params) {
    BOOST_REQUIRE_MESSAGE(std::ranges::count(names, param->name) == 1, param->name << " is not in the file");
    kernels::transfer(golden.tensor("param/" + param->name), param->value, state.backend);
  }
}

}  // namespace lockstep::test
