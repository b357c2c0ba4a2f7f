"""Runs a plan (plans.py) in a bundle and writes one JSON report: see tests/gpu.sh."""
import argparse
import concurrent.futures
import csv
import dataclasses
import datetime
import glob
import gzip
import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

import plans

ARCHIVES = (".tar.gz", "-compiled.tar.gz")  # beside the report
OUTPUT_LINES = 30  # of a failed entry, in the report
ARCHIVE_S = 25  # after --limit-s
ARCHIVE_BYTES = 15 << 20  # of what was compiled: a lent machine takes 64 MiB with the bundle, and gives files of 16
LOG_BYTES = 1 << 20  # of one entry, in the archive
# What results are of: another of these files, and they are made again.
CODE = ("bin/lockstep", "libexec", "tests/bin/test.gpu", "tests/support", "tests/bench")


def answer(*command):
    """Standard output of a command; None where there is none."""
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, text=True).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def parsed(text):
    """JSON, that of the last line where not all is, or None."""
    for candidate in (text or "", ((text or "").strip().splitlines() or [""])[-1]):
        try:
            return json.loads(candidate)
        except ValueError:
            pass
    return None


def csv_rows(text):
    """Of a CSV document with quotes that is among other lines, by "ID"; None, if it has no row but one of units."""
    rows = list(csv.DictReader(line for line in text.splitlines() if line.startswith('"')))
    return {"rows": rows} if any(row.get("ID") for row in rows) else None


def find_gpus():
    """What nvidia-smi says of each GPU, and why there is none."""
    fields = ["name", "driver_version", "memory.total", "compute_cap", "uuid"]
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"], timeout=20,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError:
        return [], "no GPU: nvidia-smi is not here"
    except subprocess.TimeoutExpired:
        return [], "no GPU: nvidia-smi did not answer in 20 s"
    if asked.returncode != 0 or not asked.stdout.strip():
        return [], "no GPU: nvidia-smi: " + (asked.stdout.strip() or "no device")
    return [dict(zip(fields, line.split(", "))) for line in asked.stdout.strip().splitlines()], None


def memory_mib(gpus):
    """Of the smallest. nvidia-smi says "81559 MiB"."""
    return min((int(re.match(r"\d*", gpu.get("memory.total", "")).group() or 0) for gpu in gpus), default=0)


