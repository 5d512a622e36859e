"""Data-parallel steps that synchronise in four ways: predicted, and run in processes of gloo.

* ``"allreduce"``: every worker sums the gradients and updates all weights;
* ``"parameter-server"``: a process of its own gets the gradients of one worker after the other,
  updates, and sends the weights back (Li et al., OSDI 2014, with one server);
* ``"sharded-parameter-server"``: every worker is the server of its share of the weights;
* ``"sharded-optimiser"``: a reduce-scatter, the update of a worker's share, an all-gather (ZeRO
  stage 1, arXiv 1910.02054, section 5.1).

Units are seconds and bytes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parenvs.clock.calibration import Calibration
from parenvs.clock.members import Timing
from parenvs.cluster import SYNC_METHODS, sync_bytes
from parenvs.errors import ParenvsError, did_you_mean, need_extra, shown

if TYPE_CHECKING:
    import torch

ALL_REDUCE, SERVER, SHARDED_SERVER = SYNC_METHODS
SHARDED_OPTIMISER = "sharded-optimiser"
METHODS = (*SYNC_METHODS, SHARDED_OPTIMISER)
"""Ways to synchronise."""
WIDTH = 64
"""Inputs and outputs of the model that is trained: a linear layer up, and one down."""
RATE, MOMENTUM = 0.01, 0.9
_COUNTERS = Path("/proc/net/dev")


@dataclass(frozen=True)
class Steps:
    """Steps that were run.

    Attributes:
        exchange: seconds of the synchronisation and the update, of the last worker to end.
        whole: seconds of the whole step, as well.
        loopback: bytes through this machine's loopback in the median step; None where the system
            does not count them.
        weights: the trained weights, the same on every worker.
        arrays: kind of a collective -> bytes of its arrays in a step, over all processes.
    """

    exchange: Timing
    whole: Timing
    loopback: float | None
    weights: Any
    arrays: dict[str, int]


def weight_bytes(hidden: int) -> int:
    """Return the bytes of the weights of the model with ``hidden`` units, in float32."""
    return 4 * 2 * WIDTH * hidden


def predicted_bytes(method: str, size: float, workers: int) -> float:
    """Return the bytes that all workers, and the server if there is one, send in a step.

    Args:
        method: one of ``METHODS``.
        size: bytes of the weights.
        workers: number of workers.
    """
    _check(method)
    if method == SERVER:  # all pass the server's link
        return float(sync_bytes(size, workers, SERVER))
    return workers * float(sync_bytes(size, workers))


def predicted_arrays(method: str, size: float, workers: int) -> dict[str, float]:
    """Return the bytes of the arrays of each kind of collective in a step, over all processes.

    Args:
        method: one of ``METHODS``.
        size: bytes of the weights.
        workers: number of workers.
    """
    _check(method)
    whole = workers * size
    if method == ALL_REDUCE:
        return {"all-reduce": whole}
    if method == SERVER:
        return {"send": 2 * whole}
    if method == SHARDED_SERVER:  # to the owners, and back
        return {"send": 2 * whole * (workers - 1) / workers}
    return {"all-gather": whole, "reduce-scatter": whole}


def update_seconds(method: str, size: float, workers: int, calibration: Calibration) -> float:
    """Return the seconds of sums and updates, by the bytes that they read and write in memory.

    The update reads and writes eight times its share of the weights' bytes (momentum scaled, added
    to, weights changed); adding an array takes three times its bytes.

    Args:
        method: one of ``METHODS``.
        size: bytes of the weights.
        workers: number of workers.
        calibration: whose memory bandwidth counts.
    """
    _check(method)
    passes = 8.0
    if method == SERVER:
        passes += 3 * workers
    elif method == SHARDED_SERVER:
        passes = (passes + 3 * workers) / workers
    elif method == SHARDED_OPTIMISER:
        passes = (passes + 2) / workers
    return passes * size / calibration.cluster.device.memory_bw


def predicted_seconds(method: str, size: float, workers: int, calibration: Calibration) -> float:
    """Return the seconds of the synchronisation, by the collectives that it consists of.

    Sums and updates, see ``update_seconds``, are not among them.

    Raises:
        ParenvsError: the method is unknown, or these collectives were not measured.
    """
    _check(method)
    if method == ALL_REDUCE:
        return calibration.seconds("all-reduce", size, workers)
    if method == SERVER:
        return 2 * workers * calibration.seconds("send", size)
    if method == SHARDED_SERVER:  # gradients to the owners, weights back: all to all, twice
        return 2 * calibration.seconds("all-to-all", size, workers)
    gather = calibration.seconds("all-gather", size, workers)
    return calibration.seconds("reduce-scatter", size, workers) + gather


def run(
    hidden: int,
    workers: int = 2,
    steps: int = 20,
    warm_up: int = 3,
    methods: Sequence[str] = METHODS,
) -> dict[str, Steps]:
    """Train a small model with each way to synchronise, in local processes.

    Args:
        hidden: units of the hidden layer, a multiple of the workers.
        workers: number of workers; there is one more process, the central server's.
        steps: steps that count.
        warm_up: steps before them.
        methods: some of ``METHODS``.

    Returns:
        The steps of each method.

    Raises:
        ParenvsError: a method is unknown, PyTorch is missing, or a process failed.
    """
    for method in methods:
        _check(method)
    with need_extra("torch", "running data-parallel steps"):
        from parenvs.clock.kernels import together
    answers = together(train, workers + 1, (tuple(methods), hidden, workers, warm_up + steps))
    return {method: _steps(method, [x[method] for x in answers], warm_up) for method in methods}


def _steps(method: str, answers: Sequence[dict[str, Any]], warm_up: int) -> Steps:
    """Summarise what the workers, and behind them the server, found."""
    trained = [answer["weights"] for answer in answers[:-1]]
    if any((own != trained[0]).any() for own in trained):
        raise ParenvsError(f"{method}: the workers' weights differ")
    exchange, whole = (
        Timing.of([answer[key][warm_up:] for answer in answers[:-1]])
        for key in ("exchange", "whole")
    )
    moved = sorted(answers[0]["moved"][warm_up:])
    arrays: Counter[str] = Counter()
    for answer in answers:
        arrays.update({kind: size for kind, (_, size) in answer["traffic"].items()})
    middle = moved[len(moved) // 2] if moved else None
    return Steps(exchange, whole, middle, trained[0], dict(arrays))


def train(
    rank: int, methods: Sequence[str], hidden: int, workers: int, steps: int
) -> dict[str, dict[str, Any]]:
    """Be a worker, or the server, for some steps of each method, from the same weights on."""
    import torch.distributed as dist

    group = dist.new_group(list(range(workers)))
    return {method: _trained(rank, method, hidden, workers, steps, group) for method in methods}


def _trained(
    rank: int, method: str, hidden: int, workers: int, steps: int, group: Any
) -> dict[str, Any]:
    """Train by one method; every worker has its part of the batch."""
    import torch
    import torch.distributed as dist

    random = torch.Generator().manual_seed(0)
    weights = torch.randn(2 * WIDTH * hidden, generator=random) / WIDTH
    batch = torch.randn(4 * workers, WIDTH, generator=random)
    own = batch[4 * rank : 4 * rank + 4]
    momentum = torch.zeros_like(weights)
    seconds: dict[str, Any] = {"exchange": [], "whole": [], "moved": []}
    for _ in range(steps):
        dist.barrier()
        before, begin = loopback_bytes(), time.perf_counter()
        gradient = torch.zeros_like(weights) if rank == workers else _gradient(weights, own, hidden)
        ready = time.perf_counter()
        exchange(method, rank, workers, weights, gradient, momentum, group)
        end = time.perf_counter()
        dist.barrier()  # the counter is read when all have sent
        after = loopback_bytes()
        seconds["exchange"].append(end - ready)
        seconds["whole"].append(end - begin)
        if before is not None and after is not None:
            seconds["moved"].append(after - before)
    trained = weights.numpy().copy()
    from parenvs.clock.torch_runs import Meter

    with Meter() as meter:
        exchange(method, rank, workers, weights, torch.zeros_like(weights), momentum, group)
    return seconds | {"weights": trained, "traffic": meter.traffic}


def exchange(
    method: str,
    rank: int,
    workers: int,
    weights: torch.Tensor,
    gradient: torch.Tensor,
    momentum: torch.Tensor,
    group: Any,
) -> None:
    """Synchronise gradients, and update ``weights`` in place by their mean.

    Args:
        method: one of ``METHODS``.
        rank: of this process; a central server's is ``workers``.
        workers: number of workers.
        weights: all weights, flat.
        gradient: of this worker's part of the batch; zeros on a server.
        momentum: state of the optimiser; of a sharded one only this worker's share is used.
        group: of the workers alone.
    """
    import torch
    import torch.distributed as dist

    if rank == workers and method != SERVER:
        return  # there is no server
    if method == ALL_REDUCE:
        dist.all_reduce(gradient, group=group)
        _update(weights, gradient, momentum, workers)
    elif method == SERVER and rank == workers:
        received = torch.empty_like(gradient)
        for worker in range(workers):
            dist.recv(received, worker)
            gradient += received
        _update(weights, gradient, momentum, workers)
        for worker in range(workers):
            dist.send(weights, worker)
    elif method == SERVER:
        dist.send(gradient, workers)
        dist.recv(weights, workers)
    elif method == SHARDED_SERVER:
        shares, own = weights.chunk(workers), gradient.chunk(workers)
        others = [worker for worker in range(workers) if worker != rank]
        parts = [torch.empty_like(own[rank]) for _ in others]
        _pass(others, [own[worker] for worker in others], parts)
        total = own[rank] + sum(parts)
        _update(shares[rank], total, momentum.chunk(workers)[rank], workers)
        _pass(others, [shares[rank]] * len(others), [shares[worker] for worker in others])
    else:
        from parenvs.clock.kernels import GATHER, SCATTER

        share = weights.chunk(workers)[rank].clone()
        total = torch.empty_like(share)
        SCATTER(total, gradient, group=group)
        _update(share, total, momentum.chunk(workers)[rank], workers)
        GATHER(weights, share, group=group)


def loopback_bytes() -> int | None:
    """Return the bytes that this machine's loopback has sent so far; None if it is not told."""
    if not _COUNTERS.exists():
        return None
    for line in _COUNTERS.read_text(encoding="utf-8").splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == "lo":
            return int(figures.split()[8])
    return None


