// Ranks that make different calls get one error that names both, on every rank.
#include <mpi.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "comm/mpi_calls.h"
#include "lockstep/lockstep.h"
#include "support/temporary_folder.h"
#include "support/world.h"
#include "train/watch/watchdog.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(calls, *ranks(2, 3, 4))

/// Every sample is like every other.
struct EqualSamples final : Dataset {
  std::int64_t size() const override { return 96; }
  const std::vector<Field>& fields() const override { return fields_; }
  std::string name() const override { return "samples"; }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    std::fill_n(into[0].data<float>(), samples.size() * 4, 0.5f);
    std::fill_n(into[1].data<std::int64_t>(), samples.size(), std::int64_t{1});
  }

 private:
  std::vector<Field> fields_{{.name = "x", .shape = {4}}, {.name = "y", .dtype = DType::int64, .shape = {}}};
};

/// A program whose rank makes the calls that it is told to, such as save+step.
class CallingProgram {
 public:
  /// folder: for its files. Collective.
  CallingProgram(Session& session, const std::string& folder) : session_(session), folder_(folder) {
    make("write");
  }

  /// calls: joined by +.
  void make(const std::string& calls) {
    std::istringstream names(calls);
    for (std::string name; std::getline(names, name, '+');) {
      const auto found = calls_.find(name);
      if (found == calls_.end()) throw UsageError("what is '{}'?", name);
      found->second();
    }
  }

 private:
  void step(const std::function<void()>& within = [] {}) {
    replicas_->step(loader_.at(step_++), [&](Tape& tape, const Batch& batch) {
      within();
      return cross_entropy(model_.forward(tape, batch), batch["y"]);
    });
    adamw_->step();
  }
  void sum() {
    const int ranks = session_.world().size();
    comm::finish(session_.world(), session_.world().start_tree_sum(
                                       {.flat_buffer = buffer_.get(), .count = 16}, {ranks, ranks}));
  }

  Session& session_;
  std::string folder_;
  std::unique_ptr<comm::FlatBuffer> buffer_ = session_.world().allocate_buffer(64, 1);
  EqualSamples samples_;
  models::Mlp model_{{.sizes = {4, 512, 2}}, 1};
  models::Mlp other_{{.sizes = {4, 2}}, 1};
  tasks::Classification task_{{}};
  Loader loader_{samples_, session_};
  std::optional<DataParallel> replicas_{std::in_place, model_, session_, ddp::Options{.bucket_mb = 0.001}};
  std::optional<AdamW> adamw_{std::in_place, *replicas_, optim::AdamWOptions{}};
  Store store_{folder_ + "/run", session_};
  Store other_store_{folder_ + "/other", session_};
  Tensor numbers_ = Tensor::zeros({3});
  std::int64_t step_ = 0;
  const nlohmann::json json_ = {{"rank", session_.world().rank()}};

  const std::map<std::string, std::function<void()>> calls_{
      {"nothing", [] {}},
      {"save", [this] { adamw_ ? store_.save(step_, model_, *adamw_) : store_.save(step_, model_); }},
      {"save_next", [this] { store_.save(step_ + 1, model_, *adamw_); }},
      {"save_model", [this] { store_.save(step_, model_); }},
      {"save_other", [this] { other_store_.save(step_, model_, *adamw_); }},
      {"resume_other", [this] { other_store_.resume(model_, *adamw_); }},
      {"resume_model", [this] { store_.resume(model_); }},
      {"load_other", [this] { checkpoint::load_weights(folder_ + "/x.h5", other_, session_.world()); }},
      {"resume", [this] { store_.resume(model_, *adamw_); }},
      {"eval", [this] { evaluate(session_, model_, task_, samples_); }},
      {"load", [this] { checkpoint::load_weights(folder_ + "/w.h5", other_, session_.world()); }},
      {"load_alone", [this] { checkpoint::load_weights(folder_ + "/w.h5", other_); }},
      {"write", [this] { checkpoint::save_file(folder_ + "/w.h5", state_of(other_), session_.world()); }},
      {"wrap", [this] { DataParallel again(other_, session_); }},
      {"step", [this] { step(); }},
      {"step_with_sum", [this] { step([this] { all_reduce(session_, numbers_); }); }},
      {"unwrap", [this] { adamw_.reset(), replicas_.reset(); }},
      {"check", [this] { replicas_->check_replicas(); }},
      {"store", [this] { Store(folder_ + "/second", session_); }},
      {"note",
       [this] {
         store_.note_metrics(0, {{"loss", 1}});
       }},
      {"newest", [this] { store_.newest(); }},
      {"verify", [this] { checkpoint::verify(folder_ + "/w.h5", session_.world()); }},
      {"use_device", [this] { session_.use_device("cpu"); }},
      {"set_run", [this] { session_.set_run({.global_batch = 4 * session_.world().size()}); }},
      {"all_reduce", [this] { all_reduce(session_, numbers_); }},
      {"reduce", [this] { reduce(session_, numbers_, 0); }},
      {"gather", [this] { gather(session_, numbers_); }},
      {"all_gather", [this] { all_gather(session_, numbers_); }},
      {"broadcast", [this] { broadcast(session_, numbers_); }},
      {"json", [this] { gather(session_, json_); }},
      {"barrier", [this] { barrier(session_); }},
      {"world_barrier", [this] { session_.world().barrier(); }},
      {"world_gather", [this] { session_.world().all_gather_texts("text"); }},
      {"world_sum", [this] { sum(); }},
      {"agree", [this] { comm::run_on_all(session_.world(), [] {}); }},
      {"split", [this] { session_.world().split(0, 0); }},
      {"caught",
       [this] {
         try {
           checkpoint::load_weights(folder_ + "/no.h5", other_, session_.world());
         } catch (const DataError&) {
         }
       }},
      {"alone",
       [this] {  // a group of this rank only
         const auto alone = comm::make_self_communicator();
         checkpoint::load_weights(folder_ + "/w.h5", other_, *alone);
         train::evaluate({.model = model_, .task = task_, .tape = replicas_->tape(), .world = *alone},
                         samples_);
       }},
  };

