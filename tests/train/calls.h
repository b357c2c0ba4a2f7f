// A program of which each rank makes the calls that it is told to, such as save+step.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "lockstep/lockstep.h"

namespace lockstep::test {

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
      {"throw", [] { throw std::runtime_error("the sky fell"); }},
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

}  // namespace lockstep::test
