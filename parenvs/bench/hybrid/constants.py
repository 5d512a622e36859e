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
        key: of a share by device, the key.
        source: the rows that it was fitted on: their source,
        table: their table,
        word: and a word in their names.
    """

    stack: str
    name: str
    source: str
    table: str = ""
    word: str = ""
    key: str = ""

    @property
    def value(self) -> float:
        """Its value in ``STACKS``."""
        value = getattr(STACKS[self.stack], self.name)
        return float(dict(value)[self.key] if self.key else value)

    @property
    def words(self) -> str:
        """Its name, and that of its stack and device."""
        of = f" ({self.key})" if self.key else ""
        return f"{self.stack} {self.name}{of}"

    @property
    def rows(self) -> str:
        """The rows that it was fitted on, in words."""
        return ", ".join(filter(None, [self.source, self.table, self.word and f"'{self.word}'"]))

    def is_of(self, source: str, table: str, name: str, stack: str, device: str) -> bool:
        """Return whether it was fitted on rows of such a source, table, name, stack and device."""
        return (
            source == self.source
            and (not self.table or table == self.table)
            and self.word in name
            and stack == self.stack
            and (not self.key or device == self.key.split()[0])
        )


CONSTANTS = (
    Constant("megatron-2021", "matmul_share", "megatron-sc21", "Table 1", key="a100"),
    Constant("megatron-2021", "link_share", "megatron-sc21", "Table 1"),
    Constant("megatron-2021", "send_share", "megatron-sc21-figures", "fig12"),
    Constant("megatron-2021", "send_share", "megatron-sc21-figures", "fig18"),
    Constant("megatron-2021", "send_wait", "megatron-sc21-figures", "fig12"),
    Constant("megatron-2021", "send_wait", "megatron-sc21-figures", "fig18"),
    Constant("megatron-2021", "gather_share", "megatron-sc21", "Table 2", "zero3 175B"),
    Constant("megatron-2021", "hidden", "megatron-sc21", "Table 2", "zero3 175B"),
    Constant("megatron-2022", "memory_share", "korthikanti", "Table 4"),
    Constant("megatron-2022", "matmul_share", "korthikanti", "Table 4", key="a100"),
    Constant("megatron-2022", "hidden", "korthikanti", "Table 4"),
    Constant("megatron-2019", "matmul_share", "megatron-v1", key="v100"),
    Constant("llama-2024", "matmul_share", "llama3", "Table 4", key="h100 bf16"),
    Constant("nemo-2024", "matmul_share", "nemo-24.07", key="h100 fp8"),
    Constant("torch-2024", "matmul_share", "mpt", key="a100"),
    Constant("torch-2024", "attention_share", "mpt", key="a100"),
    Constant("torch-2024", "memory_share", "mpt", word="a "),
    Constant("torch-2024", "hidden", "mpt", word="a "),
    Constant("torch-2024", "matmul_share", "mpt", key="h100 bf16"),
    Constant("torch-2024", "attention_share", "mpt", key="h100"),
    Constant("nccl-2024", "link_share", "nccl-h100"),
    Constant("nccl-2021", "link_share", "galvatron-hw"),
)
"""Every fitted constant, once for each table that it was fitted on.

``memory_share``, ``send_share`` and ``send_wait`` of the two Megatron stacks are the same; other
stacks have them from there unless they are listed. The shares of deepspeed-2022 are fitted on
measured steps, see ``parenvs.bench.hybrid.steps``.
"""


def was_fitted(stack: str, device: str, precision: str) -> bool:
    """Return whether a stack's share of matrix products was fitted on a device and precision."""
    keys = (device, f"{device} {precision}")
    named = (item for item in CONSTANTS if item.name == "matmul_share")
    return any(item.stack == stack and item.key in keys for item in named)
