// lockstep sweep: trains one configuration under many settings, several runs at once, each in its own
// process.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/launcher.h"
#include "base/streams.h"
#include "base/text.h"
#include "cli/run_table.h"
#include "cli/verb.h"
#include "report/report.h"
#include "train/config.h"
#include "train/run/resume.h"

namespace lockstep::cli {
namespace {

/// The words of a line of a list, as xargs reads them in jobs/array.sbatch.
Arguments words_of_line(std::string_view line) {
  Arguments words;
  bool within = false;  // a word, which may be empty in quotes
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char letter = line[i];
    if (letter == ' ' || letter == '\t') {
      within = false;
      continue;
    }
    if (!std::exchange(within, true)) words.emplace_back();
    if (letter == '\'' || letter == '"') {
      const std::size_t end = line.find(letter, i + 1);
      if (end == line.npos) throw UsageError("a quote without its end: {}", line);
      words.back() += line.substr(i + 1, end - i - 1);
      i = end;
    } else if (letter != '\\') {
      words.back() += letter;
    } else if (++i < line.size()) {
      words.back() += line[i];
    }
  }
  return words;
}

/// The inverse for one word.
std::string quoted_word(const std::string& word) {
  if (word.find_first_of(" \t'\"\\#") == word.npos) return word;
  std::string text = "'";
  for (const char letter : word) text += letter == '\'' ? std::string("'\"'\"'") : std::string(1, letter);
  return text + "'";
}

/// The lines of a list that count, without a line end of Windows.
Arguments lines_of_list(const std::string& text) {
  Arguments lines;
  for (const std::string_view line : lines_of(text))
    if (const std::string_view bare = without_blanks(line); !bare.empty() && bare.front() != '#')
      lines.emplace_back(bare);
  return lines;
}

/// KEY=A,B,C of each --over: all combinations, the last key varies fastest.
std::vector<Arguments> grid_of(const Arguments& overs) {
  std::vector<Arguments> grid{{}};
  for (const std::string& over : overs) {
    const std::size_t equals = over.find('=');
    if (equals == over.npos || equals == 0 || equals + 1 == over.size())
      throw UsageError("sweep: --over {}: write it as SECTION.KEY=A,B,C", quote(over));
    std::vector<Arguments> next;
    for (const Arguments& settings : grid)
      for (std::size_t at = equals + 1; at <= over.size();) {
        const std::size_t end = std::min(over.find(',', at), over.size());
        next.push_back(settings);
        next.back().push_back(over.substr(0, equals + 1) + over.substr(at, end - at));
        at = end + 1;
      }
    grid = std::move(next);
  }
  return grid;
}

struct SweepRun {
  std::string directory;
  std::string line;    ///< of the list
  Arguments settings;  ///< its words
  pid_t process = 0;   ///< 0: none
  int position = 0;    ///< among those that run at once
  bool asked = false;  ///< to stop
};

/// Those of this machine; 0 if the user has chosen some.
int count_gpus() {
  int count = 0;
  while (!std::getenv("CUDA_VISIBLE_DEVICES") && exists(fmt::format("/dev/nvidia{}", count))) ++count;
  return count;
}

struct Launch {
  std::string config;
  int ranks = 1, jobs = 1;
};

/// All runs of the sweep, started in their order.
class Sweep {
 public:
  Sweep(Launch launch, std::vector<SweepRun> runs, const Registries& registries, const Log& log);
  /// Returns when all runs have ended, or after a stop signal those that were running.
  ExitCode run();

 private:
  bool is_finished(const SweepRun& run) const;
  void start(SweepRun& run);
  [[noreturn]] void become(const SweepRun& run, pid_t parent) const;
  void collect();
  void note_end(SweepRun& run, int status);
  void stop(int signal);
  std::string name(const SweepRun& run) const {
    return fmt::format("run {} of {}, {}", &run - runs_.data() + 1, runs_.size(), run.line);
  }
  auto running() const {
    return std::ranges::count_if(runs_, [](const SweepRun& run) { return run.process > 0; });
  }

  const Launch launch_;
  std::vector<SweepRun> runs_;
  const Registries& registries_;
  const Log& log_;
  std::string program_;
  sigset_t signals_{}, before_{};      // that are waited for; the mask of children
  int signal_ = 0;                     // that asked to stop
  ExitCode failure_ = ExitCode::done;  // the first that is no row of the table
};

Sweep::Sweep(Launch launch, std::vector<SweepRun> runs, const Registries& registries, const Log& log)
    : launch_(std::move(launch)), runs_(std::move(runs)), registries_(registries), log_(log) {
  std::error_code unreadable;
  program_ = std::filesystem::read_symlink("/proc/self/exe", unreadable);
  ::sigemptyset(&signals_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR2, SIGCHLD}) ::sigaddset(&signals_, signal);
  ::sigprocmask(SIG_BLOCK, &signals_, &before_);
}

