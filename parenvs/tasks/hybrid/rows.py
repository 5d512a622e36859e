"""Published measurements: rows of a file, checked field by field.

A file is an object with ``rows``, a list of objects; ``sources`` (texts on each source) and
``reference_outputs`` (what other tools predict, by row) may stand beside. A row says what was
trained where and what was measured: ``TEXTS``, ``COUNTS``, ``NUMBERS``, ``FLAGS``, ``zero`` and
``MEASURED`` are all that it may say beside ``NOTES``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from parenvs.cluster import PRECISIONS, Cluster
from parenvs.errors import ParenvsError, shown
from parenvs.fields import Text, one_of, read, whole, words
from parenvs.files import StrPath, read_json
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES
from parenvs.tasks.hybrid.stack import Stack

LEAST, MOST = 1e-12, 2**53
"""Smallest and largest figure that a row can have measured; the largest count, too."""
TEXTS = (
    "source", "table", "name", "device", "precision", "recompute", "stack", "date", "flops_formula",
)  # fmt: skip
"""Fields that are texts; ``docs/generate.py`` has the meaning of each field."""
COUNTS = (
    "layers", "hidden", "heads", "kv_heads", "head_width", "ffn", "seq", "vocab", "experts",
    "active_experts", "shared_experts", "experts_every", "leading_dense", "dense_ffn", "query_rank",
    "key_rank", "rope_width", "window", "full_every", "next_tokens", "tp", "pp", "dp", "cp", "ep",
    "etp", "shard", "gpus", "gpus_per_node", "batch", "batch_per_dp", "micro_batch", "interleave",
    "gradient_bytes", "year", "nodes", "ranks_per_node",
)  # fmt: skip
"""Fields that are whole numbers of at least 1."""
NUMBERS = ("node_gbit",)
"""Fields that are positive numbers."""
FLAGS = (
    "sequence_parallel", "sp", "ddp_overlap", "scatter_gather", "gated", "tied", "dropout", "bias",
    "causal", "sinks", "expert_bias", "fused_norms", "compile", "async_tp", "offload",
    "expert_overlap",
)  # fmt: skip
"""Fields that are true or false."""
MEASURED = {
    "tflops_per_gpu": "TFLOP/s",
    "seconds": "s",
    "ms": "ms",
    "tokens_per_s_per_gpu": "tokens/s",
    "samples_per_s": "samples/s",
    "mfu": "MFU",
    "seconds_full_recompute": "s",
    "seconds_selective_sequence_parallel": "s",
    "mfu_full": "MFU",
    "mfu_present": "MFU",
    "mfu_megatron": "MFU",
    "forward_ms": "ms",
    "backward_ms": "ms",
    "gib_parameters_optimiser": "GiB",
    "gib_activations_none": "GiB",
    "gib_activations_selective_sp": "GiB",
    "peak_memory_gib": "GiB",
    "published_memory": "GiB",
    "algorithm_gb_per_s": "GB/s",
    "gb_per_s": "GB/s",
}
"""What a row may have measured, and its unit."""
RESERVED = "published_memory"
PEAKS = ("peak_memory_gib", RESERVED)
"""Bytes on the fullest device: that a framework has allocated at its peak, and those it reserved,
as the driver shows them."""
NOTES = (
    "note", "provenance", "status", "uncertainty", "interleave_status", "order",
    "tokens_per_batch", "plan", "throughput", "seconds_here", "bytes", "p2p_bytes_per_s",
    "allreduce_bytes_per_s", "mfu_megascale", "tflops_per_gpu_unfused", "parameters",
)  # fmt: skip
"""Fields that say more to people, and that nothing is predicted from."""
PERCENT = "percent_of_none"
"""Activations by way to save them, in per cent of those that nothing saves."""
SAVINGS = ("sp", "selective", "selective_sp", "full")
"""Keys of ``percent_of_none``."""
_SHARES = [name for name, unit in MEASURED.items() if unit == "MFU"]
_Figure = Annotated[float, words("a positive number", ge=LEAST, le=MOST)]
_Share = Annotated[float, words("a share of the peak, at most 1", ge=LEAST, le=1)]
_Saving = Annotated[str, one_of(*SAVINGS)]
_Percent = Annotated[float, words("over 0 and at most 100", ge=LEAST, le=100)]
_TYPES: dict[str, Any] = {
    **dict.fromkeys(TEXTS, Text),
    "precision": Annotated[str, one_of(*PRECISIONS)],
    "recompute": Annotated[str, one_of(*RECOMPUTE_MODES)],
    **dict.fromkeys(COUNTS, Annotated[int, words("a whole number from 1", ge=1, le=MOST)]),
    **dict.fromkeys(FLAGS, bool),
    **dict.fromkeys((*NUMBERS, *MEASURED), _Figure),
    **dict.fromkeys(_SHARES, _Share),
    PERCENT: dict[_Saving, _Percent],
    "zero": Annotated[int, whole(0, 3)],
    **dict.fromkeys(NOTES, Any),
}
_Fields = make_dataclass("_Fields", [(name, kind, None) for name, kind in _TYPES.items()])


@dataclass(frozen=True)
class Row:
    """One row, its fields checked.

    Attributes:
        number: its place in the file, from 0.
        fields: what it says.
    """

    number: int
    fields: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field, or the default if the row does not have it."""
        return self.fields.get(key, default)

    @property
    def source(self) -> str:
        """Who published it."""
        return str(self.get("source", "unknown"))

    @property
    def table(self) -> str:
        """The table or figure that it is from; without one, the figure that begins its name."""
        word = self.name.split(" ")[0]
        return str(self.get("table") or (word if word.startswith("fig") else ""))

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.get("name", f"row {self.number}"))

    @property
    def measured(self) -> dict[str, float]:
        """What it measured, by field, in units of ``MEASURED``."""
        return {name: float(self.fields[name]) for name in MEASURED if name in self.fields}

    def error(self, words: str) -> ParenvsError:
        """Return an error that names the row."""
        return ParenvsError(f"row {self.number} ({shown(self.name)}): {words}")


