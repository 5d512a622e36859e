"""What a stage of exactly one server costs, by the server's speed: tables of the searches.

The figures are those of ``parenvs.agents.hybrid.tables``, that is of the judge's formulas,
for stages of one server, ordered by speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from parenvs.agents.hybrid.labels import stage_of
from parenvs.agents.hybrid.sends import send_between
from parenvs.agents.hybrid.tables import FIRST, INNER, Setting, StageTables
from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid.plan import HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, software_of

ONE_SERVER = Constraints(chunks=1, context=1, expert=1)
"""What plans of a hetero problem keep to beside stages of one server."""
NEVER = 1e200
"""Seconds of a stage that does not fit."""
_UNKNOWN = ("pp", "devices", "pinned", "idle", "uneven", "shard")
"""Constraints that the searches over the order of servers do not know."""


class Costs(NamedTuple):
    """Costs of stages, (U, C, Q + 1) each: by speed, split and class of runs; the last has none.

    Attributes:
        seconds: forward and backward pass of a micro-batch; ``NEVER`` where a stage does not fit.
        hiding: backward pass of a micro-batch.
        exposed: what the stage's last backward pass leaves of its gradients' collectives.
        update: optimiser.
        least: the least that any plan leaves of them, however much it recomputes.
    """

    seconds: np.ndarray
    hiding: np.ndarray
    exposed: np.ndarray
    update: np.ndarray
    least: np.ndarray


class ServerTables:
    """Costs of stages of one server in a setting.

    Attributes:
        problem: the problem.
        setting: what all stages share; ``devices`` are those of the cluster.
        speeds: (U,) ascending.
        tp: (C,) ranks that share every matrix.
        zero: (C,) ZeRO level.
        sent: (C,) seconds of the send in front of a stage, one way, for each element per sample.
        hop: (C,) seconds of it, once.
        sizes: (w,) layers that a stage can have and still be shorter than ``longest``.
        number: (n+1, n+1) class of the layers [i, j) among the Q that are short enough, else Q.
        work: (n+1,) least server-seconds of a micro-batch at speed 1 in the layers before each
            boundary: speed times seconds, for any split and any of the speeds.
    """

    def __init__(
        self,
        problem: Hybrid,
        setting: Setting,
        speeds: np.ndarray,
        longest: float = np.inf,
        limits: Constraints = ONE_SERVER,
    ) -> None:
        """Ask the formulas for every split, speed and run.

        Args:
            problem: the problem.
            setting: what all stages share.
            speeds: of servers; each once.
            longest: seconds; runs that take longer even alone and with nothing recomputed are out.
            limits: constraints of the stages.
        """
        check(problem)
        self.problem, self.setting, self.longest = problem, setting, longest
        self.speeds = np.unique(speeds)
        inside = problem.cluster.devices_per_server
        stand_in = replace(
            problem,
            cluster=replace(
                problem.cluster, servers=len(self.speeds), speeds=tuple(self.speeds.tolist())
            ),
        )
        inner = replace(limits, stage_devices=inside)
        self.stages = StageTables(stand_in, setting, inner, kinds=longest <= 0)
        configs, count = self.stages.configs, len(self.speeds)
        self.is_possible = len(configs.tp) > 0
        if not self.is_possible:
            return
        self.tp, self.zero = (x.reshape(-1, count)[:, 0] for x in (configs.tp, configs.zero))
        own = np.arange(len(configs.tp))
        sent, hop = send_between(stand_in, setting, configs, own, own, False)
        self.sent, self.hop = (x.reshape(-1, count)[:, 0] for x in (sent, hop))
        weighted = self.stages.kind_seconds * configs.speed[:, None]
        least = weighted.min(axis=0)[list(problem.model.kind_of)]
        self.work = np.append(0.0, least.cumsum())
        short = np.flatnonzero(self.stages.shortest <= longest)
        numbers = np.full(len(self.stages.size) + 1, len(short))
        numbers[short] = np.arange(len(short))
        self.number = numbers[self.stages.classes]
        self._short = self.stages.of(short)
        self.sizes = np.arange(0, int(self._short.size.max(initial=0)) + 1)
        # Work of each class: that of its first run.
        first, end = self._short.runs.T
        self.class_work = self.work[end] - self.work[first]
        self._memo: dict[tuple[int, int], Costs] = {}
        self._made: dict[tuple[int, int, int, int, tuple[int, int]], HybridStage] = {}

    def stage(
        self, place: int, left: int, speed: int, split: int, layers: tuple[int, int]
    ) -> HybridStage:
        """Return a stage as plans have it, with as few layers recomputed as memory asks.

        Args:
            place: of the stage.
            left: stages from this one to the last, itself included.
            speed: number of its server's.
            split: number of its tp and ZeRO.
            layers: half-open range.
        """
        key = place, min(left, self.setting.micro_batches), speed, split, layers
        if key not in self._made:
            config = split * len(self.speeds) + speed
            number = int(self.stages.classes[layers])
            self._made[key] = stage_of(self.stages, place, left, config, number, layers)
        return self._made[key]

    def costs(self, place: int, left: int) -> Costs:
        """Return the costs of stages.

        Args:
            place: of the stages: ``FIRST``, ``INNER`` or ``LAST``.
            left: stages from this one to the last, itself included.
        """
        key = place, min(left, self.setting.micro_batches)
        if key not in self._memo:
            asked = self._short.costs(place, key[1], self.longest)
            reduction = self._short.reduction(place)
            size = np.maximum(self._short.size, 1)
            overlap = self.setting.software.gradient_overlap
            least = reduction / size if overlap else reduction
            seconds = np.minimum(asked.seconds, NEVER)  # no 0 x infinity with one micro-batch
            columns = (seconds, *asked[1:], least)
            self._memo[key] = Costs(
                *(self._arranged(x, NEVER if i == 0 else 0.0) for i, x in enumerate(columns))
            )
        return self._memo[key]

    def _arranged(self, by_config: np.ndarray, beyond: float) -> np.ndarray:
        """(U, C, Q + 1) of (C x U, Q) figures."""
        splits, speeds, count = len(self.tp), len(self.speeds), by_config.shape[1]
        arranged = np.full((speeds, splits, count + 1), beyond)
        arranged[..., :-1] = by_config.reshape(splits, speeds, count).transpose(1, 0, 2)
        return arranged

    @cached_property
    def link(self) -> np.ndarray:
        """(C, n+1) seconds, one way, of the send in front of a stage that begins at a boundary."""
        crossing = self.problem.model.crossing_after
        return self.sent[:, None] * crossing + self.hop[:, None]

    @cached_property
    def least_hiding(self) -> np.ndarray:
        """(n+1,) least seconds of a backward pass through the layers before each boundary."""
        return self.stages.least_hiding

    @cached_property
    def server_update(self) -> np.ndarray:
        """(n+1,) least server-seconds of the optimiser in the layers before each boundary."""
        return self.stages.device_update / self.problem.cluster.devices_per_server

    def most_work(self, longest: float) -> np.ndarray:
        """(U,) most work of the layers of one stage, at each speed.

        Args:
            longest: seconds that no stage may exceed.
        """
        found = np.zeros(len(self.speeds))
        for place in (FIRST, INNER):
            seconds = self.costs(place, 1).seconds.min(axis=1)[:, :-1]
            held = np.where(seconds <= min(longest, NEVER / 2), self.class_work, 0.0)
            found = np.maximum(found, held.max(axis=1, initial=0.0))
        return found

    def root_bound(self, most: int | None = None) -> float:
        """Lower bound of the seconds of a step of every plan of the setting (docs/hetero.md).

        ``M work / sum_j s_j q^j`` over the cluster's speeds, the fastest first, with the tables'
        own least work; it needs the slowest speed among the tables' alone.

        Args:
            most: stages, at most (default: as many as servers).
        """
        cluster, m = self.problem.cluster, self.setting.micro_batches
        speeds = np.sort(cluster.speeds or (1.0,) * cluster.servers)[::-1][:most]
        turns = (1.0 - 1.0 / m) ** np.arange(len(speeds))
        return float(m * self.work[-1] / (speeds * turns).sum())


def check(problem: Hybrid) -> None:
    """Raise an error for a problem that the searches over the order of servers do not know.

    Raises:
        ParenvsError: sends block, or differ by the stage in front; or weights are tied.
    """
    if software_of(problem).blocking or not problem.stack.scatter_gather:
        raise ParenvsError(
            f"stack {problem.stack.name}: planners of the order of servers need overlapped sends "
            "of shared activations; take exact, or a stack like llama-2024"
        )
    if problem.model.tied_parameters:
        raise ParenvsError(
            f"{problem.model.name}: planners of the order of servers do not know tied weights; "
            "take exact"
        )


def one_server(limits: Constraints | None) -> Constraints:
    """Return constraints together with those of one server for each stage.

    Raises:
        ParenvsError: they hold something that planners of the order of servers do not know.
    """
    if limits is None:
        return ONE_SERVER
    for name in _UNKNOWN:
        if getattr(limits, name) != getattr(ONE_SERVER, name):
            raise ParenvsError(
                f"planners of the order of servers do not know constraint {name}; leave it out, or "
                "take exact, which keeps the servers in order"
            )
    for name in ("chunks", "context", "expert"):
        if getattr(limits, name) not in (None, 1):
            raise ParenvsError(
                f"planners of the order of servers have {name} 1; leave out {name}, or take another"
            )
    return replace(limits, chunks=1, context=1, expert=1)


def settings(problem: Hybrid, limits: Constraints = ONE_SERVER) -> Iterator[Setting]:
    """Yield everything that the stages of plans may share: micro-batches, sequence parallelism.

    Args:
        problem: the problem.
        limits: the constraints.
    """
    software, batch = software_of(problem), problem.batch
    inside = problem.cluster.devices_per_server
    sequences = [False, True] if limits.sequence_parallel is None else [limits.sequence_parallel]
    for samples in range(1, min(batch, inside * limits.most_micro_batch) + 1):
        if batch % samples == 0:
            for sequence in sequences:
                yield Setting(
                    batch // samples, samples, problem.cluster.devices, sequence, 1, 1, software
                )
