"""Matrix products and copies on one device of PyTorch (extra ``torch``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from parenvs.clock.members import shared_memory_bytes
from parenvs.clock.timer import samples, started
from parenvs.errors import ParenvsError, one_line, shown

KINDS = ("cpu", "cuda")
"""Kinds of devices that can be measured."""
_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16,
          "bf16": torch.bfloat16}  # fmt: skip
_SLOW = 1.0
"""Seconds of one run from which on it is not repeated."""


def check_device(kind: str, count: int) -> None:
    """Refuse devices that this machine does not have.

    Raises:
        ParenvsError: the kind is unknown, or there are fewer than ``count``.
    """
    if kind not in KINDS:
        raise ParenvsError(f"--device {shown(kind)} is unknown; known: {', '.join(KINDS)}")
    available = torch.cuda.device_count() if kind == "cuda" else count
    if available < count:
        raise ParenvsError(
            f"--device {kind}: {count} asked for, and PyTorch {torch.__version__} sees "
            f"{available} here"
        )


def memory_bytes(kind: str, count: int) -> float:
    """Return the memory of one of ``count`` devices; processes on a CPU share the machine's."""
    if kind == "cuda":
        return float(torch.cuda.get_device_properties(0).total_memory)
    return shared_memory_bytes(count)


def watch_of(kind: str) -> Callable[[], Callable[[], float]]:
    """Return the watch of a kind of device: on a GPU the seconds between two of its events."""
    return _started if kind == "cuda" else started


def _started() -> Callable[[], float]:
    """Start the watch of this process's GPU, on all that is given to it from now on."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()

    def stop() -> float:
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return stop


def repeated(run: Callable[[], Any], repeats: int, kind: str) -> list[float]:
    """Time a kernel; one that takes long runs once, behind a warm-up."""
    watch = watch_of(kind)
    (first,) = samples(run, 1, 0, watch=watch)
    return samples(run, repeats if first < _SLOW else 1, 1 if first < _SLOW else 0, watch=watch)


def products(
    shapes: list[tuple[int, int, int]], repeats: int, kind: str
) -> tuple[dict[tuple[str, tuple[int, int, int]], list[float]], dict[str, str]]:
    """Time matrix products of each shape (m, k, n) in each precision.

    Shapes behind one that takes a second are left out.

    Returns:
        (precision, shape) -> samples in seconds, and precision -> why it was not measured.
    """
    rates, missing = {}, {"fp8": "PyTorch has no plain product of it"}
    for precision, element in _TYPES.items():
        if precision == "tf32" and kind == "cpu":
            missing[precision] = "CPUs have none"
            continue
        try:
            with _tf32(precision == "tf32"):
                for shape in shapes:
                    m, k, n = shape
                    a = torch.ones(m, k, dtype=element, device=kind)
                    b = torch.ones(k, n, dtype=element, device=kind)
                    out = torch.empty(m, n, dtype=element, device=kind)
                    run = partial(torch.matmul, a, b, out=out)
                    rates[precision, shape] = repeated(run, repeats, kind)
                    if max(rates[precision, shape]) > _SLOW:
                        missing[precision] = f"larger than {m} x {k} x {n}, which takes a second"
                        break
        except RuntimeError as error:
            missing[precision] = one_line(error)
    return rates, missing


def copies(sizes: list[int], repeats: int, kind: str) -> dict[int, list[float]]:
    """Time copies of arrays of each number of bytes; a copy reads and writes each."""
    rates = {}
    for size in sizes:
        source = torch.ones(size // 4, device=kind)
        target = torch.empty_like(source)
        rates[size] = repeated(partial(target.copy_, source), repeats, kind)
    return rates


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Run products of float32 as TF32, or not."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
