"""Element types, and limits of what a module may hold: small files can ask for very much."""

from __future__ import annotations

import math
from collections.abc import Sequence

ELEMENT_TYPES = {
    1: ("pred", 8), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32), 5: ("s64", 64), 6: ("u8", 8),
    7: ("u16", 16), 8: ("u32", 32), 9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32),
    12: ("f64", 64), 13: ("tuple", 0), 14: ("opaque", 0), 15: ("c64", 64), 16: ("bf16", 16),
    17: ("token", 0), 18: ("c128", 128), 19: ("f8e5m2", 8), 20: ("f8e4m3fn", 8), 21: ("s4", 4),
    22: ("u4", 4), 23: ("f8e4m3b11fnuz", 8), 24: ("f8e5m2fnuz", 8), 25: ("f8e4m3fnuz", 8),
    26: ("s2", 2), 27: ("u2", 2), 28: ("f8e4m3", 8), 29: ("f8e3m4", 8), 30: ("s1", 1),
    31: ("u1", 1), 32: ("f4e2m1fn", 4), 33: ("f8e8m0fnu", 8),
}  # fmt: skip
"""Code of XLA's PrimitiveType -> (its name in HLO text, bits)."""
TUPLE = 13
"""Code of tuples."""
FLOATING = frozenset(
    code for code, (name, _) in ELEMENT_TYPES.items() if name[0] == "f" or name == "bf16"
)
"""Codes of the floating-point types."""
MOST_TENSOR_BYTES = 2**63
"""Tensors of this size and more are refused, as XLA counts bytes in int64."""
_WIDEST = 16
"""Bytes of the largest element, a complex number."""
MOST_COST = 1e60
"""Limit of the FLOPs and of the bytes of an instruction, loops and branches with what is inside.

Sums and products of such costs stay finite.
"""


def uncountable(dims: Sequence[int]) -> bool:
    """Return whether a tensor could have too many bytes, were no dimension empty."""
    return math.prod(max(size, 1) for size in dims) * _WIDEST >= MOST_TENSOR_BYTES
