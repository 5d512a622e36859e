"""The process in the sandbox: confines itself, calls a function, tells what it returned.

``python -m parenvs.leaderboard.sandbox.child`` takes its set-up and, when its caller has looked at
it, a job as JSON from its standard input, and writes one JSON object to what was its standard
output; what the job prints goes to the standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from parenvs.leaderboard.sandbox import namespaces, syscalls, usage
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


class Lint:
    """Names what is not allowed, in words that help who made a mistake.

    It sees what goes through Python's audit events, protects nothing, and can be switched off from
    inside or gone around. What protects is what ``parenvs.leaderboard.sandbox.isolation`` looks at.

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
        target = os.path.realpath(text)
        return target != self.work and not target.startswith(self.work + os.sep)


def main() -> int:
    """Set this process up, then run the job; the status is 0 if it could be run at all.

    The first line of the standard input is the set-up. When it is done, a line on the standard
    output says so, and the caller looks at this process from outside. Then only comes the job: no
    byte that a stranger wrote is here before.
    """
    setup = json.loads(sys.stdin.buffer.readline())
    limits = Limits(**setup["limits"])
    importlib.import_module("numpy.testing")  # SciPy's way to it starts lscpu with older NumPy
    entered, why = False, ""
    if sys.platform == "linux":
        status, entered, why = _confined(setup, limits)
        if status is not None:
            return status
    work = namespaces.WORK if entered else setup["folder"]
    os.chdir(work)
    for name in ("HOME", "TMPDIR", "TEMP", "TMP", "NUMBA_CACHE_DIR"):
        os.environ[name] = work
    # The result has a way of its own; prints of the job go to the standard error.
    sys.stdout.flush()
    way = os.dup(1)
    os.dup2(2, 1)
    limits.apply(_owned(), is_alone=entered)
    os.write(way, json.dumps({"why": why}).encode() + b"\n")
    job = json.loads(sys.stdin.buffer.read())
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    lint = Lint(work)
    sys.addaudithook(lint)
    try:
        module, _, name = job["function"].partition(":")
        function: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
        text = json.dumps({"value": function(job["argument"])})
    except MemoryError:
        text = json.dumps({"memory": True})
    except BaseException as error:
        text = json.dumps({"error": _described(error)[:_MOST_WORDS]})
    if lint.seen:
        text = json.dumps({"forbidden": lint.seen[:_MOST_WORDS]})
    with open(way, "wb") as stream:
        stream.write(text.encode())
    sys.stderr.flush()
    os._exit(0)  # nothing of the stranger's runs at exit


def _confined(setup: dict[str, Any], limits: Limits) -> tuple[int | None, bool, str]:
    """Enter what isolation Linux gives.

    Returns:
        The exit status in the process that waits outside, None in the one that runs the job;
        whether that is in namespaces; why it is not.
    """
    with suppress(OSError):  # where memory runs out, this ends first
        Path("/proc/self/oom_score_adj").write_text("1000")
    namespaces.become_nobody(setup["folder"], setup["readable"])
    namespaces.end_with_parent()
    status, entered, why = None, False, ""
    try:
        if not setup["namespaces"]:
            raise OSError("they are not wanted")
        if not syscalls.is_known():
            raise OSError(f"nothing is known of {platform.machine()}")
        status = namespaces.enter(setup["folder"], setup["readable"], limits.file_mib, limits.files)
        entered = True
    except OSError as error:
        why = str(error)
        status = _watch_over()
        if status is None:
            with suppress(OSError):  # as far as it goes
                namespaces.drop_privileges()
                syscalls.install()
    return status, entered, why


def _watch_over() -> int | None:
    """Fork; return None in the new process, and here its status once all that it left has ended."""
    namespaces.adopt()
    worker = os.fork()
    if worker == 0:
        namespaces.end_with_parent()
        return None
    status, own = 0, os.getpid()
    while True:
        try:
            pid, code = os.wait()
        except ChildProcessError:
            return status
        if pid == worker:
            status = namespaces.exit_status(code)
            worker = 0
        if not worker:  # and what others leave behind comes here
            for left in [x for x in usage.family(own) if x != own]:
                with suppress(OSError):
                    os.kill(left, signal.SIGKILL)


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
