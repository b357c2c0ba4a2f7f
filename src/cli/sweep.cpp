// lockstep sweep: trains one configuration under many settings, each run in its own processes.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <regex>
#include <set>
#include <thread>

#include "base/files.h"
#include "base/launcher.h"
#include "base/output.h"
#include "base/streams.h"
#include "base/text.h"
#include "checkpoint/file_lock.h"
#include "cli/status.h"
#include "cli/verb.h"
#include "lockstep/base/option.h"
#include "report/event_file.h"
#include "report/report.h"
#include "train/config.h"
#include "train/run/resume.h"
#include "train/watch/exit_record.h"

namespace lockstep::cli {
namespace {

/// The words of a line of a list, as jobs/array.sbatch reads it. Quotes within a word are removed.
Arguments words_of_line(const std::string& line, const std::string& where = "sweep") {
  static const std::regex valid(R"q((?:[^'"\\]|'[^']*'|"[^"]*")*)q");
  static const std::regex word(R"q((?:[^ \t'"]|'[^']*'|"[^"]*")+)q"), quoted(R"q('([^']*)'|"([^"]*)")q");
  if (line.find('\0') != line.npos || !std::regex_match(line, valid))
    throw UsageError("{}: a quote without its end, a backslash outside of quotes or a null byte: {}", where,
                     line);
  Arguments words;
  for (std::sregex_iterator found(line.begin(), line.end(), word), end; found != end; ++found)
    words.push_back(std::regex_replace(found->str(), quoted, "$1$2"));
  return words;
}

/// The inverse. UsageError for a word with both kinds of quotes.
std::string line_of(const Arguments& words) {
  std::string line;
  for (const std::string& word : words) {
    const bool is_plain = word.find_first_of(" \t'\"\\#") == word.npos;
    const std::string quote = is_plain ? "" : word.find('\'') == word.npos ? "'" : "\"";
    line += (line.empty() ? "" : " ") + quote + word + quote;
  }
  if (words_of_line(line) != words) throw UsageError("sweep: {}: has both kinds of quotes", line);
  return line;
}

/// The lines of a list that count. UsageError, with the place, for one that is not words.
Arguments lines_of_list(const std::string& path) {
  Arguments lines;
  const std::string text = read_text(path);
  int number = 0;
  for (const std::string_view line : lines_of(text)) {
    ++number;
    const std::string_view bare = without_blanks(line);
    if (bare.empty() || bare.front() == '#') continue;
    words_of_line(lines.emplace_back(bare), fmt::format("{}:{}", path, number));
  }
  return lines;
}

/// KEY=A,B,C of each --over: all combinations. The last key varies fastest.
std::vector<Arguments> grid_of(const Arguments& overs) {
  std::vector<Arguments> grid{{}};
  for (const std::string& over : overs) {
    const std::size_t value = std::min(over.find('='), over.size() - 1) + 1;
    std::vector<Arguments> next;
    for (const Arguments& settings : grid)
      for (std::size_t at = value, end = 0; end != over.npos; at = end + 1) {
        end = over.find(',', at);
        next.push_back(settings);
        next.back().push_back(over.substr(0, value) + over.substr(at, end - at));
      }
    grid = std::move(next);
  }
  return grid;
}

struct SweepRun {
  std::string directory;
  Arguments settings;
  pid_t process = 0;            ///< 0: none
  std::uint64_t log_begin = 0;  ///< of the last start, in bytes
  bool restarted = false;       ///< after a failure
};

/// The runs, which start in their order.
struct Sweep {
  std::string config;
  int ranks, jobs;  ///< of a run; runs at once
  const Registries& registries;
  const Log& log;
  std::vector<SweepRun> runs{};
  sigset_t signals{}, before{};       ///< that it waits for; the mask of children
  int signal = 0;                     ///< the first stop signal
  ExitCode failure = ExitCode::done;  ///< the first that is not a row of the table

  train::Config config_of(const SweepRun& run) const;
  ExitCode run();

 private:
  bool is_finished(const SweepRun& run) const;
  void start(SweepRun& run);
  [[noreturn]] void become(const SweepRun& run, int output) const noexcept;
  void collect();
  void note_end(SweepRun& run, int code);
  void stop(int signal);
  auto running() const {
    return std::ranges::count_if(runs, [](const SweepRun& run) { return run.process > 0; });
  }
};

/// UsageError that names the run.
train::Config Sweep::config_of(const SweepRun& run) const {
  try {
    std::set<std::string, std::less<>> keys;
    for (const std::string_view word : run.settings)
      if (const auto key = without_blanks(word.substr(0, word.find('='))); !keys.emplace(key).second)
        throw UsageError("{} is set twice; remove it from --over, the list or --set", key);
    return train::read_config(config, run.settings, registries);
  } catch (const UsageError& error) {
    throw UsageError("sweep: {}, {}: {}", run.directory, line_of(run.settings), error.what());
  }
}

