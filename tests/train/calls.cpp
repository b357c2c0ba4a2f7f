// Ranks that make different calls get one error that names both, on every rank.
#include <mpi.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "calls.h"
#include "comm/mpi_calls.h"
#include "support/temporary_folder.h"
#include "support/world.h"
#include "train/watchdog.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(calls, *ranks(2, 3, 4))

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
