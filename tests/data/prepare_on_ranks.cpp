// Texts that several ranks prepare together.
#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "data/tokenizers.h"
#include "support/ranks.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(prepare_on_ranks, *ranks(1, 3))

BOOST_AUTO_TEST_CASE(a_long_document_has_the_same_tokens_on_any_ranks) {
  std::unique_ptr<TokenizerFolder> shared;
  // One folder for all: rank 0 makes it.
  if (world().rank() == 0) shared = std::make_unique<TokenizerFolder>();
  const std::string root = world().all_gather_texts(shared ? shared->folder.file("") : "").front();
  std::string text;
  std::mt19937 draw(seed());
  while (text.size() < (std::size_t{5} << 20)) text += draw() % 8 == 0 ? "e\xCC\x81 é\n" : "kabo 12's\n\n  ";
  for (const auto& [name, pattern] : {std::pair("qwen2", ""), std::pair("llama3", R"([^b]{1,900}|b)")}) {
    nlohmann::json text_of = definition(name);
    // A pattern whose matches begin anew nowhere that the text could be cut at.
    if (*pattern) text_of["/pre_tokenizer/pretokenizers/0/pattern/Regex"_json_pointer] = pattern;
    if (world().rank() == 0) {
      shared->put("long.txt", text);
      shared->put("t.json", json_text(text_of));
    }
    world().barrier();
    data::prepare_text(std::vector{root + "/long.txt"}, {root + "/out.h5", true},
                       data::TextPreparation{.tokenizer = root + "/t.json"}, registry(), world());
    if (world().rank() == 0) {
      std::vector<std::int64_t> wanted = made(text_of)->encode(text);
      wanted.push_back(made(text_of)->end_of_document());
      const bool same = shared->tokens() == wanted;
      BOOST_TEST(same, name);
    }
    world().barrier();
  }
  shared.reset();
}

BOOST_AUTO_TEST_CASE(all_ranks_skip_the_same_files) {
  std::unique_ptr<TokenizerFolder> shared;
  if (world().rank() == 0) shared = std::make_unique<TokenizerFolder>();
  const std::string root = world().all_gather_texts(shared ? shared->folder.file("") : "").front();
  if (world().rank() == 0) {
    std::filesystem::create_directories(shared->folder.path() / "in");
    for (int i = 0; i < 9; ++i)
      shared->put(fmt::format("in/{}.txt", i), i == 4 ? std::string(2 << 20, 'a') : "ka kabo");
  }
  world().barrier();
  const data::Summary summary = data::prepare_text(std::vector{root + "/in"}, {root + "/out.h5", true},
                                                   data::TextPreparation{.train = 300}, registry(), world());
  BOOST_TEST(summary.notes.size() == 2u);  // and that the text has fewer tokens
  if (world().rank() == 0) BOOST_TEST(std::ranges::count(shared->tokens(), 0) == 8);
  world().barrier();
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
