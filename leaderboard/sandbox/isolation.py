"""``Isolation``: what a process is kept from, seen from outside through ``/proc``.

The process is looked at when its set-up is done and before it is given a byte that a stranger
wrote, so that nothing here rests on what a stranger's code says.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parenvs.errors import ParenvsError
from parenvs.leaderboard.sandbox.namespaces import WORK

SPACES = ("user", "mnt", "pid", "net", "ipc", "uts")
"""Namespaces that must be others than ours, as ``/proc/PID/ns`` calls them."""
OPTION = "--unsafe-no-isolation"


@dataclass(frozen=True)
class Isolation:
    """What keeps a stranger's code from the rest of the machine.

    Attributes:
        held: what was found in force.
        missing: what was not, and why; nothing may be missing.
        memory: how memory is held: ``"by cgroup"``, ``"counted"``, or an empty text.
    """

    held: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    memory: str = ""

    @property
    def words(self) -> str:
        """What there is and what is missing, on one line, as pages show it."""
        held = ", ".join(self.held) or "none"
        return f"{held}; WITHOUT {', '.join(self.missing)}" if self.missing else held


NO_ISOLATION = Isolation()
"""Of what did not run in the sandbox."""


class IsolationError(ParenvsError):
    """This system cannot isolate a stranger's code, which was therefore not run.

    Attributes:
        isolation: what there is, and what is missing.
    """

    def __init__(self, isolation: Isolation) -> None:
        """Name what is missing, and the remedy."""
        self.isolation = isolation
        super().__init__(
            f"not run: this system gives no {', no '.join(isolation.missing)}; judge it where "
            f"user namespaces are allowed, or give {OPTION} to run it as yourself"
        )


def seen(pid: int, why: str = "") -> Isolation:
    """Look at a process from outside.

    Args:
        pid: the process, whose set-up is done.
        why: what its set-up says of what failed.
    """
    if sys.platform != "linux":
        return Isolation((), (f"namespaces ({platform.system()} has none)",))
    held: list[str] = []
    missing: list[str] = []
    for name, check in _CHECKS.items():
        try:
            fault = check(pid)
        except (OSError, ValueError, LookupError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            fault = f"it cannot be looked at: {reason}"
        if fault is None:
            held.append(name)
        else:
            fault = fault or (why if name == "namespaces" else "")
            missing.append(f"{name} ({fault})" if fault else name)
    return Isolation(tuple(held), tuple(missing))


def _namespaces(pid: int) -> str | None:
    """Return None if all namespaces are others than ours, else a reason, which may be empty."""
    if os.readlink("/proc/self") != str(os.getpid()):
        return "/proc is that of another namespace of processes"
    shared = [
        name
        for name in SPACES
        if os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}")
    ]
    return None if not shared else "" if len(shared) == len(SPACES) else f"shares {shared}"


def _root(pid: int) -> str | None:
    """Return None if nothing but the scratch folder is mounted so that it can be written."""
    rows = [line.split() for line in _text(pid, "mountinfo").splitlines()]
    writable = [row[4] for row in rows if "ro" not in row[5].split(",")]
    return None if writable == [WORK] else "" if WORK not in writable else f"also {writable}"


def _network(pid: int) -> str | None:
    """Return None if there is no interface but the loopback."""
    lines = _text(pid, "net/dev").splitlines()[2:]
    names = {line.partition(":")[0].strip() for line in lines}
    return None if names <= {"lo"} else ""


def _capabilities(pid: int) -> str | None:
    """Return None if there are none, and none can be got."""
    status = _status(pid)
    sets = [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
    return None if not any(sets) and status["NoNewPrivs"] == "1" else ""


def _filter(pid: int) -> str | None:
    """Return None if system calls are filtered."""
    return None if _status(pid)["Seccomp"] == "2" else ""


_CHECKS: dict[str, Callable[[int], str | None]] = {
    "namespaces": _namespaces,
    "read-only root": _root,
    "closed network": _network,
    "loss of privileges": _capabilities,
    "filter of system calls": _filter,
}
"""What is looked at -> None if it is in force, else why it is not."""


WHOLE = Isolation(tuple(_CHECKS))
"""Isolation of which nothing is missing."""


def _text(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")


def _status(pid: int) -> dict[str, str]:
    """Return the fields of ``/proc/PID/status``."""
    rows = (line.partition(":") for line in _text(pid, "status").splitlines())
    return {name: value.strip() for name, _, value in rows}