/// Until all runs have ended, or after a signal those that were running.
ExitCode Sweep::run() {
  ::signal(SIGCHLD, SIG_DFL);
  ::sigemptyset(&signals);
  for (const int one : {SIGINT, SIGTERM, SIGHUP, SIGUSR2, SIGCHLD}) {
    struct sigaction now {};
    if (::sigaction(one, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) ::sigaddset(&signals, one);
  }
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  std::size_t finished = 0;
  try {
    for (SweepRun& run : runs) {
      while (signal == 0 && running() >= jobs) collect();
      if (signal != 0) break;
      if (is_finished(run))
        ++finished;
      else
        start(run);
    }
    if (finished > 0) log.info("{} of {} had ended before", finished, pluralized(runs.size(), "run"));
    while (running() > 0) collect();
  } catch (const std::exception&) {  // the kernel would kill the runs without a checkpoint
    if (signal == 0) stop(SIGTERM);
    while (running() > 0) collect();
    throw;
  }
  return signal == 0 ? failure : signal == SIGINT ? ExitCode::user_stopped : ExitCode::preempted;
}

/// Whether it is done or has diverged under these settings: a start would change nothing.
bool Sweep::is_finished(const SweepRun& run) const {
  const auto ending = report::read_exit_record(run.directory);
  if (!ending || (ending->code != ExitCode::done && ending->code != ExitCode::training)) return false;
  const std::string path = run.directory + "/config.ini";
  if (!exists(path)) return false;  // removed by hand
  const train::Config stored = train::parse_stored_config(read_text(path), path, registries);
  return train::changes_of_start(stored, config_of(run)).empty();
}

void Sweep::start(SweepRun& run) {
  make_directories(run.directory);
  remove_quietly(run.directory + "/stop");  // of a sweep that was killed
  const OpenFile output(run.directory + ".log", OpenFile::Mode::read_write_or_create);
  ::fcntl(output.descriptor(), F_SETFL, O_APPEND);
  run.log_begin = output.size();
  log.info("{}: begins: {}", run.directory, line_of(run.settings));
  const pid_t parent = ::getpid(), process = ::fork();
  if (process < 0) throw FailureError("sweep: cannot start a process: {}", std::strerror(errno));
  run.process = process;
  if (process > 0) return;
  // A process group of its own, which the terminal's Ctrl-C does not reach. The kernel ends it when the sweep
  // is killed; mpirun ends its ranks.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, ranks == 1 ? SIGKILL : SIGTERM);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (::getppid() == parent) become(run, output.descriptor());
  ::_exit(1);
}

/// The process becomes the rank of the run, or the mpirun that jobs/train-mpirun.sh starts.
void Sweep::become(const SweepRun& run, int output) const noexcept {
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(output, descriptor);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  Arguments words{program, "train", config, "--run", run.directory};
  for (const std::string& setting : run.settings) words.push_back("--set=" + setting);
  const bool shares = jobs > 1 || ranks > static_cast<int>(std::thread::hardware_concurrency());
  if (shares) ::setenv("LOCKSTEP_BIND", "none", 0);  // not all runs to the first cores
  for (const std::string& setting : option::words_of(LOCKSTEP_MPI_SETTINGS))
    if (const std::size_t end = setting.find('='); shares || setting.starts_with("OMPI_ALLOW"))
      ::setenv(setting.substr(0, end).c_str(), setting.c_str() + end + 1, 0);
  if (ranks > 1) {
    ::setenv("MPIRUN_FLAGS", shares ? "--bind-to none" : "--bind-to core", 0);
    Arguments launcher{"mpirun", "-n", fmt::to_string(ranks)};
    std::ranges::copy(option::words_of(std::getenv("MPIRUN_FLAGS")), std::back_inserter(launcher));
    words.insert(words.begin(), launcher.begin(), launcher.end());
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  write_standard_error(fmt::format("lockstep: cannot start {}: {}\n", words[0], std::strerror(errno)));
  ::_exit(static_cast<int>(ExitCode::usage));
}

/// A run that has ended; if there is none, waits for a signal.
void Sweep::collect() {
  int status = 0;
  if (const pid_t ended = ::waitpid(-1, &status, WNOHANG); ended <= 0) {
    const int arrived = ::sigwaitinfo(&signals, nullptr);
    if (arrived > 0 && arrived != SIGCHLD) stop(arrived);
  } else if (const auto run = std::ranges::find(runs, ended, &SweepRun::process); run != runs.end()) {
    note_end(*run, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
}

void Sweep::note_end(SweepRun& run, int code) {
  run.process = 0;
  remove_quietly(run.directory + "/stop");  // not seen if it ended at that moment
  const bool is_stopped = code == 75 || code == 76;
  std::string why;
  try {
    if (const auto status = train::run_status(run.directory)) why = status->why;
    const OpenFile output(run.directory + ".log", OpenFile::Mode::read);
    constexpr std::string_view error = "lockstep: ";  // the line of a refused start
    const EndOfFile end =
        lines_at_end(output, std::min<std::uint64_t>(output.size() - run.log_begin + 1, 1 << 16));
    for (const std::string_view line : lines_of(end.text))
      if (code != 0 && !is_stopped && line.starts_with(error)) why = line.substr(error.size());
    if (code != 0 && !is_stopped) train::complete_exit_record(run.directory, code, why);
  } catch (const Error& unreadable) {
    why = unreadable.what();
  }
  log.info("{}: {}{}", run.directory, code == 0 ? "" : fmt::format("exit code {}: ", code), why);
  if (code == 75 && signal == 0) stop(SIGTERM);               // the time limit of the job is near
  const bool failed = code == 1 || code == 5 || code >= 128;  // 1: mpirun itself
  if (failed && signal == 0 && !std::exchange(run.restarted, true)) return start(run);
  if (code == 0 || code == static_cast<int>(ExitCode::training) || failure != ExitCode::done) return;
  failure = is_stopped || code == 2 || code == 3 ? static_cast<ExitCode>(code) : ExitCode::failure;
}

/// Requests that the runs save and stop, by a file, as mpirun forwards no signal for it. A second signal ends
/// them at once.
void Sweep::stop(int arrived) {
  const bool at_once = signal != 0;
  if (!at_once) signal = arrived;
  log.info("{}", at_once ? "ends all runs"
                         : "stops: each run saves a checkpoint; a second signal ends them at once");
  for (SweepRun& run : runs) {
    if (run.process == 0) continue;
    const std::string path = run.directory + "/stop";
    const int file = at_once ? -1 : ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (file >= 0)
      ::close(file);
    else
      ::kill(run.process, at_once && ranks == 1 ? SIGKILL : SIGTERM);
  }
}

/// Writes DIR/list, which jobs/array.sbatch reads, if it changes. Runs of an earlier start must be the first
/// ones. settings: without --set, which may change.
void write_list(const std::string& directory, const std::vector<Arguments>& settings,
                const std::vector<SweepRun>& runs) {
  const std::string path = directory + "/list";
  const Arguments before = exists(path) ? lines_of_list(path) : Arguments();
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::string line = i < runs.size() ? line_of(settings[i]) : "not there";
    if (!(before[i] + " ").starts_with(line + " "))
      throw UsageError("sweep: {}: holds another sweep: run {} was {}, and is {}; choose another --out",
                       directory, i + 1, before[i], line);
  }
  std::string text;
  for (const SweepRun& run : runs) text += line_of(run.settings) + "\n";
  if (!exists(path) || read_text(path) != text) write_text_atomically(path, text);
}

/// The table of all runs with the best first, the page, and the best run for TensorBoard.
void show_results(const std::string& directory, const Log& log) {
  std::vector<RunRow> rows = runs_at(directory);
  const report::Ranking ranking = rank_by("", rows);
  print(to_table(rows, true, ranking.metric));
  if (ranking.has_best) {
    const RunRow& best = rows.front();
    const std::string text =
        fmt::format("{}: {} {}  {}", best.run, ranking.metric, figure(*best.value), best.differs);
    print_line("best: " + text);
    report::Event event(0);
    event.add_text("best", text);
    report::EventFile(directory + "/tensorboard", {.step = -1}).append(event);
  }
  Arguments paths;
  for (const RunRow& row : rows)
    if (has_log(row)) paths.push_back(row.run);
  if (paths.empty()) return;
  report::write_report(paths, directory + "/report.html");
  log.info("report {}/report.html", directory);
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
  const std::string config = options.required(values, "config", "the configuration file is missing");
  Sweep sweep{.config = config,
              .ranks = values["ranks"].as<int>(),
              .jobs = values["jobs"].as<int>(),
              .registries = program.registries,
              .log = session.log()};
  if (launcher::rank() >= 0) throw options.error("start it once, without mpirun: --ranks R starts the ranks");
  if (values.count("over") + values.count("list") != 1) throw options.error("give --over or --list FILE");
  if (std::min(sweep.ranks, sweep.jobs) < 1) throw options.error("--ranks and --jobs are at least 1");
  std::vector<Arguments> settings;
  if (values.count("over") > 0)
    settings = grid_of(values["over"].as<Arguments>());
  else
    for (const std::string& line : lines_of_list(values["list"].as<std::string>()))
      settings.push_back(words_of_line(line));
  if (settings.empty()) throw options.error("no line of the list counts");
  const std::string out =
      option_text(values, "out").value_or("runs/" + std::filesystem::path(config).stem().string() + "-sweep");
  for (Arguments words : settings) {
    if (values.count("set") > 0) std::ranges::copy(values["set"].as<Arguments>(), std::back_inserter(words));
    sweep.runs.push_back({fmt::format("{}/{}", out, sweep.runs.size() + 1), words});
    sweep.config_of(sweep.runs.back());
  }
  if (exists(out + "/config.ini"))
    throw UsageError("sweep: {}: is the directory of a run; choose another --out", out);
  make_directories(out);
  const checkpoint::FileLock lock(
      out + "/sweep.lock", 0, [&](const std::string& line) { sweep.log.info("{}", line); }, "this sweep");
  write_list(out, settings, sweep.runs);
  const ExitCode code = sweep.run();
  show_results(out, session.log());
  if (code != ExitCode::done) session.log().info("runs are unfinished: the same command continues the sweep");
  return code;
}

}  // namespace lockstep::cli