@dataclass(frozen=True)
class Published:
    """The rows of a file.

    Attributes:
        path: the file, or files.
        sources: source -> what it says of itself.
        references: tool -> name of a row -> what the tool predicts for it.
        stacks: by name, stacks that stand in for those of the same names.
        server: by whose measured figures plans on such devices are priced.
    """

    path: str
    rows: tuple[Row, ...]
    sources: Mapping[str, Any]
    references: Mapping[str, Mapping[str, float]]
    stacks: Mapping[str, Stack] = field(default_factory=dict)
    server: Cluster | None = None


def shipped(name: str) -> Path:
    """Return the path of a file of measurements that ships with the package."""
    return Path(str(resources.files("parenvs.datasets"))) / "data" / "measured" / name


SHIPPED = (
    "published.json", "rows-2026.json", "rows-2026-11.json", "rows-peers-2026-11.json",
)  # fmt: skip
"""Files of rows that ship: up to 2024, from there to 2026, and beside other simulators."""


def read_rows(path: StrPath | None = None) -> Published:
    """Read a file of published rows, by default those that ship; the name of one is enough.

    A file that cannot be read, or a field that no row can have, raises a ParenvsError.
    """
    if path is None:
        parts = [read_rows(name) for name in SHIPPED]
        joined = tuple(row for part in parts for row in part.rows)
        every = {key: value for part in parts for key, value in part.sources.items()}
        return Published(" and ".join(SHIPPED), joined, every, parts[0].references)
    where = os.fspath(path)
    # A file of the user's own with the name of a shipped one comes first.
    place = shipped(where) if where in SHIPPED and not Path(where).exists() else Path(path)
    content = read_json(place)
    if isinstance(content, list):
        content = {"rows": content}
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise ParenvsError(f"{where}: expected an object with a list of objects, 'rows'")
    if content.get("schema", 1) != 1:
        raise ParenvsError(f"{where}: schema {shown(content['schema'])} is not known; known: 1")
    if not content["rows"]:
        raise ParenvsError(f"{where}: 'rows' is empty; give at least one row")
    try:
        rows = tuple(checked(row, number) for number, row in enumerate(content["rows"]))
    except ParenvsError as error:
        raise ParenvsError(f"{where}: {error}") from None
    sources, outputs = content.get("sources"), content.get("reference_outputs")
    references = {
        tool: {name: float(x) for name, x in figures.items() if is_number(x)}
        for tool, figures in (outputs.items() if isinstance(outputs, dict) else ())
        if isinstance(figures, dict)
    }
    return Published(where, rows, sources if isinstance(sources, dict) else {}, references)


def checked(content: Any, number: int) -> Row:
    """Return a row of an object of JSON types.

    Raises:
        ParenvsError: a field is unknown, of a wrong type, or has a value that is impossible.
    """
    if not isinstance(content, dict):
        raise ParenvsError(f"row {number}: expected an object, not {shown(content)}")
    row = Row(number, {key: value for key, value in content.items() if value is not None})
    read(_Fields, row.fields, f"row {number} ({shown(row.name)})")
    return row


def is_number(value: Any) -> bool:
    """Return whether a value of a JSON file is a finite number."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max
