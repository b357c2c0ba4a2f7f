// Small tokenizers (tests/golden/tokenizers.py), random texts, and a folder to prepare texts in.
#pragma once

#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/files.h"
#include "support/golden.h"

namespace lockstep::test {

using Ids = std::vector<std::int64_t>;

inline const nlohmann::json& golden_file() {
  static const nlohmann::json file = [] {
    std::ifstream stream(golden_files("tokenizers", ".json").at(0));
    return nlohmann::json::parse(stream);
  }();
  return file;
}

inline nlohmann::json definition(const std::string& name) {
  for (const nlohmann::json& kind : golden_file().at("kinds"))
    if (kind.at("name") == name) return kind.at("tokenizer");
  throw UsageError("no {}", name);
}

inline const data::Tokenizers& registry() {
  static const data::Tokenizers all = [] {
    data::Tokenizers tokenizers;
    add_built_in(tokenizers);
    return tokenizers;
  }();
  return all;
}

inline std::unique_ptr<data::Tokenizer> made(const nlohmann::json& text) {
  return data::StoredTokenizer{"bpe", json_text(text)}.make(registry(), "t.json");
}

inline unsigned seed() {
  const char* const given = std::getenv("LOCKSTEP_TEST_SEED");
  return given ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : 1;
}

/// Bytes, or pieces that patterns treat in their own ways.
inline std::string random_text(std::mt19937& draw, std::size_t pieces) {
  static const std::vector<std::string> known{"a",           "B", " ",  "\n",  "  ", "'s",
                                              "12",          "é", "中", "😀",   "\r", "e\xCC\x81",
                                              "<tool_call>", ".", "ka", "\xFF"};
  std::string text;
  for (std::size_t i = 0; i < pieces; ++i)
    text += draw() % 3 == 0 ? std::string(1, static_cast<char>(draw() % 256)) : known[draw() % known.size()];
  return text;
}

struct TokenizerFolder {
  TemporaryFolder folder;
  std::string out = folder.file("out.h5");
  std::unique_ptr<comm::HostGroup> world = comm::make_self_communicator();

  std::string put(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder.file(name), std::ios::binary) << bytes;
    return folder.file(name);
  }
  data::Summary prepare(const std::vector<std::string>& inputs, const data::TextPreparation& how) const {
    return data::prepare_text(inputs, {out, true}, how, registry(), *world);
  }
  Ids tokens() const { return hdf5::File::open(out).open_dataset("tokens").read_all<std::int64_t>(); }
};

}  // namespace lockstep::test
