"""What was measured on a cluster, as its file holds it beside the figures that plans are costed by.

Units are seconds and bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from parenvs.cluster.devices import PRECISIONS
from parenvs.errors import ClusterError, shown
from parenvs.fields import number, one_of, whole, words

COLLECTIVES = ("send", "all-reduce", "all-gather", "reduce-scatter", "all-to-all")
"""What processes do together; sizes are those that the methods of ``Links`` take."""
KINDS = ("matmul", "memory", *COLLECTIVES)
"""What can be measured: matrix products, copies in memory, and collectives."""
_Figure = words("a number")
Provenance = (
    Annotated[str, words("a text")]
    | Annotated[int, _Figure]
    | Annotated[float, _Figure]
    | Annotated[bool, _Figure]
    | Annotated[list[str], words("a list of texts")]
)
"""What a file can say of how it was measured: texts, numbers, and lists of texts."""
_MOST = 2**63 - 1
_BOUNDS = number(0, 1e30, "a number from 0")
_Number = Annotated[int, number(0, _MOST, "a number from 0")] | Annotated[float, _BOUNDS]
_Count = Annotated[int, whole(1, _MOST)]


@dataclass(frozen=True)
class Measurement:
    """Seconds of one operation.

    Attributes:
        kind: one of ``KINDS``.
        seconds: median.
        low: lower quartile.
        high: upper quartile.
        repeats: how often it ran, warm-up not counted.
        bytes: of the array; 0 of products.
        group: processes that took part.
        shape: (m, k, n) of products, else empty.
        precision: of products, else empty.
        share: of the device's peak that products reach, else 0.
    """

    kind: Annotated[str, one_of(*KINDS)]
    seconds: _Number
    low: _Number
    high: _Number
    repeats: _Count
    bytes: Annotated[int, whole(0, _MOST)] = 0
    group: _Count = 1
    shape: Annotated[tuple[_Count, ...], words("3 whole numbers", max_length=3)] = ()
    precision: str = ""
    share: _Number = 0.0

    def __post_init__(self) -> None:
        """Raise errors for what no operation of its kind has."""
        wrong = ""
        if not self.bytes and self.kind != "matmul":
            wrong = "bytes must be a whole number from 1, not 0"
        elif self.kind == "matmul" and len(self.shape) != 3:
            wrong = f"shape must be 3 whole numbers, not {shown(list(self.shape))}"
        elif self.kind == "matmul" and self.precision not in PRECISIONS:
            wrong = f"precision must be one of {', '.join(PRECISIONS)}"
        elif self.kind in COLLECTIVES and self.group < 2:
            wrong = "group of a collective must be at least 2"
        elif not self.low <= self.seconds <= self.high:
            wrong = "seconds must lie between low and high"
        if wrong:
            raise ClusterError(wrong)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        fields = {key: value for key, value in asdict(self).items() if value}
        return fields | ({"shape": list(self.shape)} if self.shape else {})
