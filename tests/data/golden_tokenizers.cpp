// Byte-level BPE against ids, prompts and merges of Hugging Face's tokenizers.
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "data/files.h"
#include "data/prepare.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/tokenizer.h"
#include "support/golden.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_tokenizers, *golden())

using Ids = std::vector<std::int64_t>;

/// check(file, kind, tokenizer) for each tokenizer.
template <class Check>
void for_each_kind(const Check& check) {
  int kinds = 0;
  data::Tokenizers registry;
  add_built_in(registry);
  for (const auto& path : golden_files("tokenizers", ".json")) {
    std::ifstream stream(path);
    const auto file = nlohmann::json::parse(stream);
    for (const auto& kind : file.at("kinds")) {
      const data::StoredTokenizer stored{"bpe", json_text(kind.at("tokenizer"))};
      check(file, kind, *stored.make(registry, kind.at("name").get<std::string>()));
      ++kinds;
    }
  }
  BOOST_TEST(kinds > 0);
}

BOOST_AUTO_TEST_CASE(texts_and_prompts_have_the_ids_that_tokenizers_gives_them) {
  for_each_kind([](const auto& file, const auto& kind, const data::Tokenizer& tokenizer) {
    const auto texts = file.at("texts").template get<std::vector<std::string>>();
    for (std::size_t i = 0; i < texts.size(); ++i) {
      BOOST_TEST_CONTEXT(kind.at("name") << ", text " << i) {
        BOOST_TEST(tokenizer.encode(texts[i]) == kind.at("ids")[i].template get<Ids>());
        BOOST_TEST(tokenizer.encode_prompt(texts[i]) == kind.at("prompts")[i].template get<Ids>());
      }
    }
    if (kind.at("ids").size() <= texts.size()) return;
    Ids ids = tokenizer.encode(file.at("corpus").template get<std::string>());
    const Ids wanted = kind.at("ids").back().template get<Ids>();
    ids.resize(wanted.size());
    BOOST_TEST(ids == wanted);
  });
}

BOOST_AUTO_TEST_CASE(the_merges_that_a_text_teaches_are_those_of_tokenizers) {
  const TemporaryFolder folder;
  const auto world = comm::make_self_communicator();
  for_each_kind([&](const auto& file, const auto& kind, const data::Tokenizer& tokenizer) {
    if (kind.at("name") != "gpt2") return;
    const std::string path = folder.file("corpus.txt"), out = folder.file("out.h5");
    std::ofstream(path, std::ios::binary) << file.at("corpus").template get<std::string>();
    data::Tokenizers registry;
    add_built_in(registry);
    data::prepare_text(std::vector{path}, {out, true}, {.train = tokenizer.vocabulary()}, registry, *world);
    const auto learned = nlohmann::json::parse(data::read_tokenizer(out).text).at("model"),
               wanted = kind.at("tokenizer").at("model");
    BOOST_TEST((learned.at("merges") == wanted.at("merges")));
    BOOST_TEST((learned.at("vocab") == wanted.at("vocab")));
  });
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