  static checkpoint::StateDict state_of(Model& model) {
    checkpoint::StateDict state_dict;
    add(state_dict, model);
    return state_dict;
  }
};

const std::map<std::string, std::string> phrases{
    {"save", "calls Store::save"},
    {"eval", "calls evaluate"},
    {"load",
     "calls load_weights (load_weights(path, model) without a group of ranks reads on this rank alone)"},
    {"resume", "calls Store::resume"},
    {"gather", "calls gather"},
    {"json", "calls gather"},
    {"broadcast", "calls broadcast"},
    {"barrier", "calls barrier"},
    {"wrap", "wraps a model in DataParallel"},
    {"step", "calls DataParallel::step"},
    {"all_reduce", "calls all_reduce"},
    {"unwrap", "destroys a DataParallel (its scope ends)"},
    {"check", "calls DataParallel::check_replicas"},
    {"store", "makes a Store or RunDirectory"},
    {"verify", "calls verify"},
    {"set_run", "calls Session::set_run"},
    {"agree", "calls run_on_all"},
    {"world_barrier", "calls HostGroup::barrier"},
    {"world_gather", "calls HostGroup::all_gather"},
    {"world_sum", "starts a sum or all-gather of a FlatBuffer"},
    {"split", "calls CpuCommunicator::split"},
    {"nothing", "is at the end of its program"},
};

