"""The host: processor, cores, versions, loopback; and the code beside what was made by them."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "gymnasium", "torch", "stable-baselines3", "sb3-contrib")
"""Packages whose versions change the times; those of the extra ``agents`` may be missing."""
NOT_RECORDED = "not recorded"
"""The commit of what was made before commits were recorded."""
_CODE = ("*.py", "*.npz", "setup.cfg", ":!tests")
"""Files of a checkout that make results another, as git takes them."""
_COUNT = """\
import os, sys
parent, core = map(int, sys.argv[1:])
os.sched_setaffinity(0, {core})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == parent:
    pass
"""


def processor() -> str:
    """Model of the processor, as the system names it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = re.search(r"model name\s*:\s*(.+)", info.read_text(encoding="utf-8"))
        if model:
            return model[1].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Number of cores that the system shows."""
    return os.cpu_count() or 1


@cache
def gpus() -> list[tuple[str, float]]:
    """Name and bytes of memory of each GPU of this machine, as NVIDIA's driver tells them."""
    query = ["--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            ["nvidia-smi", *query], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rpartition(",") for line in done.stdout.splitlines()]
    return [(name.strip(), float(mib) * 2**20) for name, _, mib in rows if mib.strip().isdecimal()]


def hold_cores(rank: int, processes: int) -> None:
    """Keep this process on its share of the cores, where there is one for each process (Linux).

    Otherwise two processes wait for one core now and then, while another is idle.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    mine = sorted(os.sched_getaffinity(0))
    share = len(mine) // processes
    if share:
        os.sched_setaffinity(0, mine[rank * share : (rank + 1) * share])


@contextmanager
def awake_cores() -> Iterator[None]:
    """Keep the cores awake while something short is measured on them (Linux).

    A core that waits for a message sleeps, and that of a virtual machine may take 4 ms to wake,
    ten times what the message takes. On each core a process counts that runs only where nothing
    else wants to; it ends with this one.
    """
    if not hasattr(os, "SCHED_IDLE"):
        yield
        return
    command = [sys.executable, "-I", "-S", "-c", _COUNT, str(os.getpid())]
    counting = [
        subprocess.Popen([*command, str(core)], stderr=subprocess.DEVNULL)
        for core in os.sched_getaffinity(0)
    ]
    try:
        yield
    finally:
        for process in counting:
            process.kill()
        for process in counting:
            process.wait()


def counted(number: int) -> str:
    """A number of cores in words: ``"1 core"``, ``"2 cores"``."""
    return f"{number} core{'' if number == 1 else 's'}"


def versions() -> dict[str, str]:
    """Versions of Python and of those ``PACKAGES`` that are installed."""
    by_name = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            by_name[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return by_name


@cache
def commit() -> str:
    """Commit of the code that runs here, with ``+changes`` where files of it were edited since.

    Without a checkout and git it is the version of the package.
    """
    # setup.cfg at its place in the commit shows that the checkout is this project's own.
    git = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        heads = subprocess.run(
            [*git, "rev-parse", "HEAD:./setup.cfg", "HEAD"],  # one of its own, not around it
            capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
        edited = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *_CODE], timeout=20)
    except (OSError, subprocess.SubprocessError):
        return f"parenvs {metadata.version('parenvs')}"
    return heads.stdout.split()[-1][:12] + "+changes" * bool(edited.returncode)


def host() -> dict[str, object]:
    """Processor, cores and versions as JSON types; every log of a training holds them."""
    return {"processor": processor(), "cores": cores(), **versions()}


LOOPBACK = "127.0.0.1"
"""Address at which processes of one machine meet: no other machine reaches it."""


def store_at(host: str, seconds: float = 300.0) -> Any:
    """Return a ``TCPStore`` of this process that listens at one address alone, on a free port.

    PyTorch's own listens on every interface, whatever host it is given.
    """
    from torch.distributed import TCPStore

    listener = socket.create_server((host, 0))
    port, limit = listener.getsockname()[1], timedelta(seconds=seconds)
    handle = listener.detach()  # the store closes it
    return TCPStore(host, port, None, True, limit, False, master_listen_fd=handle)


def stay_on(host: str) -> None:
    """Let gloo's connections of this process listen on the loopback interface, if they meet there.

    Elsewhere gloo takes the interface of the machine's name, or what the user's environment says.
    """
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if host == LOOPBACK and names:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])
