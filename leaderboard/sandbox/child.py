"""The process in the sandbox: confines itself, calls a function, tells what it returned.

``python -m parenvs.leaderboard.sandbox.child`` takes a job as JSON from its standard input, and
writes one JSON object to what was its standard output; what the job prints goes to the standard
error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parenvs.leaderboard.sandbox import namespaces
from parenvs.leaderboard.sandbox.limits import Limits

_MOST_WORDS = 300
_OPENING = ("open",)
_CHANGING = (
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.mkfifo", "os.remove", "os.rename",
    "os.rmdir", "os.symlink", "os.truncate", "os.utime",
)  # fmt: skip
"""Events of files whose first argument, and of some the second, is a path that changes."""
_TWO_PATHS = ("os.link", "os.rename", "os.symlink")
_STARTING = (
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile",
    "os.system", "pty.spawn", "subprocess.Popen",
)  # fmt: skip
_REACHING = ("socket.bind", "socket.connect", "socket.getaddrinfo", "socket.sendto")
_HARMLESS = (os.devnull,)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class ForbiddenError(PermissionError):
    """What the sandbox does not allow."""


class Guard:
    """Names what is not allowed: writing outside, other processes, the network.

    It sees what goes through Python, and is no wall: code can go around it. The wall, where the
    system has one, is ``parenvs.leaderboard.sandbox.namespaces``.

    Attributes:
        work: the folder that may be written to.
        seen: what was tried first, in words; empty if nothing was.
    """

    def __init__(self, work: str) -> None:
        self.work, self.seen, self._is_on = os.path.realpath(work), "", True

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event, see PEP 578."""
        words = ""
        if event in _OPENING:
            path, mode, flags = arguments
            writes = any(x in mode for x in "wax+") if isinstance(mode, str) else flags & _WRITES
            if writes and self._is_outside(path):
                words = f"wrote outside of its folder, to {path!r}"
        elif event in _CHANGING:
            paths = arguments[: 2 if event in _TWO_PATHS else 1]
            outside = [path for path in paths if self._is_outside(path)]
            if outside:
                words = f"changed a file outside of its folder, {outside[0]!r}"
        elif event in _STARTING:
            words = f"started another process ({event})"
        elif event in _REACHING:
            words = f"reached for the network ({event})"
        if words and self._is_on:
            self.seen = self.seen or words
            raise ForbiddenError(words)

    def _is_outside(self, path: Any) -> bool:
        """Return whether a path, not a file that is open already, lies out of the folder."""
        if isinstance(path, int):
            return False
        text = os.fsdecode(path)
        if text in _HARMLESS:
            return False
        place = os.path.realpath(text)
        return place != self.work and not place.startswith(self.work + os.sep)


def main() -> int:
    """Run the job of the standard input; the status is 0 if it could be run at all."""
    job = json.loads(sys.stdin.buffer.read())
    limits = Limits(**job["limits"])
    importlib.import_module("numpy.testing")  # SciPy's way to it starts lscpu with older NumPy
    entered = False
    if job["namespaces"] and namespaces.are_possible():
        namespaces.become_nobody(job["readable"])
        try:
            status = namespaces.enter(job["folder"], job["readable"], limits.file_mib, limits.files)
        except OSError:
            pass
        else:
            if status is not None:
                return status
            entered = True
    work = namespaces.WORK if entered else job["folder"]
    os.chdir(work)
    for name in ("HOME", "TMPDIR", "TEMP", "TMP", "NUMBA_CACHE_DIR"):
        os.environ[name] = work
    # The result has a way of its own; prints of the job go to the standard error.
    sys.stdout.flush()
    way = os.dup(1)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    isolation = ["namespaces"] if entered else []
    isolation += limits.apply(_owned(), is_alone=entered)
    outcome: dict[str, Any] = {"isolation": isolation}
    guard = Guard(work)
    sys.addaudithook(guard)
    try:
        module, _, name = job["function"].partition(":")
        function: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
        outcome["value"] = function(job["argument"])
        text = json.dumps(outcome)
    except MemoryError:
        text = json.dumps({"isolation": isolation, "memory": True})
    except BaseException as error:
        words = _described(error)
        text = json.dumps({"isolation": isolation, "error": words[:_MOST_WORDS]})
    if guard.seen:
        text = json.dumps({"isolation": isolation, "forbidden": guard.seen[:_MOST_WORDS]})
    with open(way, "wb") as stream:
        stream.write(text.encode())
    sys.stderr.flush()
    os._exit(0)  # nothing of the stranger's runs at exit


def _described(error: BaseException) -> str:
    """Return an error in words, and where in the job's own file it was raised."""
    try:
        words = f"{type(error).__name__}: {error}"
    except BaseException:
        words = type(error).__name__
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == SOURCE:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{words} ({SOURCE}, line {line})" if line else words


SOURCE = "method.py"
"""Name of the file that a job runs, in tracebacks."""


def _owned() -> int:
    """Return the number of processes and threads of this user; 0 where it is not known."""
    count, user = 0, os.getuid() if hasattr(os, "getuid") else -1
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == user:
                count += len(os.listdir(folder / "task"))
        except OSError:
            continue
    return count


if __name__ == "__main__":
    sys.exit(main())
