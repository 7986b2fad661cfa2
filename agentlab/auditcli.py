"""`agentlab audit PATH…`: the audit of session files and of folders of them, as text or as JSON.

    paths -> files (folders: *.jsonl *.ndjson *.json *.traj, without links) -> sessions -> audit -> stdout
                                                            errors, progress -> stderr

One session is in memory at a time. Exit status: 0, all was read; 1, something was not, or only in part; 2, a wrong
command line.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from agentlab import jsonio
from agentlab.audit import Report, Saving, audit
from agentlab.transcripts import TranscriptError, sessions, visible

SUFFIXES = (".jsonl", ".ndjson", ".json", ".traj")
_BAR = 24


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command on its arguments. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="agentlab audit", description="What agents' session files show, and what this package would have saved."
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a session file, or a folder that holds some")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    parser.add_argument("--progress", choices=("auto", "always", "never"), default="auto", help="the bar on stderr")
    try:
        options = parser.parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    shown = options.progress == "always" or (options.progress == "auto" and sys.stderr.isatty())
    run = _Run(sys.stdout, sys.stderr, as_json=options.json, progress=shown)
    try:
        return run.all(options.paths)
    except BrokenPipeError:  # the reader of stdout has gone: nothing is left to tell, at exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        run.bar.clear()
        return 130


class _Run:
    def __init__(self, out: TextIO, err: TextIO, *, as_json: bool, progress: bool) -> None:
        self.out, self.err, self.as_json = out, err, as_json
        self.bar = _Bar(err if progress else None)
        self.errors: list[dict[str, str]] = []
        self.count = 0

    def all(self, paths: Sequence[str]) -> int:
        files = [file for path in paths for file in self.files(path)]
        self.bar.total = sum(size for _, size in files)
        if self.as_json:
            self.out.write('{"sessions":[')
        for path, size in files:
            self.file(path, size)
        self.bar.clear()
        if self.as_json:
            self.out.write(f'\n],"errors":{jsonio.dumps(self.errors)}}}\n')
        elif self.count:
            self.out.write(f"{_many(self.count, 'session')} in {_many(len(files), 'file')}\n")
        self.out.flush()
        return 1 if self.errors else 0

    def files(self, path: str) -> Iterator[tuple[str, int]]:
        """The files that a path stands for, with their sizes in bytes."""
        if not os.path.isdir(path):
            yield path, _size(path)
            return
        found = False
        for folder, inside, names in os.walk(path, onerror=lambda error: self.error(str(error.filename), str(error))):
            inside.sort()
            for name in sorted(names):
                file = os.path.join(folder, name)
                if name.endswith(SUFFIXES) and not os.path.islink(file):
                    found = True
                    yield file, _size(file)
        if not found:
            self.error(path, f"the folder holds no file that ends in {', '.join(SUFFIXES)}")

    def file(self, path: str, size: int) -> None:
        self.bar.start(path)
        damaged = 0
        for number, report in enumerate(self.reports(path), 1):
            self.session(path, number, report)
            damaged = max(damaged, report.damaged)
        if damaged:
            self.error(path, f"read in part: {_many(damaged, 'line or message', 'lines or messages')} left out")
        self.bar.finish(size)

    def reports(self, path: str) -> Iterator[Report]:
        """The reports on a file's sessions; what cannot be read is told, and ends them."""
        try:
            for transcript in sessions(path, on_bytes=self.bar.add):
                report = audit(transcript)
                del transcript  # before the next one is made
                self.bar.clear()
                yield report
        except TranscriptError as error:
            self.error(path, str(error))

    def session(self, path: str, number: int, report: Report) -> None:
        self.count += 1
        if self.as_json:
            named = {"path": visible(path, 1000), "number": number, **report.as_dict()}
            self.out.write(("," if self.count > 1 else "") + "\n" + jsonio.dumps(named))
        else:
            self.out.write("\n".join(_lines(path, number, report)) + "\n\n")

    def error(self, path: str, text: str) -> None:
        self.bar.clear()
        self.errors.append({"path": visible(path, 1000), "error": visible(text, 300)})
        self.err.write(f"agentlab audit: {visible(path, 1000)}: {visible(text, 300)}\n")
        self.err.flush()


