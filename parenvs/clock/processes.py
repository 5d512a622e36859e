"""Local processes that meet (extra ``torch``): started together, ended together, none left over."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import connection
from typing import Any

import torch
import torch.distributed as dist

from parenvs.errors import ParenvsError, one_line, shown

MEET_SECONDS = 60.0
"""Seconds in which processes have to meet, and in which a collective has to end."""
_START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def together(
    work: Callable[..., Any],
    processes: int,
    given: Sequence[Any] = (),
    backend: str = "gloo",
    meet: str = "127.0.0.1:0",
    threads: int = 1,
    seconds: float = MEET_SECONDS,
) -> list[Any]:
    """Run ``work(rank, *given)`` in each of ``processes`` local processes of one group.

    If one fails, or this process is interrupted or killed, all of them end.

    Args:
        work: a function that the processes can import.
        processes: how many.
        given: what else it takes.
        backend: ``"gloo"`` or ``"nccl"``.
        meet: HOST:PORT of this machine where they meet; port 0 is any free one.
        threads: threads of each process.
        seconds: in which they have to meet.

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
            f"--meet {meet}: processes cannot meet there ({_first(error)})"
        ) from None
    context: Any = multiprocessing.get_context(_START)
    if _START == "forkserver":  # the server imports once, and every process is a copy of it
        context.set_forkserver_preload(["torch.distributed", "gymnasium", "scipy.optimize"])
    pipes, members = [], []
    try:
        for rank in range(processes):
            mine, theirs = context.Pipe(duplex=False)
            group = (rank, processes, backend, host, store.port, threads, seconds)
            member = context.Process(target=_member, args=(theirs, group, work, given), daemon=True)
            with _quiet_threads():
                member.start()
            theirs.close()
            pipes.append(mine)
            members.append(member)
        return _answers(pipes)
    finally:
        for member in members:
            member.terminate()
        for member in members:
            member.join(2.0)
            if member.is_alive():
                member.kill()
                member.join()
        for pipe in pipes:
            pipe.close()


def address(meet: str) -> tuple[str, int]:
    """Return the host and the port of ``HOST:PORT``.

    Raises:
        ParenvsError: it is no such text.
    """
    host, _, port = meet.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ParenvsError(f"--meet must be HOST:PORT, like 127.0.0.1:29500, not {shown(meet)}")
    return host, int(port)


def _answers(pipes: Sequence[Any]) -> list[Any]:
    """Wait for the answer of every process."""
    found: dict[int, Any] = {}
    while len(found) < len(pipes):
        waiting: dict[Any, int] = {
            pipe: rank for rank, pipe in enumerate(pipes) if rank not in found
        }
        ready: list[Any] = connection.wait(list(waiting))
        for pipe in ready:
            rank = waiting[pipe]
            try:
                failed, answer = pipe.recv()
            except (EOFError, OSError):
                raise ParenvsError(f"process {rank} of {len(pipes)} ended without a word") from None
            if failed:
                raise ParenvsError(f"process {rank} of {len(pipes)}: {answer}")
            found[rank] = answer
    return [found[rank] for rank in range(len(pipes))]


def _member(
    pipe: Any, group: tuple[Any, ...], work: Callable[..., Any], given: Sequence[Any]
) -> None:
    """Be one of the processes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    rank, processes, backend, host, port, threads, seconds = group
    limit = timedelta(seconds=seconds)
    try:
        torch.set_num_threads(threads)
        if backend == "nccl":
            torch.cuda.set_device(rank)
        store = dist.TCPStore(host, port, None, False, limit)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=processes, timeout=limit
        )
        answer = (False, work(rank, *given))
        dist.barrier()
    except KeyboardInterrupt:
        return
    except Exception as error:  # told by the process that waits
        answer = (True, _first(error))
    pipe.send(answer)
    pipe.close()
    if not answer[0]:
        dist.destroy_process_group()


def _end_with_parent() -> None:
    """End this process as soon as the one that started it is gone, even if that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _quiet_threads() -> Iterator[None]:
    """Start with one thread for OpenMP, unless the user set a number."""
    known = os.environ.get("OMP_NUM_THREADS")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        yield
    finally:
        if known is None:
            del os.environ["OMP_NUM_THREADS"]


def _first(error: BaseException) -> str:
    """The first line of an error of PyTorch, without the stack below it."""
    return one_line(RuntimeError(str(error).split("\n")[0])) or type(error).__name__
