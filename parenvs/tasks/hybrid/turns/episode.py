"""One episode: the choices made so far, which are legal next, and the plan that they make."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parenvs.tasks.hybrid.plan import SCHEDULES, SENDS, HybridPlan, HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import software_of
from parenvs.tasks.hybrid.turns.actions import (
    ALL_LEFT,
    DATA,
    DEVICES,
    GLOBAL,
    GLOBAL_CHUNKS,
    GLOBAL_MICRO_BATCH,
    GLOBAL_SHARED,
    MODES,
    SERVER,
    SERVERS,
    SIZES,
    STAGE_DEVICES,
    STAGE_LAYERS,
    TO_THE_END,
    TP,
    TPS,
    ZEROS,
)
from parenvs.tasks.hybrid.turns.rules import TurnLimits, behind

_ZERO_LATER = np.arange(SIZES[DATA]) < 2 * len(MODES)
_ALL_DATA = np.ones(SIZES[DATA], dtype=bool)


class Episode:
    """A plan as it grows.

    An action is legal if some plan without a malformed field begins with it; whether one fits the
    memory is another question. ``sequence_parallel`` concerns the stages whose tp is at least 2; a
    plan without such a stage does not have it.

    Attributes:
        limits: what the problem allows.
        turn: number of the turn, see ``TURNS``.
        is_over: whether the plan is complete.
        micro_batch: samples of a micro-batch in a replica of the first stage; 0 before the first
            choice.
        chunks: pieces of the chain on each stage.
        shared: whether sequence parallelism was chosen.
        ends: last layer plus one of each stage in the first piece of the chain, so far.
        devices: of each stage, so far.
        tp: of each stage, so far.
        zero: of each stage, so far.
        mode: number of each stage's mode in ``MODES``, so far.
        servers: servers in the order of the plan, so far.
        samples: of a micro-batch over all replicas; 0 before the first stage's tp is known.
        micro_batches: M, or 0.
        first: first device of the stage that is being made.
    """

    __slots__ = (
        "_begun", "chunks", "devices", "ends", "first", "is_over", "limits", "micro_batch",
        "micro_batches", "mode", "samples", "servers", "shared", "tp", "turn", "zero",
    )  # fmt: skip

    def __init__(self, limits: TurnLimits) -> None:
        """Start with nothing chosen."""
        self.limits = limits
        self.restart()

    def restart(self) -> None:
        """Forget all choices."""
        self.turn, self.is_over = GLOBAL, False
        self.micro_batch, self.chunks, self.shared = 0, 1, False
        self.samples = self.micro_batches = self.first = self._begun = 0
        self.ends: list[int] = []
        self.devices: list[int] = []
        self.tp: list[int] = []
        self.zero: list[int] = []
        self.mode: list[int] = []
        self.servers: list[int] = []

    @property
    def per_chunk(self) -> int:
        """Layers of a piece of the chain."""
        return self.limits.layers // self.chunks

    @property
    def is_last(self) -> bool:
        """Whether the stage that is being made ends the chain."""
        return self.ends[-1] == self.per_chunk

    def legal(self) -> np.ndarray:
        """Return which choices of this turn are legal, bool of the turn's size."""
        turn, limits = self.turn, self.limits
        if turn == GLOBAL:
            return limits.opening.copy()
        legal = np.zeros(SIZES[turn], dtype=bool)
        if turn == STAGE_LAYERS:
            begin = self.ends[-1] if self.ends else 0
            legal[begin : max(self._longest(), begin)] = True
            count = len(self.ends) + 1
            legal[TO_THE_END] = self.chunks == 1 or (count > 1 and self.micro_batches % count == 0)
        elif turn == STAGE_DEVICES:
            left = limits.devices - self.first
            for number, devices in enumerate(DEVICES):
                if devices > left:
                    break
                legal[number] = any(self._allowed(devices))
            legal[ALL_LEFT] = self.is_last and any(self._allowed(left))
        elif turn == SERVER:
            legal[: limits.servers] = True
            legal[self.servers] = False
        elif turn == TP:
            legal[:] = list(self._allowed(self.devices[-1]))
        else:
            single = len(self.ends) == 1 and self.is_last
            return _ALL_DATA.copy() if single else _ZERO_LATER.copy()
        return legal

    def act(self, choice: int) -> None:
        """Take a legal choice."""
        turn = self.turn
        if turn == GLOBAL:
            self.micro_batch = int(GLOBAL_MICRO_BATCH[choice])
            self.chunks = int(GLOBAL_CHUNKS[choice])
            self.shared = bool(GLOBAL_SHARED[choice])
            self.turn = STAGE_LAYERS
        elif turn == STAGE_LAYERS:
            self.ends.append(self.per_chunk if choice == TO_THE_END else choice + 1)
            if self.limits.unit:
                self._place(self.limits.unit)
            else:
                self.turn = STAGE_DEVICES
        elif turn == STAGE_DEVICES:
            left = self.limits.devices - self.first
            self._place(left if choice == ALL_LEFT else DEVICES[choice])
        elif turn == SERVER:
            self.servers.append(choice)
            if len(self.servers) == self._begun:
                self.turn = TP
        elif turn == TP:
            self.tp.append(TPS[choice])
            if len(self.tp) == 1:
                self.samples = self.micro_batch * (self.devices[0] // TPS[choice])
                self.micro_batches = self.limits.batch // self.samples
            self.turn = DATA
        else:
            zero, mode = divmod(choice, len(MODES))
            self.zero.append(ZEROS[zero])
            self.mode.append(mode)
            self.first += self.devices[-1]
            self.is_over = self.is_last
            self.turn = STAGE_LAYERS

    def _place(self, devices: int) -> None:
        """Give the stage its devices; the servers that it begins are named next."""
        self.devices.append(devices)
        self.turn = TP
        if self.limits.rules.order == "free":
            self._begun = -(-(self.first + devices) // self.limits.inside)
            if self._begun > len(self.servers):
                self.turn = SERVER

    def _longest(self) -> int:
        """Largest end of a stage behind which another one can come; below 1 if none can."""
        limits, count = self.limits, len(self.ends)
        if not count:
            return limits.longest_first(self.micro_batch, self.chunks, self.shared)
        left = (limits.devices - self.first) // limits.least - 1
        if self.chunks == 1:
            return self.per_chunk - 1 if left >= 1 and count + 2 <= SERVERS else 0
        return self.per_chunk - behind(self.micro_batches, count, left)

    def _allowed(self, devices: int) -> Iterator[bool]:
        """Yield which of ``TPS`` the stage may have on a number of devices."""
        limits, count, last = self.limits, len(self.ends) - 1, self.is_last
        first, left = self.first, limits.devices - self.first - devices
        enough = last or left >= limits.least
        spans = first // limits.inside != (first + devices - 1) // limits.inside
        for ranks, possible in zip(TPS, limits.shared if self.shared else limits.tp, strict=True):
            ok = enough and possible and devices % ranks == 0 and not (spans and first % ranks)
            if ok:
                replicas = devices // ranks
                if count:
                    ok, micro_batches = self.samples % replicas == 0, self.micro_batches
                else:
                    micro_batches, rest = divmod(limits.batch, self.micro_batch * replicas)
                    ok = not rest
                if ok and self.chunks > 1 and not last:
                    more = behind(micro_batches, count, left // limits.least)
                    ok = more <= self.per_chunk - self.ends[-1]
            yield ok

    def plan(self, problem: Hybrid, modes: list[tuple[int, int]]) -> HybridPlan:
        """Return the plan of a complete episode.

        Args:
            problem: the problem.
            modes: of each stage the layers recomputed in full, and selectively.
        """
        per, stages, begin = self.per_chunk, [], 0
        for k, end in enumerate(self.ends):
            counts = zip(("full", "selective"), modes[k], strict=True)
            stages.append(
                HybridStage(
                    layers=tuple((c * per + begin, c * per + end) for c in range(self.chunks)),
                    devices=self.devices[k],
                    tp=self.tp[k],
                    zero=self.zero[k],
                    recompute=dict(counts),
                )
            )
            begin = end
        software = software_of(problem)
        rest = (x for x in range(self.limits.servers) if x not in set(self.servers))
        return problem.plan(
            stages,
            self.micro_batch,
            schedule=SCHEDULES[1] if self.chunks > 1 else SCHEDULES[0],
            chunks=self.chunks,
            sequence_parallel=self.shared and max(self.tp) > 1,
            p2p=SENDS[0] if software.blocking else SENDS[1],
            gradient_bytes=software.gradient_bytes,
            gradient_overlap=software.gradient_overlap,
            servers=(*self.servers, *rest) if self.servers else (),
        )
