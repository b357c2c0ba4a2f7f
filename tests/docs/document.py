#!/usr/bin/env python3
"""document.py FILE: what README.md, INSTALL and docs/*.md show is true. See tests/docs/README.md.

Fenced blocks are run in a scratch folder or, where they cannot be, parsed: verbs and flags must be in --help, keys in
--help-keys, scripts in the repository, names of C++ in the headers. So are commands and keys in the text.

Environment: LOCKSTEP (the program), LOCKSTEP_SOURCE_DIR.
"""
import ast
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(os.environ["LOCKSTEP_SOURCE_DIR"])
PROGRAM = os.environ["LOCKSTEP"]
TIME_FACTOR = int(os.environ.get("LOCKSTEP_TEST_TIME_FACTOR", "1"))  # of a slow machine
BLOCK_TIMEOUT_S = 100 * TIME_FACTOR
SECTIONS = "model|task|diffusion|data|train|optimizer|ddp|ema|checkpoint|log|sample|report|fault"
FILE_SUFFIXES = {"h5", "png", "html", "pt", "bin", "safetensors", "sbatch", "sh", "cpp", "md", "ini", "py", "json", "log", "pkl"}
JOB_VERBS = {"train.sbatch": "train", "array.sbatch": "train", "train-mpirun.sh": "train", "eval.sbatch": "eval"}


@dataclass
class Block:
    line: int  # of its fence, from 1
    language: str
    marker: str  # run, parse, file, in, prints; empty: the default of its language
    argument: str
    text: str


class Wrong(Exception):
    """A block or a text that is not true."""


def blocks_of(lines):
    """The fenced blocks, each with the marker above it."""
    blocks, number = [], 0
    while number < len(lines):
        fence = re.match(r"```(.*)$", lines[number])
        if not fence:
            number += 1
            continue
        end = next((i for i in range(number + 1, len(lines)) if lines[i] == "```"), None)
        if end is None:
            raise Wrong(f"line {number + 1}: a fence without an end")
        above = number - 1
        while above >= 0 and not lines[above].strip():
            above -= 1
        marker = re.fullmatch(r"<!-- (run|parse|file|in|prints)(?:: (.*?))? -->", lines[above]) if above >= 0 else None
        blocks.append(Block(number + 1, fence[1], *(marker.groups("") if marker else ("", "")),
                            "\n".join(lines[number + 1:end]) + "\n"))
        number = end + 1
    return blocks


@functools.lru_cache(None)
def help_of(*verb):
    done = subprocess.run([PROGRAM, *verb, "--help"], capture_output=True, text=True, timeout=60 * TIME_FACTOR)
    return done.stdout if done.returncode == 0 else ""


@functools.lru_cache(None)
def verbs():
    return set(re.findall(r"^  ([a-z]+) ", help_of(), re.M))


