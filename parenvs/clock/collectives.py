"""Collectives of PyTorch by size and group, in processes that have met (extra ``torch``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from parenvs.clock.kernels import copies, products, watch_of
from parenvs.clock.timer import samples
from parenvs.cluster import COLLECTIVES
from parenvs.errors import one_line

_ELEMENT = 4  # bytes of a float32
_ROUNDS = 4
"""Rounds over all collectives, so that no size is measured in one moment."""
_SMALL = 300_000
"""Bytes up to which a collective runs as often in every round as larger ones in all."""
GATHER: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
SCATTER: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def sized(size: int, group: int) -> int:
    """Return ``size``, rounded so that every process of a group has as many whole elements."""
    return max(1, round(size / (_ELEMENT * group))) * group * _ELEMENT


def collective(kind: str, size: int, group: Any, device: str) -> Callable[[], Any]:
    """Return what runs a collective once, on arrays that are made beforehand.

    Args:
        kind: one of ``COLLECTIVES``; a send is from the first to the second process of the group.
        size: bytes as the methods of ``Links`` take them, a multiple of the group's elements.
        group: a group of ``torch.distributed`` of which this process is one.
        device: ``"cpu"`` or ``"cuda"``.
    """
    count, rank = dist.get_world_size(group), dist.get_rank(group)
    whole = torch.ones(size // _ELEMENT, device=device)
    if kind == "send":
        if rank == 0:
            return partial(dist.send, whole, group=group, group_dst=1)
        return partial(dist.recv, whole, group=group, group_src=0) if rank == 1 else _idle
    if kind == "all-reduce":
        return partial(dist.all_reduce, whole, group=group)
    part = torch.ones(whole.numel() // count, device=device)
    if kind == "all-gather":
        return partial(GATHER, whole, part, group=group)
    if kind == "reduce-scatter":
        return partial(SCATTER, part, whole, group=group)
    return partial(dist.all_to_all_single, torch.empty_like(whole), whole, group=group)


def measure(
    rank: int,
    device: str,
    shapes: list[tuple[int, int, int]],
    copied: list[int],
    sizes: list[int],
    groups: list[int],
    repeats: int,
    kinds: Sequence[str] = COLLECTIVES,
) -> dict[str, Any]:
    """Measure kernels on all processes at once, then collectives of growing groups.

    Returns:
        ``"products"`` and ``"copies"``, see ``parenvs.clock.kernels``; ``"collectives"``, (kind,
        group, bytes) -> samples, of those that this process took part in; ``"missing"``, what could
        not be measured -> why.
    """
    rates, missing = products(shapes, repeats, device)
    moved = copies(copied, repeats, device)
    seconds: dict[tuple[str, int, int], list[float]] = {}
    for count in groups:
        group = dist.new_group(list(range(count)))
        for _ in range(_ROUNDS if rank < count else 0):  # spread over time
            for kind in kinds:
                _measure_kind(kind, count, sizes, group, device, repeats, seconds, missing)
        dist.barrier()
    return {"products": rates, "copies": moved, "collectives": seconds, "missing": missing}


def reduced(rank: int, sizes: Sequence[int], repeats: int) -> dict[int, list[float]]:
    """Time all-reduces of all processes, of every size by turns.

    Args:
        rank: of this process.
        sizes: bytes, each rounded by ``sized``.
        repeats: rounds over all sizes; two more of each size run before one counts.

    Returns:
        Bytes -> samples in seconds.
    """
    found: dict[int, list[float]] = {}
    for _ in range(repeats):
        for size in sizes:
            exact = sized(size, dist.get_world_size())
            run = collective("all-reduce", exact, dist.group.WORLD, "cpu")
            found.setdefault(exact, []).extend(samples(run, 1, 2, before=dist.barrier))
    return found


def _measure_kind(
    kind: str,
    count: int,
    sizes: list[int],
    group: Any,
    device: str,
    repeats: int,
    seconds: dict[tuple[str, int, int], list[float]],
    missing: dict[str, str],
) -> None:
    """Add a round's samples of a collective of each size to those found."""
    if kind == "send" and count > 2:
        return
    for size in sizes:
        exact = sized(size, count)
        runs = repeats if size <= _SMALL else -(-repeats // _ROUNDS)
        try:
            run = collective(kind, exact, group, device)
            before = partial(dist.barrier, group)
            own = samples(run, runs, 2, before=before, watch=watch_of(device))
            seconds.setdefault((kind, count, exact), []).extend(own)
        except (RuntimeError, NotImplementedError) as error:
            missing[f"{kind} of {count}"] = one_line(error)
            return


def _idle() -> None:
    """Take no part."""
