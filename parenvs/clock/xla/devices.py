"""A process of JAX with as many devices as are asked for (extra ``jax``).

JAX counts its devices as it starts, so that whatever runs on virtual ones has a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from parenvs.clock.members import run_members
from parenvs.errors import ParenvsError, need_extra, shown

KINDS = ("cpu", "cuda")
"""Kinds of devices."""
_COUNT = "--xla_force_host_platform_device_count"


def with_devices(work: Callable[..., Any], kind: str, count: int, given: Sequence[Any] = ()) -> Any:
    """Return ``work(*given)`` of a process in which JAX has devices; see ``run_members``.

    Args:
        work: a function that the process can import.
        kind: ``"cpu"``: ``count`` virtual devices, which share the cores; ``"cuda"``: GPUs.
        count: number of devices.
        given: what it takes.

    Raises:
        ParenvsError: JAX is missing, there are no such devices, or the process failed.
    """
    if kind not in KINDS:
        raise ParenvsError(f"--device {shown(kind)} is unknown; known: {', '.join(KINDS)}")
    with need_extra("jax", "measuring with JAX"):
        import jax  # noqa: F401
    environment = {}
    if kind == "cpu":
        words = [x for x in os.environ.get("XLA_FLAGS", "").split() if not x.startswith(_COUNT)]
        flags = " ".join([*words, f"{_COUNT}={count}"])
        environment = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    (answer,) = run_members(_work, [(kind, count, work, tuple(given))], environment=environment)
    return answer


def devices(kind: str, count: int) -> list[Any]:
    """Return the first ``count`` devices of this process.

    Raises:
        ParenvsError: there are fewer.
    """
    import jax

    try:
        available = jax.devices("gpu" if kind == "cuda" else "cpu")
    except RuntimeError:
        available = []
    if len(available) < count:
        raise ParenvsError(
            f"--device {kind}: {count} asked for, and JAX {jax.__version__} sees "
            f"{len(available)} here"
        )
    return available[:count]


def _work(kind: str, count: int, work: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """Work as the process; the devices are looked for first."""
    devices(kind, count)
    return work(*given)