@functools.lru_cache(None)
def keys():
    listed = subprocess.run([PROGRAM, "train", "--help-keys"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^[* ] ([a-z_]+\.[a-zA-Z0-9_.]+)", listed, re.M))


@functools.lru_cache(None)
def names_of_headers():
    texts = (path.read_text() for path in (SOURCE / "include").rglob("*.h"))
    return set(re.findall(r"\w+", " ".join(texts)))


def check_key(key):
    known = keys() | {"optimizer.group"}
    if key in known or re.sub(r"\.[^.]+$", "", key) in {"optimizer.group"}:
        return
    raise Wrong(f"there is no key {key}")


def check_flags(verb, words):
    """The flags after `lockstep VERB`, also in brackets, as a synopsis has them."""
    if verb not in verbs():
        raise Wrong(f"lockstep has no verb {verb!r}")
    path = (verb,)
    if verb in ("bench", "prepare") and words and re.fullmatch("[a-z]+", words[0]):
        path = (verb, words[0])
    known = set(re.findall(r"--[a-z][a-z0-9-]*", help_of(*path)))
    if path in (("bench",), ("prepare",)):  # of any of its subjects
        for subject in re.findall(r"[a-z]+", (re.search(rf"{verb} ([a-z|]+)", help_of(verb)) or [""] * 2)[1]):
            known |= set(re.findall(r"--[a-z][a-z0-9-]*", help_of(verb, subject)))
    for word in words:
        flag = re.match(r"\[?(--[a-z][a-z0-9-]*)", word)
        if flag and flag[1] not in known:
            raise Wrong(f"lockstep {' '.join(path)} has no {flag[1]}")
    check_settings(words)


def check_settings(words):
    for word in words:
        setting = re.match(rf"\[?((?:{SECTIONS})\.[a-z0-9_.]+)=", word)
        if setting:
            check_key(setting[1])


def commands_of(text):
    """Lists of words, one for each simple command; comments are gone, line ends after a backslash, too."""
    joined = re.sub(r"\\\n\s*|\n\s+(?=\[)", " ", text)
    for line in joined.splitlines():
        try:
            lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|" if "|" not in line or " | " in line else ";&")
            lexer.whitespace_split = True
            words = list(lexer)
        except ValueError as error:
            raise Wrong(f"the shell cannot read {line!r}: {error}")
        command = []
        for word in words + [";"]:
            if re.fullmatch(r"[;&|]+", word):
                if command:
                    yield command
                command = []
            else:
                command.append(word)


def check_command(words):
    words = [word for word in words]
    while words and re.match(r"[A-Za-z_]+=", words[0]):
        words.pop(0)
    presets = json.loads((SOURCE / "CMakePresets.json").read_text())
    names = {preset["name"] for preset in presets["configurePresets"]}
    for before, word in zip(words, words[1:]):
        if before == "--preset" and word not in names:
            raise Wrong(f"CMakePresets.json has no preset {word}")
        if word.startswith("-DLOCKSTEP_"):
            check_option(word[2:].split("=")[0])
    for word in words:
        inside = re.fullmatch(r"(?:\.\.\./|\$PWD/)?((?:jobs|tests|share)/\S+?)", word)
        # "..." stands for any folder; NAME and the like for any name
        if inside and not word.startswith("...") and not re.search(r"[A-Z*]", inside[1]) and \
                not (SOURCE / inside[1]).exists():
            raise Wrong(f"the repository has no {inside[1]}")
    for place, word in enumerate(words):
        rest = words[place + 1:]
        if re.fullmatch(r"(\S*/)?lockstep", word) and rest and re.fullmatch(r"[a-z]+", rest[0]):
            check_flags(rest[0], rest[1:])
            return
        if Path(word).name in JOB_VERBS:
            check_flags(JOB_VERBS[Path(word).name], [one for one in rest])
            return


def check_option(option):
    sources = [SOURCE / "CMakeLists.txt", *(SOURCE / "cmake").glob("*.cmake")]
    if not any(re.search(rf"\b{option}\b", path.read_text()) for path in sources):
        raise Wrong(f"the build has no option {option}")


def check_shell(text):
    done = subprocess.run(["bash", "-n"], input=re.sub(r"[<>|](?=\w*\s)|\[|\]|\.\.\.", " ", text), text=True,
                          capture_output=True)
    if done.returncode != 0:
        raise Wrong(f"bash cannot read it: {done.stderr}")
    for words in commands_of(text):
        check_command(words)


def check_cpp(text):
    for name in re.findall(r"\bls::((?:\w+::)*\w+)", text):
        for part in name.split("::"):
            if part not in names_of_headers():
                raise Wrong(f"no header has ls::{name}")


def check_ini(text, scratch):
    """The parser takes every key and value: what it then misses is the data, which comes after."""
    base = {"model": {"name": "mlp", "sizes": "4 8 3"}, "data": {"train": "nowhere.h5"},
            "train": {"steps": "100", "global_batch": "32", "shards": "4"}}
    section = None
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        heading = re.fullmatch(r"\[(\w+)\]", line)
        if heading:
            section = base.setdefault(heading[1], {})
            continue
        key, _, value = line.partition("=")
        if section is None or not value.strip():
            raise Wrong(f"no line of a configuration: {line}")
        if key.strip() == "name" and section is base["model"]:
            section.clear()
        section[key.strip()] = value.strip()
    base["data"]["train"] = "nowhere.h5"
    written = "".join(f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in section.items())
                      for name, section in base.items())
    (scratch / "parsed.ini").write_text(written)
    done = subprocess.run([PROGRAM, "train", "parsed.ini", "--dry-run"], cwd=scratch, capture_output=True, text=True,
                          timeout=60 * TIME_FACTOR)
    if done.returncode != 3 or "nowhere.h5" not in done.stderr:
        raise Wrong(f"train does not take it (exit {done.returncode}): {done.stderr}")


def end(process):
    """Ends a process, the first of its session, with all that it has started. What it had said."""
    os.killpg(process.pid, signal.SIGTERM)  # an mpirun ends its ranks then, which have groups of their own
    try:
        return process.communicate(timeout=10)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=10)[0]
    except subprocess.TimeoutExpired as left:  # something that it has started still has its output open
        return (left.output or b"").decode(errors="replace")