def digest_of_code(bundle):
    digest = hashlib.sha256()
    for part in CODE:
        top = os.path.join(bundle, part)
        files = [top] if os.path.isfile(top) else [os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names]
        for path in sorted(path for path in files if "__pycache__" not in path):
            with open(path, "rb") as file:
                digest.update(os.path.relpath(path, bundle).encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


def torch_version():
    return answer("python3", "-c", "import importlib.metadata; print(importlib.metadata.version('torch'))")


RUNNING = set()  # processes, each the first of its session


def tell(process, number):
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:  # it has ended
        pass


def stop(process):
    """Ends what an entry started; mpirun is told first, as it alone knows its ranks."""
    tell(process, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        tell(process, signal.SIGKILL)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:  # it is in the driver, which does not return: the next one runs beside it
            print(f"process {process.pid} does not end", flush=True)


def run_command(command, environment, allowed_s, apart):
    """Runs a command in an empty folder, and ends it with all that it started when its time is over. Its exit code (None: it was ended),
    what it said on standard output and, apart from that or among it, on standard error, and its seconds. OSError if it does not start."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=errors if apart else subprocess.STDOUT, start_new_session=True)
        RUNNING.add(process)
        try:
            code = process.wait(allowed_s)
        except subprocess.TimeoutExpired:
            code = None
            stop(process)
        finally:
            RUNNING.discard(process)
            tell(process, signal.SIGKILL)  # what it has left would run beside the next one
        seconds = time.monotonic() - begin
        output.seek(0)
        errors.seek(0)
        return code, output.read().decode(errors="replace"), errors.read().decode(errors="replace"), seconds


class Run:
    """A plan on this machine, and its report. That is written after each entry: whatever ends this program, the rest is there."""

    def __init__(self, plan, options, gpus, no_gpu):
        self.plan, self.options, self.gpus, self.no_gpu = plan, options, gpus, no_gpu
        self.limit_s = options.limit_s if options.limit_s is not None else plan.limit_s
        self.lock = threading.Lock()
        self.background = []  # pools
        self.ended = False  # from outside
        self.results = {stage.name: [] for stage in plan.stages}
        self.about = {"plan": plan.name, "size": options.checklist, "gpus": gpus, **({"no_gpu": no_gpu} if no_gpu else {}),
                      "versions": {"lockstep": answer("lockstep", "--version"), "system": answer("uname", "-sr"),
                                   "libc": " ".join(platform.libc_ver()), "python": platform.python_version(), "torch": torch_version()},
                      "code": digest_of_code(options.bundle),
                      "doctor": parsed(answer("lockstep", "doctor", "--json"))}
        self.logs = os.path.join(options.work, plan.name) if plan.name else None
        if self.logs:
            os.makedirs(self.logs, exist_ok=True)
            self.take_over()

    def take_over(self):
        """What an earlier start has done, on the same GPU and with the same files, is not done again; nor PyTorch's with the same PyTorch."""
        earlier = read_state(self.options, self.plan.name)
        if not earlier:
            return

        def same(of, key):
            return ({name: text for name, text in of.get(key, {}).items() if name != "torch"} if key == "versions" else of.get(key))

        other = [key for key in ("gpus", "versions", "code", "size") if same(earlier, key) != same(self.about, key)]
        if other:
            print(f"the earlier results are of another GPU, version or size ({', '.join(other)}): all is done again")
            return
        same_torch = earlier["versions"].get("torch") == self.about["versions"]["torch"]
        named = {entry["name"]: entry for stage in earlier["stages"] for entry in stage["entries"]}
        for stage in self.plan.stages:
            self.results[stage.name] = [{**named[entry.name], "earlier": True} for entry in stage.entries
                                        if named.get(entry.name, {}).get("result") == "passed" and (same_torch or not plans.is_peer(entry))]
        number = sum(len(stage.entries) for stage in self.plan.stages)
        print(f"{sum(map(len, self.results.values()))} of {number} entries are done already")

    def left_s(self, share=1.0):
        """Until that share of the time is over."""
        return share * self.limit_s - (time.monotonic() - self.options.begin)

    def filled(self, text, allowed_s):
        return plans.filled(text, {"bundle": self.options.bundle, "work": self.options.work,
                                   "limit_s": f"{max(1, allowed_s - plans.END_S):.0f}"})

    def run_entry(self, entry, stage):
        """An entry of the report."""
        record = {"name": entry.name, "result": "skipped"}
        if entry.json:
            record["command"] = plans.shown(entry)
        left_s = self.left_s(stage.ends)
        record["seconds"] = 0.0
        if entry.gpu and self.no_gpu:
            return {**record, "reason": self.no_gpu}
        if entry.needs and not shutil.which(entry.needs):
            return {**record, "reason": f"{entry.needs} is not here"}
        if left_s <= 0 or self.ended:
            return {**record, "reason": "not reached: --limit-s", "late": True}
        if left_s < entry.min_s:
            return {**record, "reason": f"not begun with {left_s:.0f} s left: --limit-s", "late": True}
        allowed_s = min(entry.limit_s, left_s)
        environment = {key: self.filled(value, allowed_s) for key, value in entry.environment.items()}
        try:
            code, output, errors, seconds = run_command([self.filled(word, allowed_s) for word in entry.command], environment, allowed_s,
                                                        entry.json)
        except OSError as error:
            return {**record, "result": "failed", "reason": f"{entry.command[0]}: {error.strerror}"}
        record["seconds"] = round(seconds, 2)
        lines = (errors + output).splitlines()
        if self.logs:
            with open(os.path.join(self.logs, f"{stage.name}.{entry.name}.log"), "w", encoding="utf-8") as file:
                file.write((errors + output)[-LOG_BYTES:])
        figures = (csv_rows(output) if entry.csv else parsed(output)) if code == 0 and (entry.csv or entry.json) else None
        if code == 0 and (isinstance(figures, dict) or not (entry.csv or entry.json)):
            record["result"] = "passed"
            if figures is not None:
                record["figures"] = figures
            if entry.shows:
                record["output"] = lines[-OUTPUT_LINES:]
        elif code in (entry.skip_code, plans.LATE_CODE):
            record["reason"] = next((line for line in reversed(lines) if line.strip()), "without a reason")
            if code == plans.LATE_CODE:
                record["late"] = True
        elif self.ended:
            record.update(reason="ended with the script", late=True)
        elif code and entry.skip_text and (said := re.search(entry.skip_text, errors + output)):
            record["reason"] = said[0]
        elif code is None and left_s < entry.limit_s:
            record.update(reason=f"cut off after {allowed_s:.1f} s: --limit-s was reached", late=True)
        else:
            reason = f"not done after {allowed_s:.1f} s" if code is None else f"exit code {code}" if code else \
                "it printed no row" if entry.csv else "it printed no JSON"
            record.update(result="failed", reason=reason, output=lines[-OUTPUT_LINES:])
        return record

    def run_stage(self, stage, wanted):
        """Those of its entries that are wanted, whatever becomes of each. Results are in the order in which they end."""
        results = self.results[stage.name]
        entries = [entry for entry in stage.entries if wanted(next((done for done in results if done["name"] == entry.name), None))]
        if not entries:
            return

        def run_one(entry):
            record = self.run_entry(entry, stage)
            with self.lock:
                results[:] = [done for done in results if done["name"] != entry.name] + [record]
                self.write()
                figure = (record.get("figures") or {}).get("step_ms")
                print(f"{len(results)}/{len(stage.entries)} {record['result']:7} {record['seconds']:6.1f} s  {entry.name}  "
                      + (f"{figure:.2f} ms a step" if isinstance(figure, (int, float)) else record.get("reason", "")), flush=True)
                for line in record.get("output", []):
                    print("    " + line)

        if stage.alone:
            self.join()
        pool = concurrent.futures.ThreadPoolExecutor(1 if stage.alone else stage.jobs)
        self.background.append((pool, [pool.submit(run_one, entry) for entry in entries]))
        if not stage.background:
            self.join(self.background[-1:])

    def join(self, pools=None):
        for pool, pending in pools if pools is not None else self.background:
            for done in pending:
                done.result()  # a report that cannot be written ends this program
            pool.shutdown()

    def run(self):
        beside = None
        try:
            if self.plan.beside and not self.no_gpu:
                command, file = self.plan.beside
                if shutil.which(command[0]):
                    with open(os.path.join(self.logs, file), "a", encoding="utf-8") as output:
                        beside = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)
            for stage in self.plan.stages:
                self.run_stage(stage, lambda done: not done or done["result"] != "passed")
            self.join()
            if self.plan.name:  # what a stage had no time for has what others have left; figures first
                for stage in sorted(self.plan.stages, key=lambda stage: not stage.alone):
                    if self.left_s() > 0 and not stage.background:
                        self.run_stage(dataclasses.replace(stage, ends=1), lambda done: done and done.get("late"))
        except BaseException:  # Ctrl-C, SIGTERM, or a report that cannot be written
            self.ended = True
            for pool, _ in self.background:
                pool.shutdown(wait=False, cancel_futures=True)
            for process in list(RUNNING):
                tell(process, signal.SIGTERM)  # all at once, as each has some seconds
            until = time.monotonic() + 20
            while time.monotonic() < until and any(not future.done() for _, pending in self.background for future in pending):
                for process in list(RUNNING):
                    stop(process)
                time.sleep(0.05)
            raise
        finally:
            if beside:
                stop(beside)
        self.write()

    def count(self):
        counted = [entry for stage in self.plan.stages if stage.counts for entry in self.results[stage.name]]
        return {kind: sum(entry["result"] == kind for entry in counted) for kind in ("passed", "failed", "skipped")}

    def ratios(self):
        """Of PyTorch's step to ours for each workload that has both, each in its fastest mode, of medians; and the workloads of which not
        all of PyTorch's modes were tried to the end."""
        times, ended = {}, set()
        for entry in (entry for entries in self.results.values() for entry in entries):
            named = re.fullmatch(r"(.+)\.(lockstep|pytorch)(\.\d)?", entry["name"])
            figures = entry.get("figures") or {}
            if named and figures.get("step_ms"):
                mode = figures.get("mode"), figures.get("sdpa")
                times.setdefault(named[1], {}).setdefault(named[2], {}).setdefault(mode, []).append(figures["step_ms"])
                if figures.get("all_tried"):
                    ended.add(named[1])
        ratios = {workload: round(min(map(statistics.median, of["pytorch"].values())) / min(map(statistics.median, of["lockstep"].values())), 4)
                  for workload, of in times.items() if len(of) == 2}
        return ratios, sorted(set(ratios) - ended)

    def write(self):
        ratios, unfinished = self.ratios()
        stages = [{"name": stage.name, "yields": stage.yields, "entries": self.results[stage.name]} for stage in self.plan.stages]
        text = json.dumps({"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), **self.about,
                           "seconds": round(time.monotonic() - self.options.begin, 1), "limit_s": self.limit_s, **self.count(),
                           "pytorch_to_lockstep": ratios, "pytorch_not_all_tried": unfinished, "stages": stages}, indent=1)
        for path in [self.options.report] + ([state_path(self.options, self.plan.name)] if self.plan.name else []):
            with open(path + ".new", "w", encoding="utf-8") as file:
                file.write(text + "\n")
            os.replace(path + ".new", path)  # never half a report

    def root(self):
        """Of the archives' names."""
        return re.sub(r"\.json$", "", self.options.report)

    def compiled(self):
        return os.path.join(self.options.work, "compiled")

    def archive_results(self):
        """Beside the report: the logs of the plan with its report, and what its peers have chosen."""
        for old in ARCHIVES:
            if os.path.exists(self.root() + old):
                os.remove(self.root() + old)
        with tarfile.open(self.root() + ".tar.gz", "w:gz", compresslevel=6) as archive:
            archive.add(self.logs, os.path.basename(self.logs))
            for file in sorted(filter(os.path.isfile, glob.glob(os.path.join(glob.escape(self.compiled()), "*")))):
                archive.add(file, os.path.join("compiled", os.path.basename(file)))

    def archive_compiled(self):
        """What the peers have compiled, in an archive that is small enough to travel. It is good with a part of that, too, where time or
        room ends it: then the rest is compiled again. The files of a folder go together, as Triton fails on a kernel that has lost one
        of its files. Top folders take turns, so that each is there."""
        until = self.options.begin + self.limit_s + ARCHIVE_S
        tops = sorted(glob.glob(os.path.join(glob.escape(self.compiled()), "*", "")))
        folders = [sorted([os.path.join(path, file) for file in names] for path, _, names in os.walk(top) if names) for top in tops]
        turns = [files for turn in itertools.zip_longest(*folders) for files in turn if files]
        out = 0
        if turns:
            with open(self.root() + "-compiled.tar.gz", "wb") as file, gzip.GzipFile(fileobj=file, mode="wb", compresslevel=3) as packed, \
                    tarfile.open(fileobj=packed, mode="w") as archive:
                for files in turns:
                    packed.flush()
                    # Room for files that do not get smaller, and for the end.
                    if time.monotonic() > until or file.tell() + sum(map(os.path.getsize, files)) > ARCHIVE_BYTES:
                        out += len(files)
                    else:
                        for path in files:
                            archive.add(path, os.path.relpath(path, self.options.work))
        if out:
            print(f"{out} files of {self.compiled()} are not in the archive, for want of room or time: PyTorch compiles what is missing again; "
                  f"to have all, copy that folder")


def state_path(options, name):
    return os.path.join(options.work, name, "report.json")


def read_report(path):
    """None, unless it is a report of this program. Empty: a start that ended before its first entry."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        report = parsed(text) if text.strip() else {"versions": {}, "stages": []}
        ours = all(entry["name"] for stage in report["stages"] for entry in stage["entries"]) and isinstance(report["versions"], dict)
        return report if ours else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_state(options, name):
    """The report of an earlier start of that plan, or nothing."""
    path = state_path(options, name)
    report = read_report(path)
    if report is None and os.path.exists(path):
        print(f"{path} is no whole report of an earlier start: all is done again")
    return report or {}


def refused_outputs(report, archives):
    """Why the report and its archives must not be written there; None if nothing is lost."""
    if os.path.islink(report) or (os.path.lexists(report) and (not os.path.isfile(report) or read_report(report) is None)):
        return f"--report: {report}: is there, and is no report of gpu.sh: name another file"
    there = [path for path in archives if os.path.lexists(path)]
    return f"--report: {there[0]}: is there, without a report beside it: name another file" if there and not os.path.lexists(report) else None


def complain(text):
    """Says what is wrong; the exit code."""
    print("gpu.sh: " + text, file=sys.stderr)
    return 2


def choose_plan(options, gpus, no_gpu):
    with open(os.path.join(options.bundle, "tests", "list.json"), encoding="utf-8") as file:
        listed = json.load(file)
    mib = memory_mib(gpus)
    jobs = max(1, options.jobs if options.jobs is not None else 4 if mib >= 64 << 10 else 1)
    machine = plans.Machine(options.bundle, listed, mib, jobs, options.checklist)
    if options.plan == "figures":
        return plans.figures(machine)
    if options.plan == "explain":
        earlier = read_state(options, "figures").get("stages", [])
        return plans.explain(machine, {entry["name"]: entry for stage in earlier for entry in stage["entries"]})
    if options.match:
        return plans.matching(machine, options.match)
    if not any("gpu" in test["labels"] for test in listed):
        print("this bundle was built without CUDA: it has no GPU tests")
    return plans.suites(machine, options.cpu, not no_gpu and not options.no_benchmarks)


def main():
    parser = argparse.ArgumentParser(prog="gpu.sh", description="Runs the GPU tests of a bundle and writes one JSON report.")
    parser.add_argument("bundle", help=argparse.SUPPRESS)
    parser.add_argument("--plan", choices=["figures", "explain"], help="all figures of one GPU; what they leave open")
    parser.add_argument("--cpu", action="store_true", help="the MPI tests at 1, 2 and 4 ranks as well, which need no GPU")
    parser.add_argument("--no-benchmarks", action="store_true", help="no measurements")
    parser.add_argument("--checklist", choices=["real", "small", "no"], default="real",
                        help="before the tests: of a GPT-2 124M (real), or of the size for an emulated GPU (small)")
    parser.add_argument("--jobs", type=int, metavar="N",
                        help="so many checks and tests at once (4 on GPUs of 64 GiB and more, else 1); measurements are alone")
    parser.add_argument("--match", metavar="REGEX", help="these tests instead, whatever they need")
    parser.add_argument("--limit-s", type=float, help="nothing starts later, and nothing runs longer (430; figures: 560, explain: 120)")
    parser.add_argument("--report", default="report.json", help="where the report goes (report.json)")
    parser.add_argument("--work", help="where a plan keeps what it has done (BUNDLE/work)")
    options = parser.parse_args()
    for flag, given in (("--cpu", options.cpu), ("--no-benchmarks", options.no_benchmarks), ("--match", options.match),
                        ("--checklist no", options.checklist == "no")):
        if options.plan and given:
            parser.error(f"--plan has no use for {flag}: it says by itself what runs")
    if options.limit_s is not None and not 0 < options.limit_s < float("inf"):
        parser.error("--limit-s: seconds, above 0")
    if options.jobs is not None and options.jobs < 1:
        parser.error("--jobs: at least 1")
    try:
        re.compile(options.match or "")
    except re.error as error:
        parser.error(f"--match: {error}")
    options.begin = time.monotonic()
    options.work = os.path.abspath(options.work or os.path.join(options.bundle, "work"))

    def end(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    root = re.sub(r"\.json$", "", options.report)
    if refused := refused_outputs(options.report, [root + end for end in ARCHIVES] if options.plan else []):
        sys.exit(complain(refused))
    try:
        os.makedirs(os.path.dirname(options.report) or ".", exist_ok=True)
        open(options.report, "a", encoding="utf-8").close()  # now, not after the tests
        if options.plan:
            os.makedirs(os.path.join(options.work, options.plan), exist_ok=True)
    except OSError as error:
        sys.exit(complain(f"{error.filename}: {error.strerror}"))
    gpus, no_gpu = find_gpus()
    if no_gpu and options.plan and read_state(options, options.plan).get("gpus"):
        sys.exit(complain(f"{no_gpu}, but {options.work} has results of one, which stay; another --work begins anew"))
    print(no_gpu or "GPU: " + "; ".join(f"{gpu['name']}, driver {gpu['driver_version']}" for gpu in gpus))
    plan = choose_plan(options, gpus, no_gpu)
    if options.match and not any(stage.entries for stage in plan.stages):
        sys.exit(complain(f"--match: no test of this bundle has a name like {options.match}"))
    run = Run(plan, options, gpus, no_gpu)
    try:
        run.run()
    except KeyboardInterrupt:
        if plan.name:
            run.archive_results()
        print(f"ended from outside; report: {options.report}")
        sys.exit(130)
    ratios, unfinished = run.ratios()
    for workload, ratio in ratios.items():
        print(f"{workload}: PyTorch's step takes {ratio:.3f} times ours, which waits for each on the host"
              + "; not all of its modes were tried" * (workload in unfinished))
    if plan.name:
        run.archive_results()
        run.archive_compiled()
    count = run.count()
    print(", ".join(f"{number} {kind}" for kind, number in count.items()) + f"; report: {options.report}")
    sys.exit(1 if count["failed"] else 0)


if __name__ == "__main__":
    main()
