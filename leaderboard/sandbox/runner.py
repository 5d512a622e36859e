"""Starts processes in the sandbox, watches them, ends them, and says in one line what they did."""

from __future__ import annotations

import json
import os
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import parenvs.agents
import parenvs.datasets
import parenvs.leaderboard
from parenvs.leaderboard.reading import EntryError, cleaned, parse_json
from parenvs.leaderboard.sandbox.limits import Limits

_CHILD = "parenvs.leaderboard.sandbox.child"
_EVERY = (0.05, 0.4)
"""Seconds between two looks at what runs: at first, and at most."""
_MIB, _KIB = 2**20, 2**10
_THREADS = ("OMP", "OPENBLAS", "MKL", "NUMEXPR")


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        value: what the function returned, JSON types; None if it failed.
        fault: what the job did wrong, in one line; empty if nothing.
        seconds: wall time, with the start of Python.
        isolation: what held it: ``"namespaces"``, and the limits that the system had; empty if the
            job ended before it could tell.
    """

    value: Any
    fault: str
    seconds: float
    isolation: tuple[str, ...] = ()


def run(
    function: str,
    argument: Any,
    limits: Limits | None = None,
    readable: Iterable[str] = (),
    namespaces: bool = True,
) -> Outcome:
    """Call a function in a process of its own, with limits, and return what became of it.

    The process and all that it started have ended when this returns, and its folder is gone.

    Args:
        function: ``"module:name"`` of a function of this package, which takes ``argument``.
        argument: JSON types.
        limits: what it may use.
        readable: paths that it must be able to read, besides Python and this package.
        namespaces: whether to use Linux namespaces where they are to be had.
    """
    limits = limits or Limits()
    with tempfile.TemporaryDirectory(prefix="parenvs-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o777)
        job = {
            "function": function,
            "argument": argument,
            "limits": asdict(limits),
            "readable": sorted({*_python(), *readable}),
            "folder": os.path.realpath(folder),
            "namespaces": namespaces,
        }
        return _Watched(json.dumps(job).encode(), Path(folder), limits).outcome()


class _Watched:
    """A process that is watched until it ends, or is ended."""

    def __init__(self, job: bytes, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-B", "-m", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=_environment(folder),
            start_new_session=True,
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.result = _Ear(self.process.stdout, int(limits.result_mib * _MIB))
        self.printed = _Ear(self.process.stderr, int(limits.printed_kib * _KIB))
        try:
            self.process.stdin.write(job)
            self.process.stdin.close()
        except OSError:
            pass  # it ended at once; its status tells

    def outcome(self) -> Outcome:
        """Wait for the end, and return what became of the job."""
        fault, (pause, longest) = "", _EVERY
        try:
            while not fault:
                try:
                    self.process.wait(pause)
                    break
                except subprocess.TimeoutExpired:
                    fault = self._fault()
                    pause = min(1.3 * pause, longest)
        finally:  # an interruption ends it as well
            self._end()
        seconds = time.monotonic() - self.begin
        for ear in (self.result, self.printed):
            ear.join(5.0)
        told = self._told()
        isolation = told.get("isolation", [])
        isolation = tuple(map(str, isolation)) if isinstance(isolation, list) else ()
        fault = fault or self._overflow() or self._said(told) or self._ended(told)
        value = None if fault else told.get("value")
        return Outcome(value, cleaned(fault), seconds, isolation)

    def _fault(self) -> str:
        """Return why the process must be ended now, or an empty text."""
        limits = self.limits
        if time.monotonic() - self.begin > limits.seconds:
            return f"took longer than {limits.words('seconds')}"
        if self._overflow():
            return self._overflow()
        size, count = _resident(self.process.pid)
        if size > limits.memory_mib * _MIB:
            return f"used more than {limits.words('memory_mib')} of memory"
        if count > limits.processes + 4:  # ours wait for it
            return f"started more than {limits.processes} processes"
        files, size = _held(self.folder)
        if files > limits.files:
            return f"wrote more than {limits.files:,} files"
        return (
            f"wrote more than {limits.words('file_mib')}" if size > limits.file_mib * _MIB else ""
        )

    def _overflow(self) -> str:
        """Return what there is too much of, or an empty text."""
        if self.result.is_full:
            return f"gave a result of more than {self.limits.words('result_mib')}"
        if self.printed.is_full:
            return f"printed more than {self.limits.words('printed_kib')}"
        return ""

    def _told(self) -> dict[str, Any]:
        """Return what the process wrote, which a stranger's code may have changed."""
        if not self.result.heard:
            return {}
        try:
            told = parse_json(bytes(self.result.heard), "result")
        except EntryError as error:
            return {"unread": error.reasons[0]}
        return told if isinstance(told, dict) else {"unread": "it is no object"}

    def _said(self, told: dict[str, Any]) -> str:
        """Return the fault that the process itself tells, or an empty text."""
        if told.get("memory"):
            return f"used more than {self.limits.words('memory_mib')} of memory"
        if told.get("forbidden"):
            return str(told["forbidden"])
        return f"raised {told['error']}" if told.get("error") else ""

    def _ended(self, told: dict[str, Any]) -> str:
        """Return what is wrong with how the process ended, or an empty text."""
        code = self.process.returncode
        number = -code if code < 0 else code - 128 if code > 128 else 0
        named = {
            getattr(signal, "SIGXCPU", -1): f"took more than {self.limits.cpu_seconds} s of "
            "processor time",
            getattr(signal, "SIGXFSZ", -1): f"wrote more than {self.limits.words('file_mib')}",
        }
        if number in named:
            return named[number]
        if number:
            try:
                name = signal.Signals(number).name
            except ValueError:
                name = str(number)
            return f"was ended by signal {name}"
        if "value" in told:
            return ""
        if "unread" in told:
            return f"gave a result that cannot be read: {told['unread']}"
        last = self.printed.heard.decode("utf-8", "replace").strip().splitlines()
        words = f": {last[-1][:160]}" if last else ""
        return f"ended without a result, with status {code}{words}"

    def _end(self) -> None:
        """End the process and all that it started."""
        for end in (lambda: os.killpg(self.process.pid, signal.SIGKILL), self.process.kill):
            try:
                end()
            except (OSError, AttributeError):  # it has ended, or the system has no groups
                continue
        self.process.wait()