class Scratch:
    """A folder with the repository's jobs/ and share/, and `lockstep` and `mpirun` on PATH."""

    def __init__(self, folder, name):
        self.folder, self.python, self.said = folder, "", ""
        for part in ("jobs", "share", "tests", "docs", "include"):
            (folder / part).symlink_to(SOURCE / part)
        tools = folder / ".bin"
        tools.mkdir()
        program = tools / "lockstep"
        program.write_text('#!/bin/bash\n# Shorter than the document says: with the settings of its marker.\n'
                           'for setting in $SETTINGS; do\n  [ "$1" != train ] || set -- "$@" --set "$setting"\ndone\n'
                           f'exec {shlex.quote(PROGRAM)} "$@"\n')
        program.chmod(0o755)
        (tools / "python3").symlink_to("/usr/bin/python3")  # which has h5py; another one may come first on PATH
        self.environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}", "TMPDIR": tempfile.gettempdir()}
        setup = SOURCE / "tests" / "docs" / "setup" / f"{name}.sh"
        if setup.exists():
            self.run(["bash", "-euo", "pipefail", str(setup)])

    def run(self, command, settings=""):
        process = subprocess.Popen(command, cwd=self.folder, env=self.environment | {"SETTINGS": settings}, text=True, errors="replace",
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            said = process.communicate(timeout=BLOCK_TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            raise Wrong(f"not done after {BLOCK_TIMEOUT_S} s: {end(process)[-3000:]}") from None
        if process.returncode != 0:
            raise Wrong(f"exit {process.returncode}: {said[-3000:]}")
        self.said = said


def without_numbers(line):
    """Numbers, which other processors round otherwise, times and the width of columns do not count."""
    return re.sub(r"-?\d[\d.:]*(?:e[-+]?\d+)?", "0", " ".join(line.split()))


def check_output(shown, said):
    """The lines of a text block are among those that the block before it printed, notes and results in any order; `...` is anything."""
    printed = [without_numbers(line) for line in said.splitlines()]
    for line in map(without_numbers, shown.splitlines()):
        pattern = re.compile(".*".join(re.escape(part) for part in line.split("...")))
        if line != "..." and not any(pattern.fullmatch(one) for one in printed):
            raise Wrong(f"nothing prints {line!r} there: {said[-3000:]}")


def check_block(block, scratch):
    """Runs or parses it; says which."""
    language, marker = block.language, block.marker
    if marker == "in":
        shown = [line.strip() for line in block.text.splitlines() if line.strip()]
        there = {line.strip() for line in (SOURCE / block.argument).read_text().splitlines()}
        for line in shown:
            if line not in there:
                raise Wrong(f"{block.argument} has no line {line!r}")
        return f"is in {block.argument}"
    if marker == "parse" and not block.argument:
        raise Wrong("a marker `parse` without its reason")
    if marker == "prints":
        check_output(block.text, scratch.said)
        return "is what was printed"
    if language == "text":
        return "is no command"
    if language in ("bash", "sh"):
        check_shell(block.text)
        if marker == "parse":
            return "parsed"
        scratch.run(["bash", "-euo", "pipefail", "-c", block.text], block.argument)
        return "ran"
    if language == "ini":
        check_ini(block.text, scratch.folder)
        if marker == "file":
            (scratch.folder / block.argument).write_text(block.text)
        return "is a configuration"
    if language == "python":
        ast.parse(block.text)
        if marker == "parse":
            return "parsed"
        scratch.python += block.text  # later blocks use its names
        scratch.run(["/usr/bin/python3", "-c", scratch.python])
        return "ran"
    if language == "cpp":
        check_cpp(block.text)
        return "has names of the headers"
    raise Wrong(f"a fence without a language that this test knows: {language!r} (bash, ini, python, cpp, text)")


def check_text(line):
    """Commands and keys in the running text, between backquotes."""
    for code in re.findall(r"`([^`]+)`", line):
        command = re.match(r"(?:\S+ )*?lockstep ([a-z]+)\b(.*)", code)
        if command and not re.search(r"[:$]", code.split("lockstep")[0]):
            check_flags(command[1], command[2].split())
        for key in re.finditer(rf"(?<![\w./-])((?:{SECTIONS})\.([a-z_][a-z_0-9.]*))(?![\w(/])", code):
            if key[2].split(".")[-1] in FILE_SUFFIXES or key[2].split(".")[0] in FILE_SUFFIXES:
                continue
            check_key(key[1].rstrip("."))


def check_install(lines):
    """INSTALL is a plain text: its commands are indented by two spaces."""
    text = "\n".join(lines)
    for command in re.findall(r"^  ((?:bash|cmake|mpirun|sbatch|tests/|export|tar) ?.*(?:\\\n.*)*)", text, re.M):
        command = re.sub(r"\s{3,}[A-Za-z(].*", "", command)  # a remark in a column to the right
        check_shell(command)
    for option in re.findall(r"^  (LOCKSTEP_[A-Z_]+)", text, re.M):
        check_option(option)


def main():
    path = Path(sys.argv[1])
    lines = path.read_text().splitlines()
    failures = []

    def attempt(number, check, *arguments):
        try:
            return check(*arguments)
        except (Wrong, SyntaxError, subprocess.TimeoutExpired) as error:
            failures.append(f"{path.name}:{number}: {error}")
            return "FAILED"

    if path.suffix != ".md":
        check_install(lines)
        print("all held")
        return 0
    with tempfile.TemporaryDirectory(prefix="lockstep-docs.") as folder:
        blocks = blocks_of(lines)
        scratch = Scratch(Path(folder), path.stem)
        inside = {number for block in blocks for number in range(block.line, block.line + block.text.count("\n") + 2)}
        for block in blocks:
            print(f"{path.name}:{block.line}: {block.language}: {attempt(block.line, check_block, block, scratch)}", flush=True)
        for number, line in enumerate(lines, 1):
            if number not in inside:
                attempt(number, check_text, line)
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"{len(failures)} failed" if failures else "all held")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
