"""What was measured on a cluster, as its file holds it beside the figures that plans are costed by.

Units are seconds and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from parenvs.cluster.devices import PRECISIONS
from parenvs.errors import ClusterError, did_you_mean, shown

COLLECTIVES = ("send", "all-reduce", "all-gather", "reduce-scatter", "all-to-all")
"""What processes do together; sizes are those that the methods of ``Links`` take."""
KINDS = ("matmul", "memory", *COLLECTIVES)
"""What can be measured: matrix products, copies in memory, and collectives."""
_MOST = 1e30


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

    kind: str
    seconds: float
    low: float
    high: float
    repeats: int
    bytes: int = 0
    group: int = 1
    shape: tuple[int, ...] = ()
    precision: str = ""
    share: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        fields = {key: value for key, value in asdict(self).items() if value}
        return fields | ({"shape": list(self.shape)} if self.shape else {})


def measurements(content: Any, where: str) -> tuple[Measurement, ...]:
    """Read the field ``measured`` of a cluster's file.

    Args:
        content: a list of objects.
        where: the file, for errors.

    Raises:
        ClusterError: a field is missing or unknown, or has an impossible value.
    """
    if not isinstance(content, list):
        raise ClusterError(f"{where}: measured must be a list of measurements")
    return tuple(_measurement(row, f"{where}: measured[{k}]") for k, row in enumerate(content))


def provenance(content: Any, where: str) -> dict[str, Any]:
    """Check the field ``provenance`` of a cluster's file: texts, numbers and lists of texts.

    Raises:
        ClusterError: it holds anything else.
    """
    if not isinstance(content, dict):
        raise ClusterError(f"{where}: provenance must be an object, not {shown(content)}")
    for key, value in content.items():
        texts = isinstance(value, list) and all(isinstance(x, str) for x in value)
        if not texts and not isinstance(value, (str, int, float)):
            raise ClusterError(
                f"{where}: provenance.{key} must be a text, a number or a list of texts"
            )
    return content


def _measurement(row: Any, where: str) -> Measurement:
    if not isinstance(row, dict):
        raise ClusterError(f"{where} must be an object, not {shown(row)}")
    kind = row.get("kind")
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS) if isinstance(kind, str) else ""
        raise ClusterError(f"{where}.kind {shown(kind)} is unknown{hint}")
    shape = row.get("shape", [])
    if not isinstance(shape, list):
        raise ClusterError(f"{where}.shape must be a list of 3 whole numbers")
    try:
        made = Measurement(**{**row, "shape": tuple(shape)})
    except TypeError:
        known = Measurement.__dataclass_fields__
        wrong = sorted({*row} - {*known} | {"low", "high", "repeats", "seconds"} - {*row})
        raise ClusterError(f"{where}: missing or unknown: {', '.join(map(shown, wrong))}") from None
    _check_numbers(where, ("seconds", "low", "high"), made, (int, float), 0.0)
    _check_numbers(where, ("repeats", "group"), made, (int,), 1)
    _check_numbers(where, ("bytes",), made, (int,), int(kind != "matmul"))
    _check_numbers(where, ("share",), made, (int, float), 0.0)
    if kind == "matmul":
        whole = all(isinstance(x, int) and 1 <= x <= _MOST for x in shape)
        if len(shape) != 3 or not whole:
            raise ClusterError(f"{where}.shape must be 3 whole numbers, not {shown(shape)}")
        if made.precision not in PRECISIONS:
            raise ClusterError(f"{where}.precision must be one of {', '.join(PRECISIONS)}")
    elif kind != "memory" and made.group < 2:
        raise ClusterError(f"{where}.group of a collective must be at least 2")
    if not made.low <= made.seconds <= made.high:
        raise ClusterError(f"{where}: seconds must lie between low and high")
    return made


def _check_numbers(
    where: str, keys: Iterable[str], row: Measurement, kinds: tuple[type, ...], least: float
) -> None:
    for key in keys:
        value = getattr(row, key)
        number = isinstance(value, kinds) and not isinstance(value, bool)
        if not number or not least <= value <= _MOST:
            raise ClusterError(f"{where}.{key} must be a number from {least:g}, not {shown(value)}")
