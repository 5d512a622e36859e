"""Problems with servers of different speed, in any order: one server a stage, layers unequal."""

from parenvs.hybrid.hetero.drawing import FAMILIES, TIERS, Tier, draw, drawn, make

__all__ = ["FAMILIES", "TIERS", "Tier", "draw", "drawn", "make"]
