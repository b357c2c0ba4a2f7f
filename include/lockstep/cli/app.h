// App: a program with your own models and tasks, and every verb of lockstep.
#pragma once

#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/tasks/registry.h"

namespace lockstep {

/// The whole command line of a program:
///
///     int main(int argc, char** argv) {
///       return ls::App("mine").model<Flow>("flow").task<Invert>("invert").run(argc, argv);
///     }
///
/// gives `./mine train CONFIG`, `eval`, `predict`, `bench` and all other verbs. A configuration can name
/// model.name = flow and task.name = invert, or a built-in model and task, which every App has. The program
/// `lockstep` is an App with the built-in ones alone.
class App {
 public:
  /// name: the program's name, for its help.
  explicit App(std::string name);

  /// M: see models::Registry::add. Replaces a built-in model of this name. To register two models under one
  /// name is a UsageError, which run() reports.
  template <class M>
  App& model(const std::string& name) {
    return add("model", [&] { registries_.models.add<M>(name); });
  }
  /// T: a Task; see Registry::add.
  template <class T>
  App& task(const std::string& name) {
    return add("task", [&] { registries_.tasks.add<T>(name); });
  }
  /// O: an optim::Optimizer for optimizer.name = name; see Registry::add.
  template <class O>
  App& optimizer(const std::string& name) {
    return add("optimizer", [&] { registries_.optimizers.add<O>(name); });
  }
  /// D: a data::Dataset for data.format = name; see data::Registry. Its options differ in name from the keys
  /// of [data], or have their own section.
  template <class D>
  App& data(const std::string& name) {
    return add("data set", [&] {
      if (name == "auto")
        throw UsageError("the name auto is reserved: data.format = auto selects the kind by the files");
      registries_.data.add<D>(name);
    });
  }

  /// T: a data::Tokenizer for data files with the attribute tokenizer = name; see Registry::add.
  template <class T>
  App& tokenizer(const std::string& name) {
    return add("tokenizer", [&] { registries_.tokenizers.add<T>(name); });
  }

  /// Runs the verb of the command line, on every rank, and returns the exit code for main. Throws nothing.
  int run(int argc, char** argv);

 private:
  template <class Add>
  App& add(const char* what, const Add& add) {
    try {
      add();
    } catch (const UsageError& error) {
      if (registration_error_.empty())
        registration_error_ = std::string("the program registers a ") + what + ": " + error.what();
    }
    return *this;
  }

  std::string name_;
  Registries registries_;
  std::string registration_error_;  // the first one
};

}  // namespace lockstep
