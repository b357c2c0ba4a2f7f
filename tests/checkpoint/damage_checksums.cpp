// Two thousand checkpoints whose structure is damaged under checksums that have been made right again, so
// that nothing but the reading itself is in its way.
//
// This is no accident of a disk, and HDF5 1.10 does not survive all of it: about 3 in 100 end inside the
// library, most on a null pointer. Each is read by a separate process, and such an end is counted; a wrong
// load, another exception, a hang or absurd memory are failures as everywhere.
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <string_view>
#include <vector>

#include "checkpoint/confined.h"
#include "checkpoint/damage.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(damage_checksums)

/// Bob Jenkins' lookup3 (hashlittle, from 0), which HDF5 puts at the end of its structures. Public domain:
/// https://burtleburtle.net/bob/c/lookup3.c
std::uint32_t lookup3(std::string_view bytes) {
  std::uint32_t a = 0xdeadbeef + static_cast<std::uint32_t>(bytes.size()), b = a, c = a;
  const auto add = [&](std::string_view piece) {
    std::uint32_t words[3] = {};
    std::memcpy(words, piece.data(), piece.size());
    a += words[0], b += words[1], c += words[2];
  };
  while (bytes.size() > 12) {
    add(bytes.substr(0, 12));
    a -= c, a ^= std::rotl(c, 4), c += b;
    b -= a, b ^= std::rotl(a, 6), a += c;
    c -= b, c ^= std::rotl(b, 8), b += a;
    a -= c, a ^= std::rotl(c, 16), c += b;
    b -= a, b ^= std::rotl(a, 19), a += c;
    c -= b, c ^= std::rotl(b, 4), b += a;
    bytes.remove_prefix(12);
  }
  if (bytes.empty()) return c;
  add(bytes);
  c ^= b, c -= std::rotl(b, 14);
  a ^= c, a -= std::rotl(c, 11);
  b ^= a, b -= std::rotl(a, 25);
  c ^= b, c -= std::rotl(b, 16);
  a ^= c, a -= std::rotl(c, 4);
  b ^= a, b -= std::rotl(a, 14);
  c ^= b, c -= std::rotl(b, 24);
  return c;
}

/// A structure of the file and where its checksum is: after it, or inside, counted as zero.
struct Sealed {
  std::size_t begin, bytes, checksum;

  std::uint32_t digest_in(const std::string& file) const {
    std::string own = file.substr(begin, bytes);
    if (checksum < begin + bytes) std::memset(own.data() + (checksum - begin), 0, 4);
    return lookup3(own);
  }
  bool holds_in(const std::string& file) const {
    std::uint32_t stored = 0;
    std::memcpy(&stored, file.data() + checksum, sizeof stored);
    return stored == digest_in(file);
  }
  void seal(std::string& file) const {
    const std::uint32_t digest = digest_in(file);
    std::memcpy(file.data() + checksum, &digest, sizeof digest);
  }
};

/// Every structure with a checksum, found by its signature and by a checksum that is right.
std::vector<Sealed> sealed_structures(const std::string& file) {
  std::vector<Sealed> found;
  found.push_back({0, 44, 44});  // the superblock
  for (const char* signature : {"OHDR", "OCHK", "FRHP", "FHIB", "BTHD", "BTIN", "BTLF", "FSHD", "FSSE"}) {
    for (std::size_t at = file.find(signature); at != std::string::npos; at = file.find(signature, at + 4)) {
      for (std::size_t bytes = 5; at + bytes + 4 <= file.size(); ++bytes) {
        const Sealed structure{at, bytes, at + bytes};
        if (!structure.holds_in(file)) continue;
        found.push_back(structure);
        break;
      }
    }
  }
  // Direct blocks of heaps: signature, version, address of the heap, offset of one to eight bytes, checksum.
  for (std::size_t at = file.find("FHDB"); at != std::string::npos; at = file.find("FHDB", at + 4)) {
    for (std::size_t bytes = 512; at + bytes <= file.size(); bytes *= 2) {
      for (std::size_t offset_bytes = 1; offset_bytes <= 8; ++offset_bytes) {
        const Sealed block{at, bytes, at + 13 + offset_bytes};
        if (block.holds_in(file)) found.push_back(block);
      }
    }
  }
  return found;
}

void damage_under_right_checksums(std::string& file, Chance& random, const std::vector<Sealed>& structures) {
  for (std::size_t changes = 1 + random.below(2); changes > 0; --changes) {
    const Sealed& structure = structures[random.below(structures.size())];
    for (std::size_t bytes_changed = 1 + random.below(3); bytes_changed > 0; --bytes_changed) {
      char& byte = file[structure.begin + random.below(structure.bytes)];
      byte = random.changed(byte);
    }
    structure.seal(file);
  }
}

struct SealedMutations : Mutations {
  void check(int files) {
    const std::vector<Sealed> structures = sealed_structures(bytes);
    // Superblock, the root, five groups, fifteen tensors, configuration and manifest at least.
    BOOST_REQUIRE_GE(structures.size(), 24u);
    for (const Sealed& structure : structures) BOOST_REQUIRE(structure.holds_in(bytes));
    BOOST_TEST_MESSAGE(structures.size() << " structures with checksums in " << bytes.size() << " bytes");
    int ended_in_library = 0;
    for (int number = 0; number < files; ++number) {
      const Confined result = run_confined(1, [&](int) {
        try_one(number, [&](std::string& file, Chance& random) {
          damage_under_right_checksums(file, random, structures);
        });
      });
      if (result.crashed()) {
        ++ended_in_library;
      } else {
        BOOST_TEST_CONTEXT("file " << number) { BOOST_TEST_REQUIRE(result.problem() == ""); }
      }
    }
    BOOST_TEST_MESSAGE(ended_in_library << " of " << files << " ended inside HDF5");
    BOOST_TEST(ended_in_library * 10 < files);
  }
};

BOOST_FIXTURE_TEST_CASE(a_few_files_with_right_checksums_over_damage_are_never_read_wrong, SealedMutations) {
  check(50);
}

BOOST_FIXTURE_TEST_CASE(many_files_with_right_checksums_over_damage_are_never_read_wrong, SealedMutations,
                        *slow()) {
  check(many_files());
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
