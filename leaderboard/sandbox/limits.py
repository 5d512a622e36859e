"""``Limits``: what a process in the sandbox may use."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass

from parenvs.errors import ParenvsError, shown

_MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What a process in the sandbox, with all that it starts, may use.

    Attributes:
        seconds: wall time, with the start of Python.
        cpu_seconds: processor time of each process.
        memory_mib: address space of each process, and resident memory of all together.
        file_mib: size of a file, and of all files together.
        files: number of files and folders.
        open_files: open files of a process.
        processes: processes and threads.
        result_mib: size of the result as JSON.
        printed_kib: size of what is printed.
    """

    seconds: float = 60.0
    cpu_seconds: int = 60
    memory_mib: int = 4096
    file_mib: int = 64
    files: int = 256
    open_files: int = 128
    processes: int = 32
    result_mib: int = 4
    printed_kib: int = 256

    def __post_init__(self) -> None:
        """Raise an error for a limit that is none."""
        for name, value in asdict(self).items():
            if type(value) not in (int, float) or not 0 < value < 2**31:
                raise ParenvsError(f"limit {name} must be a number above 0, not {shown(value)}")

    def words(self, name: str) -> str:
        """Return a limit with its unit, for messages."""
        value = getattr(self, name)
        unit = {"mib": "MiB", "kib": "KiB", "seconds": "s"}.get(name.split("_")[-1], "")
        return f"{value:,g} {unit}".strip()

    def apply(self, owned: int = 0, is_alone: bool = False) -> tuple[str, ...]:
        """Set the limits that this system can set, of this process and its children.

        Args:
            owned: processes that the user has already, where they count.
            is_alone: whether no process outside of the sandbox counts.

        Returns:
            Names of the limits that were set.
        """
        if sys.platform == "win32":
            return ()
        import resource

        size = self.file_mib * _MIB
        wanted = {
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_AS": self.memory_mib * _MIB,
            "RLIMIT_FSIZE": size,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": self.processes + (0 if is_alone else owned),
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
        }
        done = []
        for name, maximum in wanted.items():
            kind = getattr(resource, name, None)
            if kind is None:
                continue
            _, hard = resource.getrlimit(kind)
            maximum = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
            # The processor's soft limit ends with SIGXCPU, which tells why; the hard one kills.
            last = (
                maximum + 2 if name == "RLIMIT_CPU" and hard == resource.RLIM_INFINITY else maximum
            )
            try:
                resource.setrlimit(kind, (maximum, last))
            except (OSError, ValueError):  # macOS refuses some
                continue
            done.append(name)
        return tuple(done)
