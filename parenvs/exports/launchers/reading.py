"""Reads what the settings of launchers say, as stages: the way back from what exports write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from parenvs.core.stages import Stage, Stages
from parenvs.errors import ParenvsError


class Settings(dict[str, str]):
    """Settings by name, as texts; those without a value are empty."""

    @classmethod
    def of(cls, text: str, pattern: str) -> Settings:
        """Return the settings in a text; ``pattern`` has a group for a name and one for a value."""
        return cls({name: value.strip("\"'") for name, value in re.findall(pattern, text)})

    def word(self, name: str) -> str:
        """Return a setting, or an empty text."""
        return self.get(name, "")

    def number(self, name: str, default: int | None = None) -> int:
        """Return a setting that is a whole number.

        Raises:
            ParenvsError: it is missing and has no default, or is no such number.
        """
        value = self.get(name, default)
        try:
            return int(value)  # type: ignore[arg-type]  # of None, too
        except (TypeError, ValueError):
            given = "is missing" if value is None else f"must be a whole number, not {value!r}"
            raise ParenvsError(f"{name} {given} in the settings") from None


def dealt(
    parts: Sequence[tuple[int, int]], stages: int, turns: bool = False
) -> list[tuple[tuple[int, int], ...]]:
    """Return the parts of each stage: chunk c of stage s is part c S + s.

    Args:
        parts: ranges of layers in the model's order.
        stages: S.
        turns: whether a micro-batch turns at the last stage: stage s has parts s and 2 S - 1 - s.
    """
    if turns:
        return [(parts[s], parts[2 * stages - 1 - s]) for s in range(stages)]
    return [tuple(parts[s::stages]) for s in range(stages)]


def stages_said(
    layers: Sequence[tuple[tuple[int, int], ...]],
    ranks: int,
    tp: int,
    zero: int,
    modes: Sequence[str],
    **fields: Any,
) -> Stages:
    """Return stages that are all alike but for their layers.

    Args:
        layers: ranges of layers of each stage, one for each chunk.
        ranks: replicas of a stage, times the ranks that share tokens.
        tp: ranks that share every matrix.
        zero: 0 to 3.
        modes: what is recomputed of each layer of the model.
        **fields: of ``Stages``.
    """
    made = tuple(
        Stage(own, ranks * tp, tp, zero, tuple(m for a, b in own for m in modes[a:b]))
        for own in layers
    )
    count = len(modes)
    return Stages(
        plan=None, run=None, replan=lambda stages: None, stages=made,
        names=tuple(f"layer_{k}" for k in range(count)), chunks=len(layers[0]), **fields,
    )  # fmt: skip
