// A program with data and a tokenizer of its own: a text file of numbers, in an order of its own; tokens for
// some characters. For own_data.sh.
#include <lockstep/lockstep.h>

#include <cmath>
#include <fstream>
#include <limits>

namespace ls = lockstep;

/// The lines of text files: "weight x y". An order of draws in proportion to the weights.
class Lines final : public ls::Dataset {
 public:
  explicit Lines(const std::vector<std::string>& files) : name_(files.front()) {
    for (const std::string& path : files) {
      std::ifstream file(path);
      if (!file) throw ls::DataError("{}: cannot be read", path);
      for (std::string weight, x, y; file >> weight >> x >> y;) {  // nan is a number here
        weights_.push_back(std::stod(weight));
        values_.push_back({std::stof(x), std::stof(y)});
      }
    }
  }
  std::int64_t size() const override { return std::ssize(values_); }
  const std::vector<ls::Field>& fields() const override { return fields_; }
  std::string name() const override { return name_; }
  void read(std::span<const std::int64_t> samples, std::span<const ls::Tensor> into) const override {
    check_read(samples, into);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      into[0].data<float>()[i] = values_[static_cast<std::size_t>(samples[i])].first;
      into[1].data<float>()[i] = values_[static_cast<std::size_t>(samples[i])].second;
    }
  }
  std::unique_ptr<ls::data::Order> order(std::uint64_t seed) const override {
    return std::make_unique<ls::data::WeightedDraws>(weights_, seed);
  }

 private:
  std::string name_;
  std::vector<ls::Field> fields_{{.name = "x", .shape = {1}}, {.name = "y", .shape = {1}}};
  std::vector<double> weights_;
  std::vector<std::pair<float, float>> values_;
};

/// A line, y = slope x: a section of its own, and no files.
class Slope final : public ls::Dataset {
 public:
  struct Options {
    static constexpr const char* section = "slope";
    double slope = 1;
    std::int64_t samples = 40;
    LOCKSTEP_KEYS(slope, "of the line", samples, "how many there are")
  };
  Slope(const Options& options, const ls::data::Request&) : options_(options) {}
  std::int64_t size() const override { return options_.samples; }
  const std::vector<ls::Field>& fields() const override { return fields_; }
  std::string name() const override { return "a line"; }
  void read(std::span<const std::int64_t> samples, std::span<const ls::Tensor> into) const override {
    check_read(samples, into);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      into[0].data<float>()[i] = static_cast<float>(samples[i]) / 10;
      into[1].data<float>()[i] = static_cast<float>(options_.slope) * into[0].data<float>()[i];
    }
  }

 private:
  Options options_;
  std::vector<ls::Field> fields_{{.name = "x", .shape = {1}}, {.name = "y", .shape = {1}}};
};

/// Token i is the character i of its text.
class Letters final : public ls::Tokenizer {
 public:
  explicit Letters(const std::string& text) : letters_(text) {}
  std::int64_t vocabulary() const override { return std::ssize(letters_); }
  std::vector<std::int64_t> encode(std::string_view text) const override {
    std::vector<std::int64_t> tokens;
    for (const char c : text) {
      if (letters_.find(c) == letters_.npos) throw ls::UsageError("'{}' is not one of {}", c, letters_);
      tokens.push_back(static_cast<std::int64_t>(letters_.find(c)));
    }
    return tokens;
  }
  std::string decode(std::span<const std::int64_t> tokens) const override {
    std::string text;
    for (const std::int64_t token : tokens) text += letters_.at(static_cast<std::size_t>(token));
    return text;
  }
  std::string text() const override { return letters_; }

 private:
  std::string letters_;
};

int main(int argc, char** argv) {
  return ls::App("own").data<Lines>("lines").data<Slope>("slope").tokenizer<Letters>("letters").run(argc,
                                                                                                    argv);
}
