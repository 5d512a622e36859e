"""``REMOVED``: names that a user may still have, of things that this package no longer has.

A removed name ends in one line that says so and names the successor. Whoever removes something
that a user could name adds a row here, and asks ``refuse_removed`` where such names are read.
"""

from __future__ import annotations

from parenvs.errors import ParenvsError, shown

REMOVED: dict[str, dict[str, str]] = {
    "environment": {
        "MicroBatchOrder-v0": "",
        "MicroBatchOrder-v1": "",
    },
    "task": {
        "order": "",
        "packed-order": "",
        "order-drawn": "",
    },
    "planner": {
        "hybrid/exact-hybrid": "exact",
        "hybrid/local-search": "search",
        "hybrid/learned+search": "search",
        "hybrid/megatron": "rule-of-thumb",
        "hybrid/data-parallel": "uniform",
        "hybrid/zero-3": "uniform",
        "hybrid/tensor": "uniform",
        "hybrid/pipeline": "uniform",
        "hybrid/sorted-servers": "swap-search",
        "hybrid/random-servers": "swap-search",
        "hybrid/sandwich": "subset-dp",
        "partition/ones": "greedy",
        "pipeline/exact-full": "exact",
        "pipeline/exact-points": "exact",
        "pipeline/exact-candidates": "exact",
        "pipeline/corridor": "search",
        "pipeline/learned+search": "search",
        "partition/replicate": "greedy",
        "sharding/leanest": "greedy",
        "sharding/messages": "exact",
    },
    "agent": {
        "a2c": "ppo",
    },
    "set": {
        "order-validation": "",
        "order-test": "",
        "order-outside": "",
        "order-large": "",
    },
}
"""Kind -> name -> what to use in its place, or an empty text if there is no successor.

Environments are named without a namespace; a planner, as ``TASK/NAME``.
"""


def removed(kind: str, name: object) -> str:
    """Return the line for a removed name, an empty text if it was not removed.

    Args:
        kind: a key of ``REMOVED``.
        name: the name, which may be anything that a file holds.
    """
    names = REMOVED[kind]
    if not isinstance(name, str) or name not in names:
        return ""
    successor = f"; use {names[name]}" if names[name] else ""
    return f"{kind} {shown(name.rpartition('/')[2])} was removed{successor}"


def refuse_removed(
    kind: str, name: object, where: str = "", error: type[ParenvsError] = ParenvsError
) -> None:
    """Raise ``error`` if a name was removed, its message ``where`` (a file) and the line.

    Raises:
        ParenvsError: the name was removed.
    """
    line = removed(kind, name)
    if line:
        raise error(f"{where}: {line}" if where else line)
