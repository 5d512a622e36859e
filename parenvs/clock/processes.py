"""Local processes of PyTorch that meet (extra ``torch``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from parenvs.clock.members import first_line, run_members
from parenvs.errors import ParenvsError, shown
from parenvs.machine import awake_cores, hold_cores

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""Kind of device -> what sends between processes."""
MEET_SECONDS = 60.0
"""Seconds in which processes have to meet."""
_PRELOAD = ("torch.distributed", "gymnasium", "scipy.optimize")


def together(
    work: Callable[..., Any],
    processes: int,
    given: Sequence[Any] = (),
    kind: str = "cpu",
    meet: str = "127.0.0.1:0",
    threads: int = 1,
    seconds: float = MEET_SECONDS,
    limit: float | None = None,
    preload: Sequence[str] = (),
) -> list[Any]:
    """Run ``work(rank, *given)`` in each of ``processes`` local processes of one group.

    If one fails, or this process is interrupted or killed, all of them end.

    Args:
        work: a function that the processes can import.
        processes: how many.
        given: what else it takes.
        kind: ``"cpu"``: they meet by gloo; ``"cuda"``: by NCCL, each with a GPU of its own.
        meet: HOST:PORT of this machine where they meet; port 0 is any free one.
        threads: threads of each process.
        seconds: in which they have to meet.
        limit: seconds in which a collective has to end (default: ``seconds``).
        preload: further modules that are imported once for all processes.

    Returns:
        What the work returned, by rank.

    Raises:
        ParenvsError: they cannot meet, or one of them failed; the line says which.
    """
    host, port = address(meet)
    try:
        store = dist.TCPStore(
            host, port, None, True, timedelta(seconds=seconds), wait_for_workers=False
        )
    except (RuntimeError, OSError, ValueError) as error:
        raise ParenvsError(
            f"--meet {meet}: processes cannot meet there ({first_line(error)})"
        ) from None
    limits = (seconds, seconds if limit is None else limit)
    groups = [
        (work, (rank, processes, kind, host, store.port, threads, *limits), given)
        for rank in range(processes)
    ]
    with awake_cores() if kind == "cpu" else nullcontext():
        return run_members(_grouped, groups, (*_PRELOAD, *preload))


def address(meet: str) -> tuple[str, int]:
    """Return the host and the port of ``HOST:PORT``.

    Raises:
        ParenvsError: it is no such text.
    """
    host, _, port = meet.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ParenvsError(f"--meet must be HOST:PORT, like 127.0.0.1:29500, not {shown(meet)}")
    return host, int(port)


def _grouped(work: Callable[..., Any], group: tuple[Any, ...], given: Sequence[Any]) -> Any:
    """Work as a process of a group."""
    rank, processes, kind, host, port, threads, seconds, limit = group
    torch.set_num_threads(threads)
    if kind == "cuda":
        torch.cuda.set_device(rank)
    else:
        hold_cores(rank, processes)
    try:
        store = dist.TCPStore(host, port, None, False, timedelta(seconds=seconds))
        dist.init_process_group(
            BACKENDS[kind],
            store=store,
            rank=rank,
            world_size=processes,
            timeout=timedelta(seconds=limit),
        )
    except (RuntimeError, OSError) as error:
        raise ParenvsError(f"cannot meet the others ({first_line(error)})") from None
    answer = work(rank, *given)
    dist.barrier()
    dist.destroy_process_group()
    return answer
