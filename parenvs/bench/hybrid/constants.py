"""Which constants were fitted, on which published rows: one list, none for a single row."""

from __future__ import annotations

from dataclasses import dataclass

from parenvs.tasks.hybrid.stack import STACKS


@dataclass(frozen=True)
class Constant:
    """A constant of a stack that was fitted.

    Attributes:
        stack: the stack.
        name: the constant.
        source: the rows that it was fitted on: their source,
        table: their table,
        word: and a word in their names.
        key: of a share by device, the key.
        plausible: the least and the largest value that rows allow; None if it was not looked for.
        how: ``"fitted"``, or how else it was found on the rows: ``"counted"``.
        ships: whether the rows ship.
    """

    stack: str
    name: str
    source: str
    table: str = ""
    word: str = ""
    key: str = ""
    plausible: tuple[float, float] | None = None
    how: str = "fitted"
    ships: bool = True

    @property
    def value(self) -> float:
        """Its value in ``STACKS``."""
        value = getattr(STACKS[self.stack], self.name)
        return float(dict(value)[self.key] if self.key else value)

    @property
    def precision(self) -> str:
        """The precision in its key, or an empty text."""
        return self.key.partition(" ")[2]

    @property
    def words(self) -> str:
        """Its name, and that of its stack and device."""
        of = f" ({self.key})" if self.key else ""
        return f"{self.stack} {self.name}{of}"

    @property
    def rows(self) -> str:
        """The rows that it was fitted on, in words."""
        said = [self.source, self.table, self.word and f"'{self.word}'"]
        said += ["" if self.ships else "which does not ship"]
        return ", ".join(filter(None, [*said, "" if self.how == "fitted" else self.how]))

    def is_of(
        self, source: str, table: str, name: str, stack: str, device: str, precision: str
    ) -> bool:
        """Return whether it was fitted on a figure of such a row."""
        return (
            source == self.source
            and (not self.table or table == self.table)
            and self.word in name
            and stack == self.stack
            and (not self.key or self.key.split()[0] in (device, "other"))
            and (self.precision in ("", precision))
        )


def _fit(stack: str, name: str, source: str, table: str = "", **more: object) -> Constant:
    return Constant(stack, name, source, table, **more)  # type: ignore[arg-type]


_NEMO = ("nemo-2025", "nemo-2026")
_MOE = ("mb-moe-gb200", "mb-moe-h100")
CONSTANTS = (
    _fit("megatron-2021", "matmul_share", "megatron-sc21", "Table 1", key="a100"),
    _fit("megatron-2021", "matmul_share", "megatron-2020-11", key="v100", ships=False),
    _fit("megatron-2021", "link_share", "megatron-sc21", "Table 1"),
    _fit("megatron-2021", "send_share", "megatron-sc21-figures", "fig12"),
    _fit("megatron-2021", "send_share", "megatron-sc21-figures", "fig18"),
    _fit("megatron-2021", "send_wait", "megatron-sc21-figures", "fig12"),
    _fit("megatron-2021", "send_wait", "megatron-sc21-figures", "fig18"),
    _fit("megatron-2021", "gather_share", "megatron-sc21", "Table 2", word="zero3 175B"),
    _fit("megatron-2021", "hidden", "megatron-sc21", "Table 2", word="zero3 175B"),
    _fit("megatron-2022", "memory_share", "korthikanti", "Table 4"),
    _fit("megatron-2022", "matmul_share", "korthikanti", "Table 4", key="a100"),
    _fit("megatron-2022", "hidden", "korthikanti", "Table 4"),
    _fit("megatron-2019", "matmul_share", "megatron-v1", key="v100"),
    _fit("llama-2024", "matmul_share", "llama3", "Table 4", key="h100 bf16"),
    _fit("nemo-2024", "matmul_share", "nemo-24.07", key="h100 fp8"),
    _fit("torch-2024", "matmul_share", "mpt", key="a100"),
    _fit("torch-2024", "attention_share", "mpt", key="a100"),
    _fit("torch-2024", "memory_share", "mpt", word="a "),
    _fit("torch-2024", "hidden", "mpt", word="a "),
    _fit("torch-2024", "matmul_share", "mpt", key="h100 bf16"),
    _fit("torch-2024", "attention_share", "mpt", key="h100"),
    _fit("nccl-2024", "link_share", "nccl-h100"),
    _fit("nccl-2021", "link_share", "galvatron-hw"),
    _fit("deepspeed-2022", "matmul_share", "gpt-1.5b.json", key="v100 fp16", ships=False),
    _fit("deepspeed-2022", "link_share", "gpt-1.5b.json", ships=False),
    *(
        _fit(stack, "matmul_share", "mb-dense-gb200", key=f"gb200 {recipe}", plausible=(0.35, 0.55))
        for stack in _NEMO
        for recipe in ("fp8", "mxfp8")
    ),
    _fit("nemo-2025", "matmul_share", "dgxc-fp8", key="h100 fp8", plausible=(0.40, 0.50)),
    _fit("nemo-2025", "permute_passes", _MOE[0], key="other", plausible=(6.0, 40.0)),
    _fit("nemo-2025", "permute_passes", _MOE[1], key="h100", plausible=(6.0, 40.0)),
    _fit("nemo-2026", "permute_passes", _MOE[0], key="other", plausible=(4.0, 12.0)),
    *(
        _fit(stack, "sink_share", source, word="gpt-oss", plausible=(0.1, 0.35))
        for stack, source in (*zip(_NEMO, _MOE[:1] * 2, strict=True), (_NEMO[0], _MOE[1]))
    ),
    _fit("titan-2025", "matmul_share", "tt-2412", key="h100-96gb fp8", plausible=(0.35, 0.50)),
    _fit("titan-2025", "attention_share", "tt-2412", key="other", plausible=(0.25, 0.60)),
    _fit("titan-2025", "memory_share", "tt-2412", plausible=(0.35, 0.65)),
    _fit("titan-2025", "memory_share", "fms-fsdp-a100", plausible=(0.35, 0.65)),
    _fit("titan-2025", "matmul_share", "fms-fsdp-a100", key="a100", plausible=(0.65, 0.80)),
    _fit("titan-2025", "hidden", "fms-fsdp-a100", plausible=(0.5, 1.0)),
    _fit("internevo-2023", "matmul_share", "internevo", key="a100", plausible=(0.55, 0.78)),
    _fit("internevo-2023", "bucket", "internevo", plausible=(15e6, 100e6)),
    _fit(
        "megatron-deepspeed-2022", "matmul_share", "bigscience", key="a100", plausible=(0.60, 0.72)
    ),
    _fit(
        "megatron-deepspeed-2022", "accumulate_bytes", "bigscience", plausible=(12.0, 24.0),
        how="counted",
    ),
)  # fmt: skip
"""Every fitted constant, once for each table that it was fitted on.

``memory_share``, ``send_share`` and ``send_wait`` of the two Megatron stacks are the same; other
stacks have them from there unless they are listed. The shares of deepspeed-2022 are fitted on
measured steps, see ``parenvs.bench.hybrid.steps``, the share of a V100 in megatron-2021 on a table
of November 2020 that is in no file. ``FP8_SHARE`` is a ratio of two constants of nemo-2024.
"""


def was_fitted(stack: str, device: str, precision: str) -> bool:
    """Return whether a stack's share of matrix products was fitted on a device and precision."""
    keys = (device, f"{device} {precision}")
    named = (item for item in CONSTANTS if item.name == "matmul_share")
    return any(item.stack == stack and item.key in keys for item in named)