class _Bar:
    """A progress bar over the bytes of all files, rewritten only when its text changes. Without a stream: nothing."""

    def __init__(self, stream: TextIO | None) -> None:
        self.stream, self.total, self.done, self.before = stream, 0, 0, 0
        self.name = self.shown = ""

    def start(self, path: str) -> None:
        self.before, self.name = self.done, visible(os.path.basename(path), 40)
        self.add(0)

    def add(self, count: int) -> None:
        self.done += count
        if self.stream is None:
            return
        share = min(1.0, self.done / self.total) if self.total else 1.0
        full = int(share * _BAR)
        text = f"[{'#' * full}{'.' * (_BAR - full)}] {share:4.0%} {self.name}"
        if text != self.shown:
            self.stream.write(f"\r{text}\x1b[K")
            self.stream.flush()
            self.shown = text

    def finish(self, size: int) -> None:
        """The file is done, whether or not all of it was read."""
        self.done = self.before + size
        self.add(0)

    def clear(self) -> None:
        if self.stream is not None and self.shown:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
            self.shown = ""


def _lines(path: str, number: int, report: Report) -> Iterator[str]:
    """A report for people."""
    sub = report.meta.get("sub_agent")
    which = f", sub-agent {sub}" if sub else f", session {number}" if number > 1 else ""
    yield f"{visible(path, 1000)} ({report.format}{which})"
    parts = ", ".join(f"{role} {count:,}" for role, count in report.tokens.items())
    yield f"  messages     {report.messages:,}; about {sum(report.tokens.values()):,} tokens: {parts}"
    told = {key: value for key, value in report.meta.items() if key != "sub_agent" and value}
    if told:
        yield "  recorded     " + "; ".join(f"{key} {_value(value)}" for key, value in told.items())
    faults = ", ".join(f"{count} {kind}" for kind, count in report.problems.items())
    yield f"  pairing      {faults or 'no problem'}"
    yield from (f"               {line}" for line in report.examples[:3])
    yield f"  spill        {_saving(report.spill, 'output')}"
    yield f"  fold         {_saving(report.fold, 'output')}"
    yield f"  prune        {_saving(report.prune, 'output')}"
    yield f"  compaction   {_saving(report.compaction, 'message')}"
    yield from _cache_lines(report)
    again = f"{_many(report.repeated, 'call')} made again" if report.repeated else "none"
    yield f"  repeated     {again}"
    yield from (f"               {one.count} x {one.name} {one.input}" for one in report.repeats[:3])
    for item in report.dropped:
        lines = ", ".join(map(str, item.lines[:5])) + (", …" if len(item.lines) > 5 else "")
        yield f"  left out     {item.count} x {item.kind}" + (f" (line {lines})" if lines else "")


def _cache_lines(report: Report) -> Iterator[str]:
    cache = report.cache
    if not cache.requests:
        yield "  cache        no usage was recorded"
    elif not cache.reported:
        yield f"  cache        {_many(cache.requests, 'request')}; nothing about a cache was reported"
    else:
        share = cache.hit / cache.prompt if cache.prompt else 0.0
        waste = f"{cache.wasted:,} tokens paid again in {_many(cache.misses, 'request')}"
        times = "" if cache.timed else "; some have no time, so pauses are not known"
        yield f"  cache        {_many(cache.requests, 'request')}, {share:.1%} from the cache; {waste}{times}"
        for miss in cache.worst[:3]:
            yield f"               line {miss.line}: {miss.missed:,} tokens, {miss.verdict}; {miss.culprit}"
    for one in report.breaks[:3]:
        yield f"  prefix       line {one.line}: {visible(one.where)} differs, {one.lost:,} characters cannot be reused"


def _saving(saving: Saving, noun: str) -> str:
    if not saving.changed:
        return "nothing to save"
    return f"about {saving.tokens:,} of {saving.before // 4:,} tokens, in {_many(saving.changed, noun)}"


def _value(value: object) -> str:
    return visible(", ".join(map(str, value)) if isinstance(value, list) else value, 120)


def _many(count: int, noun: str, plural: str = "") -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return 0
