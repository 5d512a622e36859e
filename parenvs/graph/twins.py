"""Outputs that have the path of an input, by the pytrees of a function's arguments and results.

A step that returns ``{"params": {"w": ...}}`` for ``params["w"]`` says itself which result takes
the place of which argument. Where several inputs have as much of a path in common with an output,
nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_KEY = re.compile(r"\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(\w+)\]|\.(\w+)")


def keys_of(name: str) -> tuple[str, list[str]]:
    """Split a name like ``params['encoder']['q']`` into the argument and its keys."""
    head = re.split(r"[\[./]", name, maxsplit=1)[0]
    return head, [next(filter(None, key), "") for key in _KEY.findall(name[len(head) :])]


def find_twins(
    inputs: Sequence[str], outputs: Sequence[str], kinds: tuple[Sequence[object], Sequence[object]]
) -> list[tuple[int, int]]:
    """Pair outputs and inputs of equal paths.

    Args:
        inputs: names of the entry parameters, like ``params['q']``.
        outputs: names of the results, like ``[0]['q']``.
        kinds: element type and shape of each input, and of each output; those of a pair are equal.

    Returns:
        Pairs of an output's and an input's position. Each has more of its path in common with the
        other than with any that is not in the pair.
    """
    taken = [keys_of(name) for name in inputs]
    given = [keys_of(name)[1] for name in outputs]
    by_key: dict[tuple[str, object], list[int]] = {}
    for i, ((head, keys), kind) in enumerate(zip(taken, kinds[0], strict=True)):
        by_key.setdefault((keys[-1] if keys else head, kind), []).append(i)
    nearest: dict[int, int] = {}
    claims: dict[int, list[tuple[int, int]]] = {}
    for o, (keys, kind) in enumerate(zip(given, kinds[1], strict=True)):
        if not keys or (len(keys) == 1 and keys[0].isdecimal()):
            continue  # a position among the results is no path
        distances = sorted(
            (_distance(*taken[i], keys), i) for i in by_key.get((keys[-1], kind), ())
        )
        if distances and (len(distances) == 1 or distances[0][0] < distances[1][0]):
            distance, nearest[o] = distances[0]
            claims.setdefault(nearest[o], []).append((distance, o))
    pairs = []
    for o, i in nearest.items():
        best = sorted(claims[i])
        if best[0][1] == o and (len(best) == 1 or best[0][0] < best[1][0]):
            pairs.append((o, i))
    return pairs


def _distance(head: str, keys: Sequence[str], result: Sequence[str]) -> int:
    """How many keys an input's path and an output's do not have in common, from their ends."""
    whole = [head, *keys]
    common = 0
    while common < min(len(whole), len(result)) and whole[-1 - common] == result[-1 - common]:
        common += 1
    return max(len(keys) - common, 0) + len(result) - common
