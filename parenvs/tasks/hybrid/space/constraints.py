"""What people ask of hybrid plans beside speed, and how training software sends and sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.fields import LARGEST_NUMBER
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES, SCHEDULES
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space.frameworks import FRAMEWORKS
from parenvs.tasks.hybrid.task import Limits

LONG = 32_768
"""Tokens of a sample from which on any ranks may share them, unless ``context`` is pinned."""
TOKENS_EACH = 4096
"""Tokens that ranks share of a shorter sample, at least; so 1 or 2 ranks share 8,192."""
MOST_CONTEXT = 16
"""Most ranks that share the tokens of a long sample, unless ``context`` is pinned."""
_PINS = (
    "tp", "pp", "dp", "micro_batch", "chunks", "context", "expert", "most_micro_batch", "devices",
    "stage_devices",
)  # fmt: skip


@dataclass(frozen=True)
class Software:
    """How a training software sends, and keeps and sums gradients.

    Attributes:
        blocking: whether devices wait for their sends.
        gradient_bytes: bytes of a gradient.
        gradient_overlap: whether gradients are summed during the last backward pass.
    """

    blocking: bool
    gradient_bytes: int
    gradient_overlap: bool


SOFTWARE = {
    "megatron-2021": Software(True, 2, False),
    "megatron-2022": Software(True, 4, False),
    "megatron-deepspeed-2022": Software(True, 4, False),
    "internevo-2023": Software(True, 2, True),
    "nemo-2024": Software(False, 4, True),
    "nemo-2025": Software(False, 2, True),
    "nemo-2026": Software(False, 2, True),
    "llama-2024": Software(False, 4, True),
    "megascale-2024": Software(False, 4, True),
    "deepspeed-2022": Software(False, 2, False),
    "torch-2024": Software(False, 4, True),
    "titan-2025": Software(False, 4, True),
    "titan-async": Software(False, 4, True),
    "maxtext-2025": Software(False, 4, True),
    "deepseek-2024": Software(False, 4, True),
    "roofline": Software(False, 4, False),
}
"""Stack -> how it sends and sums; gradients of the first are kept in half precision."""


@dataclass(frozen=True)
class Constraints(Limits):
    """What a plan must keep to, see ``parenvs.tasks.hybrid.task.Limits``."""

    def __post_init__(self) -> None:
        """Raise errors for values that no plan can have."""
        for name in _PINS:
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and 1 <= value <= LARGEST_NUMBER):
                raise ParenvsError(f"{name} must be a whole number from 1, not {shown(value)}")
        known = [name for name in SCHEDULES if name != "early"]
        if self.schedule is not None and self.schedule not in known:
            raise ParenvsError(
                f"schedule must be one of {', '.join(known)}, not {shown(self.schedule)}"
            )
        if self.shard is not None and not (
            isinstance(self.shard, int) and 0 <= self.shard <= LARGEST_NUMBER
        ):
            raise ParenvsError(f"shard must be a whole number from 0, not {shown(self.shard)}")
        if self.framework is not None and self.framework not in FRAMEWORKS:
            raise ParenvsError(
                f"--for {shown(self.framework)} is unknown"
                f"{did_you_mean(str(self.framework), FRAMEWORKS)}; known: {', '.join(FRAMEWORKS)}"
            )
        if not self.zero or not set(self.zero) <= {0, 1, 2, 3}:
            raise ParenvsError(f"zero must be some of 0, 1, 2 and 3, not {shown(self.zero)}")
        if not self.recompute or not set(self.recompute) <= set(RECOMPUTE_MODES):
            raise ParenvsError(
                f"recompute must be some of {', '.join(RECOMPUTE_MODES)}, not "
                f"{shown(self.recompute)}"
            )

    def device_counts(self, problem: Hybrid) -> list[int]:
        """Return the numbers of devices that plans may use, the most first.

        Raises:
            ParenvsError: the cluster has fewer devices than are asked for.
        """
        cluster = problem.cluster
        if self.devices is not None:
            cluster.part(self.devices)
            return [self.devices]
        if not self.idle:
            return [cluster.devices]
        return [part.devices for part in cluster.parts()] + [1]

    def tensor_ranks(self, problem: Hybrid) -> list[int]:
        """Return the tp by which the matrices divide, none across servers."""
        inside = problem.cluster.devices_per_server
        return [
            tp
            for tp in divisors(inside)
            if self.tp in (None, tp) and problem.model.reasons_against_tp(tp) is None
        ]

    def contexts(self, problem: Hybrid) -> list[int]:
        """Return the numbers of ranks that may share the tokens of a sample."""
        shape = problem.model.shape
        if shape is None:
            return [1] if self.context in (None, 1) else []
        if self.context is not None:
            counts = [self.context]
        else:
            counts = [2**i for i in range(MOST_CONTEXT.bit_length())]
            most = MOST_CONTEXT if shape.sequence >= LONG else shape.sequence // TOKENS_EACH
            counts = [count for count in counts if count <= max(most, 1)]
        return [count for count in counts if count == 1 or shape.sequence % (2 * count) == 0]

    def experts(self, problem: Hybrid) -> list[int]:
        """Return the numbers of replicas among which experts may be dealt out."""
        shape = problem.model.shape
        counts = divisors(1 if shape is None else shape.experts)
        return [count for count in counts if self.expert in (None, count)]

    def micro_batches(self, samples: int) -> list[int]:
        """Return the micro-batches of a replica: powers of two, or the one that is asked for.

        Args:
            samples: of a replica in a step.
        """
        if self.micro_batch is not None:
            sizes = [self.micro_batch]
        else:
            sizes = [2**i for i in range(self.most_micro_batch.bit_length())]
        return [x for x in sizes if x <= self.most_micro_batch and samples % x == 0]

    def sequences(self, problem: Hybrid, tp: int, context: int) -> list[bool]:
        """Return whether tp ranks may, and may not, share what lies between the matrices."""
        shape = problem.model.shape
        ranks = tp * (2 * context if context > 1 else 1)
        possible = tp > 1 and shape is not None and shape.sequence % ranks == 0
        choices = [False, True] if possible else [False]
        return [choice for choice in choices if self.sequence_parallel in (None, choice)]

    def shards(self, problem: Hybrid, tp: int, replicas: int, zero: int) -> list[int]:
        """Return the replicas among which ZeRO may share states: all, or those of one server.

        Args:
            problem: the problem.
            tp: ranks that share every matrix.
            replicas: context ranks counted.
            zero: the level.
        """
        if not zero:
            return [0] if not self.shard else []
        if self.shard is not None:
            fits = self.shard == 0 or (self.shard > 1 and replicas % self.shard == 0)
            return [self.shard] if fits else []
        near = problem.cluster.devices_per_server // tp
        return [0, near] if 1 < near < replicas and replicas % near == 0 else [0]

    def levels(self, pp: int, replicas: int) -> list[int]:
        """Return the ZeRO levels: none for one replica, gradients only without a pipeline."""
        if replicas == 1:
            return [0]
        return [level for level in sorted(self.zero) if pp == 1 or level <= 1]


def software_of(problem: Hybrid) -> Software:
    """Return how the problem's stack sends and sums gradients.

    At full precision gradients take as many bytes as weights, whatever the stack.
    """
    software = SOFTWARE.get(problem.stack.name, SOFTWARE["megatron-2022"])
    least = int(problem.machine.width)
    return replace(software, gradient_bytes=max(software.gradient_bytes, least))


def divisors(number: int) -> list[int]:
    """Return the whole numbers that divide a number, from 1."""
    return [x for x in range(1, number + 1) if number % x == 0]
