"""Starts processes in the sandbox, watches them, ends them, and says in one line what they did."""

from __future__ import annotations

import json
import os
import secrets
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Any

import parenvs.agents
import parenvs.datasets
import parenvs.leaderboard
from parenvs.leaderboard.reading import EntryError, cleaned, parse_json
from parenvs.leaderboard.sandbox import usage
from parenvs.leaderboard.sandbox.cgroup import Group
from parenvs.leaderboard.sandbox.isolation import NO_ISOLATION, Isolation, IsolationError, seen
from parenvs.leaderboard.sandbox.limits import Limits

_CHILD = "parenvs.leaderboard.sandbox.child"
_EVERY = (0.05, 0.4)
"""Seconds between two looks at what runs: at first, and at most."""
_MIB, _KIB = 2**20, 2**10
_LINUX = sys.platform == "linux"
_OURS = 4
"""Processes of ours that wait for the job, beside itself."""
_CPU = "took more than {} s of processor time"
_PARTS = ("bin", "lib", "lib64", "pyvenv.cfg")
"""What Python needs of a folder that it was installed to, where a home may be that holds more."""
_THREADS = ("OMP", "OPENBLAS", "MKL", "NUMEXPR")


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        value: what the function returned, JSON types; None if it failed.
        fault: what the job did wrong, in one line; empty if nothing.
        seconds: wall time, with the start of Python.
        isolation: what held it, seen from outside before it began.
    """

    value: Any
    fault: str
    seconds: float
    isolation: Isolation = NO_ISOLATION


def run(
    function: str,
    argument: Any,
    limits: Limits | None = None,
    readable: Iterable[str] = (),
    unsafe: bool = False,
    namespaces: bool = True,
) -> Outcome:
    """Call a function in a process of its own, with limits, and return what became of it.

    The process and all that it started have ended when this returns, and its folder is gone.

    Args:
        function: ``"module:name"`` of a function of this package, which takes ``argument``.
        argument: JSON types.
        limits: what it may use.
        readable: paths that it must be able to read, besides Python and this package.
        unsafe: whether to call it where this system cannot isolate it, too.
        namespaces: whether to enter namespaces; without, nothing is isolated.

    Raises:
        IsolationError: something of the isolation is missing; the function was not called.
    """
    with _watched(limits or Limits(), readable, namespaces) as process:
        isolation = process.isolation()
        if isolation is None:
            return process.outcome(Isolation((), ("start of the process",)))
        if isolation.missing and not unsafe:
            raise IsolationError(isolation)
        process.give({"function": function, "argument": argument})
        return process.outcome(isolation)


def isolation(namespaces: bool = True) -> Isolation:
    """Return what isolation this system gives, by a process that is set up and ended."""
    with _watched(Limits(), (), namespaces) as process:
        return process.isolation() or Isolation((), ("start of the process",))


@cache
def require_isolation() -> None:
    """Ask early what ``run`` will hold, so that nothing is worked out for a job that cannot run.

    Raises:
        IsolationError: this system cannot isolate a job.
    """
    found = isolation()
    if found.missing:
        raise IsolationError(found)


@contextmanager
def _watched(limits: Limits, readable: Iterable[str], namespaces: bool) -> Iterator[_Watched]:
    """Start a process in a folder of its own; both are gone at the end."""
    with tempfile.TemporaryDirectory(prefix="parenvs-", ignore_cleanup_errors=True) as folder:
        setup = {
            "limits": asdict(limits),
            "readable": sorted({*_python(), *readable}),
            "folder": os.path.realpath(folder),
            "namespaces": namespaces,
        }
        process = _Watched(Path(folder), limits)
        try:
            process.tell(setup)
            yield process
        finally:  # an interruption ends it as well
            process.end()
            with suppress(OSError):  # without isolation others may be at work in it
                _empty(folder)


class _Watched:
    """A process that is watched until it ends, or is ended."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self.begin, self.spent, self.pids = time.monotonic(), 0.0, set[int]()
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
        self.result = _Ear(self.process.stdout, int(limits.result_mib * _MIB), has_head=True)
        self.printed = _Ear(self.process.stderr, int(limits.printed_kib * _KIB))
        memory = (limits.memory_mib + limits.file_mib) * _MIB
        self.group = Group.made(memory, limits.processes + _OURS) if _LINUX else None
        if self.group and not self.group.add(self.process.pid):
            self.group.end()
            self.group = None

    def tell(self, content: dict[str, Any]) -> None:
        """Write a line to the process."""
        assert self.process.stdin
        with suppress(OSError):  # it ended at once; its status tells
            self.process.stdin.write(json.dumps(content).encode() + b"\n")
            self.process.stdin.flush()

    def give(self, job: dict[str, Any]) -> None:
        """Write the job, which ends the input."""
        assert self.process.stdin
        self.tell(job)
        with suppress(OSError):
            self.process.stdin.close()

    def isolation(self) -> Isolation | None:
        """Wait for the end of the set-up, and look at the process; None if it does not come."""
        if not self.result.has_begun.wait(max(0.0, self._left())) or not self.result.head:
            return None
        told = parse_json(bytes(self.result.head), "set-up")  # by our own code
        if not _LINUX:
            return seen(self.process.pid)
        family = usage.family(self.process.pid)
        self.spent = sum(process.seconds for process in family.values())
        parents = {process.parent for process in family.values()}
        workers = [pid for pid in family if pid not in parents]
        if len(workers) != 1:
            return Isolation((), ("sight of the process in /proc",))
        result = seen(workers[0], str(told.get("why", "")))
        return replace(result, memory="by cgroup" if self.group else "counted")

    def outcome(self, isolation: Isolation) -> Outcome:
        """Wait for the end, and return what became of the job."""
        fault, (pause, longest) = "", _EVERY
        while not fault:
            try:
                self.process.wait(pause)
                break
            except subprocess.TimeoutExpired:
                fault = self._fault()
                pause = min(1.3 * pause, longest)
        overflowed = self.group is not None and self.group.has_overflowed
        self.end()
        seconds = time.monotonic() - self.begin
        for ear in (self.result, self.printed):
            ear.join(5.0)
        told = self._told()
        if overflowed:
            fault = f"used more than {self.limits.words('memory_mib')} of memory"
        fault = fault or self._overflow() or self._said(told) or self._ended(told)
        value = None if fault else told.get("value")
        return Outcome(value, cleaned(fault), seconds, isolation)

    def _left(self) -> float:
        """Return the seconds that are left."""
        return self.limits.seconds - (time.monotonic() - self.begin)

    def _fault(self) -> str:
        """Return why the process must be ended now, or an empty text."""
        limits = self.limits
        if self._left() < 0:
            return f"took longer than {limits.words('seconds')}"
        if self._overflow():
            return self._overflow()
        family = usage.family(self.process.pid)
        self.pids |= set(family)
        if sum(process.threads for process in family.values()) > limits.processes + _OURS:
            return f"started more than {limits.processes} processes"
        maximum = limits.memory_mib * _MIB
        if usage.memory(family, self.pids, maximum) > maximum:
            return f"used more than {limits.words('memory_mib')} of memory"
        spent = sum(process.seconds for process in family.values()) - self.spent
        if spent > limits.cpu_seconds + 1:  # of one process the kernel tells
            return _CPU.format(limits.cpu_seconds)
        files, size = _held(self.folder, limits.files)
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
            getattr(signal, "SIGXCPU", -1): _CPU.format(self.limits.cpu_seconds),
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

    def end(self) -> None:
        """End the process and all that it started, descendants first: no parent of theirs is lost.

        A process in namespaces, or in a control group, takes all others with it.
        """
        if self.group:
            self.group.end()
        for _ in range(100 if _LINUX and self.process.poll() is None else 0):
            others = [pid for pid in usage.family(self.process.pid) if pid != self.process.pid]
            for pid in others:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not others:
                break
        for end in (lambda: os.killpg(self.process.pid, signal.SIGKILL), self.process.kill):
            with suppress(OSError, AttributeError):  # it has ended, or the system has no groups
                end()
        self.process.wait()
        if self.process.stdin:
            with suppress(OSError):
                self.process.stdin.close()