/// The error of this rank, which makes these calls; empty without one.
std::string error_of(const std::string& calls) {
  const TemporaryFolder folder;
  const std::string path = world().all_gather_texts(folder.path().string())[0];
  std::unique_ptr<train::Watchdog> watchdog;
  const auto ranks = comm::make_mpi_communicator(MPI_COMM_WORLD);  // one that has failed is of no more use
  Session session(*ranks, watchdog);
  session.set_run({.global_batch = 4 * ranks->size()});
  try {
    CallingProgram program(session, path);
    program.make(calls);
    const comm::NamedCall end(*ranks, "is at the end of its program");
    ranks->barrier();
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

/// Every rank's text is the same: rank `odd` makes other calls than rank `usual`.
void check(int odd, const std::string& odd_phrase, int usual, const std::string& usual_phrase,
           const std::string& text) {
  BOOST_TEST_CONTEXT(text) {
    const auto says = [&](int rank, const std::string& phrase) {
      return text.find(fmt::format("rank {} {}", rank, phrase)) != std::string::npos;
    };
    BOOST_TEST(says(odd, odd_phrase));
    if (usual >= 0) BOOST_TEST(says(usual, usual_phrase));
    BOOST_TEST(text.find(usual_phrase) != std::string::npos);
    BOOST_TEST(text.find("; every rank must make the same call") != std::string::npos);
    const std::vector<std::string> texts = world().all_gather_texts(text);
    BOOST_TEST(std::ranges::count(texts, text) == world().size());
  }
}

/// Rank `odd` does `what` alone, then all do `then`.
void check_alone(int odd, const std::string& what, const std::string& then) {
  BOOST_TEST_CONTEXT("rank " << odd << " does " << what << " alone, then all " << then) {
    const bool alone = world().rank() == odd;
    const std::string text = error_of(alone ? fmt::format("{}+{}", what, then) : then);
    check(odd, phrases.at(what), world().size() == 2 ? 1 - odd : -1,
          phrases.at(what == then ? "nothing" : then), text);
  }
}

BOOST_AUTO_TEST_CASE(what_one_rank_does_alone_is_told_from_what_all_do_then) {
  for (const char* const what :
       {"save", "eval", "load", "resume", "gather", "json", "broadcast", "barrier"}) {
    for (const char* const then : {"wrap", "save", "step", "barrier", "all_reduce", "json"})
      check_alone(0, what, then);
  }
}

BOOST_AUTO_TEST_CASE(so_it_is_on_the_last_rank_and_with_other_calls) {
  const char* const thens[] = {"save", "step", "eval", "world_sum", "nothing"};
  int number = 0;
  for (const char* const what : {"step", "check", "wrap", "store", "verify", "set_run", "agree",
                                 "world_barrier", "world_gather", "world_sum", "split"}) {
    for (const int then : {number++ % 5, (number + 1) % 5})
      check_alone(world().size() - 1, what, thens[then]);
  }
  check_alone(world().size() - 1, "unwrap", "save");
}

BOOST_AUTO_TEST_CASE(the_same_call_of_something_else_is_told_with_both) {
  const struct {
    const char *alone, *others, *of_alone, *of_others;
  } cases[] = {
      {"save", "save_next", "step 0 with model, optimizer", "step 1 with model, optimizer"},
      {"save_model", "save", "step 0 with model in", "step 0 with model, optimizer"},
      {"save", "save_other", "in run", "in other"},
      {"resume", "resume_other", "in run", "in other"},
      {"resume_model", "resume", ": model in", ": model, optimizer"},
      {"load", "load_other", "of w.h5", "of x.h5"},
  };
  for (const auto& [alone, others, of_alone, of_others] : cases) {
    const bool odd = world().rank() == world().size() - 1;
    const std::string text = error_of(odd ? alone : others);
    BOOST_TEST_CONTEXT(alone << " " << others << ": " << text) {
      BOOST_TEST(text.find(fmt::format("but rank {} ", world().size() - 1)) != std::string::npos);
      BOOST_TEST(text.find(of_alone) != std::string::npos);
      BOOST_TEST(text.find(of_others) != std::string::npos);
      const std::vector<std::string> texts = world().all_gather_texts(text);
      BOOST_TEST(std::ranges::count(texts, text) == world().size());
    }
  }
}

BOOST_AUTO_TEST_CASE(many_steps_and_sums_do_not_hide_it) {
  const std::string steps = "step+step+step+step+step+step+step+step+step+step";
  const std::string sums = "world_sum+world_sum+world_sum+world_sum+world_sum+world_sum+world_sum+world_sum";
  for (const std::string& before : {steps, sums, std::string("eval+save+barrier+caught+load+json")})
    check(0, phrases.at("save"), world().size() == 2 ? 1 : -1, phrases.at("step"),
          error_of(before + (world().rank() == 0 ? "+save+step" : "+step")));
}

BOOST_AUTO_TEST_CASE(three_ranks_in_three_places_say_one_thing) {
  const char* const places[] = {"save", "step", "eval", "barrier"};
  const std::string text = error_of(places[world().rank()]);
  const std::vector<std::string> texts = world().all_gather_texts(text);
  BOOST_TEST(std::ranges::count(texts, text) == world().size(), text);
  BOOST_TEST(text.find("; every rank must make the same call") != std::string::npos, text);
}

BOOST_AUTO_TEST_CASE(a_collective_within_a_step_on_one_rank_is_found) {
  const std::string text = error_of(world().rank() == 0 ? "step+step_with_sum" : "step+step");
  BOOST_TEST(
      text.find("rank 0 calls DataParallel::step, in which it calls all_reduce, but") != std::string::npos,
      text);
}

BOOST_AUTO_TEST_CASE(a_device_that_is_chosen_after_a_data_parallel_is_made_is_refused) {
  BOOST_TEST(error_of("use_device").starts_with("the program computes on cpu already"));
}

BOOST_AUTO_TEST_CASE(calls_on_this_rank_alone_and_errors_of_all_are_no_difference) {
  BOOST_TEST(error_of(world().rank() == 0 ? "alone+load_alone+wrap+caught+step+save"
                                          : "wrap+caught+step+save") == "");
  BOOST_TEST(
      error_of("save+resume+eval+wrap+step+step_with_sum+check+store+verify+set_run+agree+newest+note+gather+"
               "reduce+all_gather+broadcast+json+barrier+world_sum+world_barrier+world_gather+unwrap") == "");
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