class _Ear:
    """Reads a pipe to its end, and keeps no more than a number of bytes."""

    def __init__(self, pipe: IO[bytes], most: int) -> None:
        self.heard, self.most, self.is_full = bytearray(), most, False
        self.pipe = pipe
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        read = self.pipe.read1  # type: ignore[attr-defined]
        with self.pipe:
            while data := read(2**16):
                room = self.most - len(self.heard)
                self.heard += data[:room]
                self.is_full = self.is_full or len(data) > room

    def join(self, seconds: float) -> None:
        """Wait for the end of the pipe."""
        self.thread.join(seconds)


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of the process: little of ours, and nothing secret."""
    kept = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "LD_LIBRARY_PATH", "PYTHONPATH")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    root = str(Path(parenvs.__path__[0]).resolve().parent)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH", "")]))
    env["PYTHONUSERBASE"] = site.getuserbase()
    env["PYTHONDONTWRITEBYTECODE"] = env["PYTHONHASHSEED"] = "1"
    env |= {f"{library}_NUM_THREADS": "1" for library in _THREADS}
    return env | {name: str(folder) for name in ("HOME", "TMPDIR", "TEMP", "TMP")}


def _python() -> list[str]:
    """Return the folders of Python, its packages and this one."""
    packages: tuple[Any, ...] = (parenvs, parenvs.agents, parenvs.datasets, parenvs.leaderboard)
    paths = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.executable, *sys.path]
    paths += [path for package in packages for path in package.__path__]
    # The folder that a program was started in may hold anything; packages in it are named.
    here = os.path.realpath(os.getcwd())
    found = {os.path.realpath(path) for path in paths if path}
    found |= {os.path.abspath(path) for path in (sys.prefix, sys.executable)}
    return [path for path in found if os.path.exists(path) and path not in ("/", here)]


def _resident(pid: int) -> tuple[int, int]:
    """Return resident bytes and number of a process's descendants with itself; 0 if not known."""
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
        unit = os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0, 0
    for name in names:
        try:
            with open(f"/proc/{name}/stat", "rb") as stream:
                fields = stream.read().rpartition(b")")[2].split()
        except OSError:
            continue
        parents[int(name)], pages[int(name)] = int(fields[1]), int(fields[21])
    family, size = {pid}, len(parents)
    for _ in range(size):
        more = {child for child, parent in parents.items() if parent in family} - family
        if not more:
            break
        family |= more
    return unit * sum(pages.get(one, 0) for one in family), len(family)


def _held(folder: Path) -> tuple[int, int]:
    """Return number and bytes of the files in a folder; in namespaces there are none to be seen."""
    count = size = 0
    for _, folders, names in os.walk(folder):
        count += len(folders) + len(names)
        if count > 100_000:
            break
        for name in names[:1000]:
            try:
                size += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return count, size