class _Ear:
    """Reads a pipe to its end, and keeps no more than a number of bytes.

    Attributes:
        head: the first line, if it is kept apart.
        heard: all else.
        has_begun: set when the first line has come, or the end.
    """

    def __init__(self, pipe: IO[bytes], maximum: int, has_head: bool = False) -> None:
        self.head, self.heard, self.maximum, self.is_full = bytearray(), bytearray(), maximum, False
        self.pipe, self.has_begun, self.in_head = pipe, threading.Event(), has_head
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        read = self.pipe.read1  # type: ignore[attr-defined]
        with self.pipe:
            while data := read(2**16):
                if self.in_head:
                    line, end, data = data.partition(b"\n")
                    self.head += line
                    if end:
                        self.in_head = False
                        self.has_begun.set()
                room = self.maximum - len(self.heard)
                self.heard += data[:room]
                self.is_full = self.is_full or len(data) > room
        self.has_begun.set()

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
    """Return the folders of Python, its packages and this one, and nothing that lies beside them.

    Of other folders that Python imports from, a clone for example, only this package is there:
    they may hold anything.
    """
    packages: tuple[Any, ...] = (parenvs, parenvs.agents, parenvs.datasets, parenvs.leaderboard)
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    own = [os.path.join(prefix, part) for prefix in prefixes for part in _PARTS]
    paths = [sys.executable, *own, *filter(_is_installation, sys.path)]
    paths += [os.path.dirname(package.__file__) for package in packages]  # no root of a clone
    result = {os.path.realpath(path) for path in paths}
    result |= {os.path.abspath(path) for path in (sys.executable, *own)}
    return [path for path in result if os.path.exists(path) and path != "/"]


def _is_installation(path: str) -> bool:
    """Return whether a folder holds installed packages, and is no clone of anything."""
    folder = Path(path or ".").resolve()
    if not folder.is_dir() or any((folder / name).exists() for name in (".git", "setup.cfg")):
        return False
    return folder.name in ("site-packages", "dist-packages") or any(folder.glob("*.dist-info"))


def _held(folder: Path, enough: int) -> tuple[int, int]:
    """Return number and bytes of the files in a folder; in namespaces there are none to be seen.

    What is beyond a number of files that is enough is not looked at.
    """
    count = size = 0
    rest = [os.fspath(folder)]
    while rest and count <= enough:
        try:
            for entry in os.scandir(rest.pop()):
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    rest.append(entry.path)
                else:
                    size += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return count, size


def _empty(folder: str) -> None:
    """Remove what is in a folder, however deep: what is in its folders is moved up first.

    No link is followed, also if somebody puts one in the place of a folder meanwhile.
    """
    if os.listdir not in os.supports_fd:  # as on Windows, where no path is that long
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    top = os.open(folder, flags)
    try:
        while names := os.listdir(top):
            for name in names:
                with suppress(OSError):
                    os.unlink(name, dir_fd=top)
                    continue
                try:
                    inner = os.open(name, flags, dir_fd=top)
                except PermissionError:  # of one's own folder, or another's, which stays
                    os.chmod(name, 0o700, dir_fd=top)
                    inner = os.open(name, flags, dir_fd=top)
                try:
                    os.fchmod(inner, 0o700)
                    for one in os.listdir(inner):
                        os.rename(one, secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