def _gradient(weights: torch.Tensor, batch: torch.Tensor, hidden: int) -> torch.Tensor:
    """Return the gradient of the error of an autoencoder."""
    import torch

    flat = weights.detach().requires_grad_()
    up, down = flat.view(2, WIDTH, hidden)
    error = (torch.relu(batch @ up) @ down.T - batch).square().mean()
    return torch.autograd.grad(error, flat)[0]


def _update(
    weights: torch.Tensor, total: torch.Tensor, momentum: torch.Tensor, workers: int
) -> None:
    """Take a step of gradient descent with momentum by the mean of the workers' gradients."""
    momentum.mul_(MOMENTUM).add_(total, alpha=1 / workers)
    weights.sub_(momentum, alpha=RATE)


def _pass(others: list[int], sent: list[Any], received: list[Any]) -> None:
    """Send one array to each of the others while one from each arrives."""
    import torch.distributed as dist

    works = [dist.isend(x, worker) for worker, x in zip(others, sent, strict=True)]
    works += [dist.irecv(x, worker) for worker, x in zip(others, received, strict=True)]
    for work in works:
        if work is not None:
            work.wait()


def _check(method: str) -> None:
    """Refuse an unknown way to synchronise.

    Raises:
        ParenvsError: it is unknown.
    """
    if method not in METHODS:
        raise ParenvsError(
            f"sync: unknown method {shown(method)}{did_you_mean(method, METHODS)}; known: "
            f"{', '.join(METHODS)}"
        )
