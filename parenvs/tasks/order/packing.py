"""Packs documents into micro-batches of equally many tokens, and says what attention sees of them.

Documents are laid end to end and cut every T tokens, as long-context training does; a token attends
to its own document only (arXiv 2405.13226, section 1, calls it concat-and-chunk with masked
attention across documents). Then all micro-batches have the same products, kernels, sends and
activations, but attention takes time with the sum of the squared lengths of their documents.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.fields import Index, Text, whole, words
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import SENDS, HybridPlan, HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape

TOKENS = (1, 1 << 22)
"""Least and most tokens of a micro-batch."""
MAX_STAGES, MAX_MICRO_BATCHES = 64, 1024
"""Most stages and micro-batches of a step in a file."""


def squares_of(lengths: np.ndarray, tokens: int, count: int) -> np.ndarray:
    """Pack documents into micro-batches, and return the sums of their squared lengths.

    Args:
        lengths: of documents, whole numbers from 1, with a sum of at least ``tokens * count``.
        tokens: T, of each micro-batch.
        count: M.

    Returns:
        (M,) int64. A document that lies across the end of a micro-batch is cut there.
    """
    ends = np.asarray(lengths, dtype=np.int64).cumsum()
    cuts = np.arange(1, count + 1, dtype=np.int64) * tokens
    borders = np.union1d(ends[ends <= cuts[-1]], cuts)
    pieces = np.diff(borders, prepend=0)
    home = (borders - 1) // tokens
    return np.bincount(home, weights=(pieces * pieces).astype(float), minlength=count).astype(int)


@dataclass(frozen=True)
class PackedStep:
    """A training step of packed micro-batches on a pipeline of whole servers.

    A stage is a server, whose devices share every matrix (tp) and the tokens between the matrices
    (sequence parallelism); everything is recomputed, sends block, and there is one replica.

    Attributes:
        shape: the model, whose ``sequence`` are the tokens T of a micro-batch.
        cluster: S servers, of speeds that may differ.
        layers: (S) layers of each stage.
        squares: (M) sum of the squared lengths of the documents of each micro-batch.
    """

    shape: TransformerShape
    cluster: Cluster
    layers: tuple[int, ...]
    squares: tuple[int, ...]

    @property
    def hybrid(self) -> Hybrid:
        """The step as a hybrid problem."""
        return Hybrid(HybridModel.of_shape(self.shape), self.cluster, len(self.squares))

    def plan(self, hybrid: Hybrid) -> HybridPlan:
        """Return the hybrid plan of the stages.

        Args:
            hybrid: what ``hybrid`` returned.
        """
        width, first, stages = self.cluster.devices_per_server, 0, []
        for count in self.layers:
            layers = ((first, first + count),)
            stages.append(
                HybridStage(layers=layers, devices=width, tp=width, recompute={"full": count})
            )
            first += count
        return hybrid.plan(stages, 1, sequence_parallel=width > 1, p2p=SENDS[0])

    def seconds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds of the passes, forward and backward, (S, M) each.

        Raises:
            ParenvsError: the plan of the stages breaks a rule or does not fit, or the stack does
                not fuse attention, which alone takes less time for packed documents.
        """
        hybrid = self.hybrid
        plan = self.plan(hybrid)
        if hybrid.machine.attention_flops is None:
            raise ParenvsError(
                f"stack {hybrid.stack.name} does not fuse attention, so micro-batches packed of "
                "documents take equally long; choose h100 devices, whose stack does"
            )
        report = hybrid.report(plan)
        if not report.legal:
            raise ParenvsError(f"the stages cannot be: {report.reasons[0]}")
        attended = np.array(self.squares) / self.shape.sequence
        return hybrid.micro_batch_seconds(plan, attended)

    def to_json(self) -> dict[str, Any]:
        """Return the step as an object of JSON types; the model by its name."""
        return {
            "model": self.shape.name,
            "tokens": self.shape.sequence,
            "cluster": self.cluster.to_json(),
            "layers": list(self.layers),
            "squares": list(self.squares),
        }

    @classmethod
    def of_row(cls, row: StepRow, shapes: dict[str, TransformerShape], where: str) -> PackedStep:
        """Make a step of a row of a file.

        Args:
            row: the row.
            shapes: models by name.
            where: the file, for errors.

        Raises:
            ParenvsError: a field is impossible.
        """
        if row.model not in shapes:
            hint = did_you_mean(row.model, shapes)
            raise ParenvsError(f"{where}: field 'model': unknown shape {shown(row.model)}{hint}")
        shape, tokens = replace(shapes[row.model], sequence=row.tokens), row.tokens
        if len(row.layers) != row.cluster.servers or sum(row.layers) != shape.layers:
            raise ParenvsError(
                f"{where}: field 'layers' must share {shape.layers} layers among "
                f"{row.cluster.servers} servers, not {sum(row.layers)} among {len(row.layers)}"
            )
        if not all(tokens <= x <= tokens**2 for x in row.squares):
            raise ParenvsError(
                f"{where}: field 'squares' must be whole numbers from {tokens} to {tokens**2}"
            )
        return cls(shape, row.cluster, row.layers, row.squares)


@dataclass(frozen=True)
class StepRow:
    """A packed step in a file; the model by its name."""

    model: Text
    tokens: Annotated[int, whole(*TOKENS)]
    cluster: Cluster
    layers: Annotated[
        tuple[Index, ...],
        words(f"a list of 1 to {MAX_STAGES} whole numbers", min_length=1, max_length=MAX_STAGES),
    ]
    squares: Annotated[
        tuple[Annotated[int, whole(1, TOKENS[1] ** 2)], ...],
        words(
            f"a list of 1 to {MAX_MICRO_BATCHES} whole numbers",
            min_length=1,
            max_length=MAX_MICRO_BATCHES,
        ),
    ]
