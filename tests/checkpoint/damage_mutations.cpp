// Randomly damaged checkpoints, through everything that reads one.
#include <boost/test/unit_test.hpp>

#include "checkpoint/confined.h"
#include "checkpoint/damage.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(damage_mutations)

void damage_anywhere(std::string& file, Chance& random) {
  for (std::size_t changes = 1 + random.below(4); changes > 0; --changes) {
    char& byte = file[random.below(file.size())];
    byte = random.changed(byte);
  }
  switch (random.below(8)) {
    case 0:
      file.resize(random.below(file.size()));
      break;
    case 1:
      file.insert(random.below(file.size()),
                  std::string(1 + random.below(64), static_cast<char>(random.below(256))));
      break;
    case 2:
      file.erase(random.below(file.size()), 1 + random.below(64));
      break;
    case 3: {  // a piece of the file in the place of another
      const std::size_t length = std::min<std::size_t>(512, file.size());
      const std::string piece = file.substr(random.below(file.size() - length + 1), length);
      file.replace(random.below(file.size() - length + 1), length, piece);
      break;
    }
    default:
      break;
  }
}

BOOST_FIXTURE_TEST_CASE(a_few_randomly_damaged_files_are_read_right_or_refused, Mutations) {
  const Confined result = run_confined(50, [&](int number) { try_one(number, damage_anywhere); });
  BOOST_TEST(result.problem() == "");
}

BOOST_FIXTURE_TEST_CASE(many_randomly_damaged_files_are_read_right_or_refused, Mutations, *slow()) {
  const Confined result = run_confined(many_files(), [&](int number) { try_one(number, damage_anywhere); });
  BOOST_TEST(result.problem() == "");
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
