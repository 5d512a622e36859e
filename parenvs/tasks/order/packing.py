"""Packs documents into micro-batches of equally many tokens, and says what attention sees of them.

Documents are laid end to end and cut every T tokens, as long-context training does; a token attends
to its own document only (arXiv 2405.13226, section 1, calls it concat-and-chunk with masked
attention across documents). Then all micro-batches have the same products, kernels, sends and
activations, but attention takes time with the sum of the squared lengths of their documents.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parenvs.cluster import Cluster
from parenvs.core.fields import is_integer
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import SENDS, HybridPlan, HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape

FIELDS = ("model", "tokens", "cluster", "layers", "squares")
"""Fields of a packed step in a file."""
TOKENS = (1, 1 << 22)
"""Least and most tokens of a micro-batch."""
MOST_STAGES, MOST_MICRO_BATCHES = 64, 1024
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
            again = (("full", count),) if count else ()
            layers = ((first, first + count),)
            stages.append(HybridStage(layers=layers, devices=width, tp=width, recompute=again))
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
    def from_json(
        cls, content: dict[str, Any], shapes: dict[str, TransformerShape], where: str
    ) -> PackedStep:
        """Make a step of an object of JSON types.

        Args:
            content: the object.
            shapes: models by name.
            where: the file, for errors.

        Raises:
            ParenvsError: a field is missing or impossible.
        """
        for key in FIELDS:
            if key not in content:
                raise ParenvsError(f"{where}: field {key!r} is missing")
        name, tokens = content["model"], content["tokens"]
        if not isinstance(name, str) or name not in shapes:
            hint = did_you_mean(str(name), shapes)
            raise ParenvsError(f"{where}: field 'model': unknown shape {shown(name)}{hint}")
        if not is_integer(tokens) or not TOKENS[0] <= tokens <= TOKENS[1]:
            raise ParenvsError(
                f"{where}: field 'tokens' must be a whole number from {TOKENS[0]} to {TOKENS[1]}, "
                f"not {shown(tokens)}"
            )
        shape = replace(shapes[name], sequence=tokens)
        try:
            cluster = Cluster.parse(content["cluster"])
        except ValueError as error:
            raise ParenvsError(f"{where}: field 'cluster': {error}") from None
        layers = _counts(content, "layers", 0, shape.layers, MOST_STAGES, where)
        squares = _counts(content, "squares", tokens, tokens**2, MOST_MICRO_BATCHES, where)
        if len(layers) != cluster.servers or sum(layers) != shape.layers:
            raise ParenvsError(
                f"{where}: field 'layers' must share {shape.layers} layers among "
                f"{cluster.servers} servers, not {sum(layers)} among {len(layers)}"
            )
        return cls(shape, cluster, layers, squares)


def _counts(
    content: dict[str, Any], key: str, least: int, most: int, size: int, where: str
) -> tuple[int, ...]:
    """Return a field that is a list of whole numbers in a range."""
    value = content[key]
    is_list = isinstance(value, list) and 1 <= len(value) <= size
    if not is_list or not all(is_integer(x) and least <= x <= most for x in value):
        raise ParenvsError(
            f"{where}: field {key!r} must be a list of 1 to {size} whole numbers from {least} to "
            f"{most}"
        )
    return tuple(value)