/// Whether it has ended by itself, done or diverged, under these settings: a start would change nothing.
bool Sweep::is_finished(const SweepRun& run) const {
  const std::optional<report::Ending> ending = report::read_exit_record(run.directory);
  if (!ending || (ending->code != ExitCode::done && ending->code != ExitCode::training)) return false;
  const train::Config config = train::read_config(launch_.config, run.settings, registries_);
  const std::string path = run.directory + "/config.ini";
  return train::changes_of_start(train::parse_stored_config(read_text(path), path, registries_), config)
      .empty();
}

ExitCode Sweep::run() {
  std::size_t finished = 0;
  for (SweepRun& run : runs_) {
    while (signal_ == 0 && running() >= launch_.jobs) collect();
    if (signal_ != 0) break;
    if (is_finished(run))
      ++finished;
    else
      start(run);
  }
  if (finished > 0) log_.info("{} of {} had ended before", finished, pluralized(runs_.size(), "run"));
  while (running() > 0) collect();
  return signal_ == 0 ? failure_ : signal_ == SIGINT ? ExitCode::user_stopped : ExitCode::preempted;
}

void Sweep::start(SweepRun& run) {
  make_directories(run.directory);
  remove_quietly(run.directory + "/stop");  // of a sweep that was killed
  int position = 0;                         // the first of --jobs that is free
  while (std::ranges::any_of(
      runs_, [&](const SweepRun& other) { return other.process > 0 && other.position == position; }))
    ++position;
  run.position = position;
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) throw FailureError("sweep: cannot start a process: {}", std::strerror(errno));
  if (process == 0) become(run, parent);
  run.process = process;
  log_.info("{}: begins; its log is {}.log", name(run), run.directory);
}

