// Learns byte pairs as Hugging Face's BpeTrainer does: again and again the most frequent pair of tokens, of
// equally frequent ones that with the smallest numbers.
#include <algorithm>
#include <array>
#include <queue>

#include "data/bpe_text.h"

namespace lockstep::data {
namespace {

using Id = std::uint32_t;
struct Word {
  std::vector<Id> tokens;
  std::int64_t count = 0;
};

/// A pair, how often it was there, and the words that got it since it was noted last.
struct Candidate {
  std::int64_t count;
  Pair pair;
  std::vector<std::size_t> words;

  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

/// Joins a pair in a word. change(pair, +1 or -1): pairs that come and go.
template <class Change>
void join(std::vector<Id>& tokens, const Pair& pair, Id token, const Change& change) {
  std::size_t out = 0;
  for (std::size_t in = 0; in < tokens.size(); ++in) {
    if (in + 1 == tokens.size() || Pair(tokens[in], tokens[in + 1]) != pair) {
      tokens[out++] = tokens[in];
      continue;
    }
    if (out > 0) {
      change(Pair(tokens[out - 1], pair.first), -1);
      change(Pair(tokens[out - 1], token), 1);
    }
    if (in + 2 < tokens.size()) {
      change(Pair(pair.second, tokens[in + 2]), -1);
      change(Pair(token, tokens[in + 2]), 1);
    }
    tokens[out++] = token;
    ++in;
  }
  tokens.resize(out);
}

}  // namespace

std::vector<Pair> learn_merges(const WordCounts& counts, std::int64_t tokens) {
  std::array<Id, 256> id_of{};
  std::vector<std::string> texts{""};  // the end of a document
  BpeText::Ids ids;
  for (const unsigned char byte : byte_alphabet()) {
    id_of[byte] = static_cast<Id>(texts.size());
    texts.emplace_back(1, static_cast<char>(byte));
    ids.emplace(texts.back(), id_of[byte]);
  }
  std::vector<Word> words;
  words.reserve(counts.size());
  for (const auto& [text, count] : counts) {
    Word& word = words.emplace_back();
    word.count = count;
    for (const char byte : text) word.tokens.push_back(id_of[static_cast<unsigned char>(byte)]);
  }

  std::unordered_map<Pair, std::int64_t, PairHash> pairs;
  std::unordered_map<Pair, std::vector<std::size_t>, PairHash> places;
  const auto note = [&](const Pair& pair, std::size_t word) {
    std::vector<std::size_t>& at = places[pair];
    if (at.empty() || at.back() != word) at.push_back(word);
  };
  for (std::size_t i = 0; i < words.size(); ++i)
    for (std::size_t at = 0; at + 1 < words[i].tokens.size(); ++at) {
      const Pair pair(words[i].tokens[at], words[i].tokens[at + 1]);
      pairs[pair] += words[i].count;
      note(pair, i);
    }
  std::priority_queue<Candidate> queue;
  const auto queue_noted = [&] {
    for (auto& [pair, at] : places)
      if (const std::int64_t count = pairs[pair]; count > 0) queue.push({count, pair, std::move(at)});
    places.clear();
  };
  queue_noted();

  std::vector<Pair> merges;
  while (std::ssize(texts) < tokens && !queue.empty()) {
    // The queue's order does not look at the words.
    Candidate top = std::move(const_cast<Candidate&>(queue.top()));
    queue.pop();
    if (const std::int64_t count = pairs[top.pair]; top.count != count) {
      top.count = count;
      if (count > 0) queue.push(std::move(top));
      continue;
    }
    const auto [entry, is_new] =
        ids.emplace(texts[top.pair.first] + texts[top.pair.second], static_cast<Id>(texts.size()));
    if (is_new) texts.push_back(entry->first);
    merges.push_back(top.pair);
    for (const std::size_t at : top.words)
      join(words[at].tokens, top.pair, entry->second, [&](const Pair& pair, int change) {
        pairs[pair] += change * words[at].count;
        if (change > 0) note(pair, at);
      });
    queue_noted();
  }
  return merges;
}

}  // namespace lockstep::data