/// In the new process: the ranks of the run. A process group of its own, which the terminal's Ctrl-C does not
/// reach. The kernel ends it when the sweep is killed; mpirun then ends its ranks.
void Sweep::become(const SweepRun& run, pid_t parent) const {
  const bool alone = launch_.ranks == 1;
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, alone ? SIGKILL : SIGTERM);
  if (::getppid() != parent) ::_exit(1);
  const int log = ::open((run.directory + ".log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (log < 0 || ::dup2(nothing, STDIN_FILENO) < 0 || ::dup2(log, STDOUT_FILENO) < 0 ||
      ::dup2(log, STDERR_FILENO) < 0)
    ::_exit(static_cast<int>(ExitCode::data));
  Arguments words{program_, "train", launch_.config, "--run", run.directory};
  for (const std::string& setting : run.settings) words.push_back("--set=" + setting);
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const bool shares = launch_.jobs > 1 || launch_.ranks > cores;
  const auto set = [](std::initializer_list<const char*> variables, const char* value) {
    for (const char* const variable : variables) ::setenv(variable, value, 0);
  };
  if (shares) set({"LOCKSTEP_BIND"}, "none");  // each run would bind its ranks to the first cores
  if (const int gpus = count_gpus(); gpus > 0 && launch_.jobs > 1) {
    Arguments own;
    for (int rank = 0; rank < launch_.ranks; ++rank)
      own.push_back(fmt::to_string((run.position * launch_.ranks + rank) % gpus));
    set({"CUDA_VISIBLE_DEVICES"}, fmt::format("{}", fmt::join(own, ",")).c_str());
  }
  if (!alone) {  // as jobs/train-mpirun.sh
    if (::geteuid() == 0) set({"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}, "1");
    if (launch_.ranks * launch_.jobs > cores)
      set({"OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_mpi_yield_when_idle"}, "1"),
          set({"PRTE_MCA_rmaps_default_mapping_policy"}, ":oversubscribe");
    const std::string beside = directory_of(directory_of(program_)) + "/bin/mpirun";  // of a bundle
    const char* const flags = std::getenv("MPIRUN_FLAGS");
    const char* const more = std::getenv("LOCKSTEP_LAUNCHER_FLAGS");
    Arguments launcher{exists(beside) ? beside : "mpirun", "-n", fmt::to_string(launch_.ranks)};
    for (const std::string& text : {std::string(flags    ? flags
                                                : shares ? "--bind-to none"
                                                         : "--bind-to core"),
                                    std::string(more && !flags ? more : "")})
      for (const std::string& word : words_of_line(text)) launcher.push_back(word);
    words.insert(words.begin(), launcher.begin(), launcher.end());
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  ::execvp(arguments[0], arguments.data());
  write_standard_error(fmt::format("lockstep: cannot start {}: {}\n", words[0], std::strerror(errno)));
  ::_exit(static_cast<int>(ExitCode::usage));
}

/// Waits for the next signal, and for runs that have ended.
void Sweep::collect() {
  const int signal = ::sigwaitinfo(&signals_, nullptr);
  if (signal > 0 && signal != SIGCHLD) stop(signal);
  int status = 0;
  for (pid_t ended = 0; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;)
    for (SweepRun& run : runs_)
      if (run.process == ended) note_end(run, status);
}

void Sweep::note_end(SweepRun& run, int status) {
  ::kill(-run.process, SIGKILL);  // ranks that mpirun has left behind
  run.process = 0;
  if (run.asked) remove_quietly(run.directory + "/stop");  // unseen if it ended at that moment
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::string why;
  if (const std::optional<train::RunStatus> found = train::run_status(run.directory)) why = found->why;
  if (code != 0 && code != static_cast<int>(ExitCode::user_stopped) &&
      code != static_cast<int>(ExitCode::preempted)) {  // a start that was refused leaves no record
    constexpr std::uint64_t max_bytes = 1 << 16;
    const EndOfFile log = lines_at_end(OpenFile(run.directory + ".log", OpenFile::Mode::read), max_bytes);
    for (const std::string_view line : lines_of(log.text))
      if (line.starts_with("lockstep: ")) why = line.substr(std::strlen("lockstep: "));
  }
  log_.info("{}: {}{}", name(run), code == 0 ? "" : fmt::format("exit code {}: ", code), why);
  if (code == static_cast<int>(ExitCode::preempted) && signal_ == 0) stop(SIGTERM);  // the job's time limit
  const bool is_row = code == 0 || code == static_cast<int>(ExitCode::training);
  if (!is_row && failure_ == ExitCode::done)
    failure_ = code == 2 || code == 3 || code == 76 ? static_cast<ExitCode>(code) : ExitCode::failure;
}

/// Asks the runs to save and stop, by a file: mpirun forwards no signal that says so. A second signal ends
/// them at once.
void Sweep::stop(int signal) {
  const bool again = std::exchange(signal_, signal_ == 0 ? signal : signal_) != 0;
  if (!again) log_.info("stops: each run saves a checkpoint first; a second signal ends them at once");
  for (SweepRun& run : runs_) {
    if (run.process == 0) continue;
    const int file =
        again ? -1 : ::open((run.directory + "/stop").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    run.asked = file >= 0;
    if (file >= 0)
      ::close(file);
    else
      ::kill(run.process, launch_.ranks == 1 && again ? SIGKILL : SIGTERM);
  }
}

/// The settings of each run, as words. UsageError with the line.
std::vector<SweepRun> runs_of(const std::string& directory, const std::vector<Arguments>& settings,
                              const Launch& launch, const Registries& registries) {
  std::vector<SweepRun> runs;
  for (const Arguments& words : settings) {
    SweepRun run{
        .directory = fmt::format("{}/{}", directory, runs.size() + 1), .line = {}, .settings = words};
    for (const std::string& word : words) run.line += (run.line.empty() ? "" : " ") + quoted_word(word);
    try {
      train::read_config(launch.config, words, registries);
    } catch (const UsageError& error) {
      throw UsageError("sweep: run {}, {}: {}", runs.size() + 1, run.line, error.what());
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

/// DIR/list has the settings of all runs, in the form that jobs/array.sbatch reads. Those of an earlier start
/// must be its beginning. Returns the file, locked against another sweep.
OpenFile write_list(const std::string& directory, const std::vector<SweepRun>& runs) {
  const std::string path = directory + "/list";
  if (exists(directory + "/config.ini"))
    throw UsageError("sweep: {}: is the directory of a run; choose another --out", directory);
  make_directories(directory);
  OpenFile file(path, OpenFile::Mode::read_write_or_create);
  if (::flock(file.descriptor(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw UsageError("sweep: {}: another lockstep sweep is at work there", directory);
  const Arguments before = lines_of_list(read_text(path));
  for (std::size_t i = 0; i < before.size(); ++i)
    if (i >= runs.size() || before[i] != runs[i].line)
      throw UsageError("sweep: {}: holds another sweep: its run {} is {}, not {}; choose another --out",
                       directory, i + 1, before[i], i < runs.size() ? runs[i].line : "there");
  std::string text;
  for (const SweepRun& run : runs) text += run.line + "\n";
  if (before.size() < runs.size()) {
    file.write_at(0, text.data(), text.size());
    file.sync();
  }
  return file;
}

/// The table of all runs with the best first, and the page; names the best.
void show_results(const std::string& directory, const std::string& keep_best, const Log& log) {
  std::vector<RunRow> rows = runs_at(directory);
  std::string metric;
  for (const std::string& candidate : {keep_best, std::string("eval_loss"), std::string("loss")}) {
    if (candidate.empty()) continue;
    try {
      rank_by(candidate, rows);
      metric = candidate;
      break;
    } catch (const UsageError&) {  // no run has this metric
    }
  }
  if (rows.empty()) return;
  print(to_table(rows, true, metric));
  if (!metric.empty() && rows.front().value)
    print(fmt::format("best: {}: {} {}{}{}\n", rows.front().run, metric, figure(*rows.front().value),
                      rows.front().differs.empty() ? "" : ", ", rows.front().differs));
  Arguments paths;
  for (const RunRow& row : rows) paths.push_back(row.run);
  try {
    report::write_report(paths, directory + "/report.html");
    log.info("report {}/report.html", directory);
  } catch (const Error& error) {
    log.warning("no report of the sweep: {}", error.what());
  }
}

}  // namespace

ExitCode sweep(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "sweep CONFIG --over KEY=A,B ... | --list FILE [OPTIONS]",
                    "Trains CONFIG once for each combination of the values of --over, or each line\n"
                    "of FILE, in DIR/1, DIR/2 ..., and shows the runs with the best one first: by\n"
                    "checkpoint.keep_best, without it by eval_loss, without evaluations by loss.\n\n"
                    "The same command continues the sweep: runs that have ended are not repeated.\n"
                    "Ctrl-C and TERM stop it with checkpoints. A run that diverges (exit code 4) is\n"
                    "a row of the table. DIR/list has the settings: on a cluster\n"
                    "sbatch --array=1-N jobs/array.sbatch CONFIG DIR/list DIR does the same.");
  options.add()("over", po::value<Arguments>()->composing(), "SECTION.KEY=A,B,C; may be repeated");
  options.add()("list", po::value<std::string>(), "file with lines of SECTION.KEY=VALUE words");
  options.add()("set", po::value<Arguments>()->composing(), "SECTION.KEY=VALUE, for every run");
  options.add()("out", po::value<std::string>(), "DIR; default: runs/NAME-sweep for NAME.ini");
  options.add()("ranks", po::value<int>()->default_value(1), "of each run; above 1 by mpirun");
  options.add()("jobs", po::value<int>()->default_value(1), "runs at once");
  options.positional("config");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  Launch launch{.config = options.required(values, "config", "the configuration file is missing"),
                .ranks = values["ranks"].as<int>(),
                .jobs = values["jobs"].as<int>()};
  if (launcher::rank() >= 0)
    throw options.error("is started once, without mpirun; --ranks starts those of each run");
  if (values.count("over") + values.count("list") != 1) throw options.error("takes --over or --list FILE");
  for (const char* const name : {"ranks", "jobs"})
    if (values[name].as<int>() < 1 || values[name].as<int>() > 1'000'000)
      throw options.error(fmt::format("--{}: must be at least 1", name));

  std::vector<Arguments> settings;
  if (values.count("over") > 0)
    settings = grid_of(values["over"].as<Arguments>());
  else
    for (const std::string& line : lines_of_list(read_text(values["list"].as<std::string>())))
      settings.push_back(words_of_line(line));
  if (settings.empty()) throw options.error("the list has no line that counts");
  if (values.count("set") > 0)
    for (Arguments& words : settings)
      words.insert(words.end(), values["set"].as<Arguments>().begin(), values["set"].as<Arguments>().end());
  const std::string out =
      option_text(values, "out")
          .value_or("runs/" + std::filesystem::path(launch.config).stem().string() + "-sweep");
  std::vector<SweepRun> runs = runs_of(out, settings, launch, program.registries);
  const std::string keep_best =
      train::read_config(launch.config, settings[0], program.registries).checkpoint.store.keep_best;
  const OpenFile list = write_list(out, runs);
  const ExitCode code = Sweep(launch, std::move(runs), program.registries, session.log()).run();
  show_results(out, keep_best, session.log());
  if (code != ExitCode::done)
    session.log().info("not all runs have ended; the same command continues the sweep");
  return code;
}

}  // namespace lockstep::cli
