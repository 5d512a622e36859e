"""Which choices some plan begins with that fits the memory: exact, by dynamic programming.

A stage holds ``a + f k`` bytes on a device: weights, states and work, and f micro-batches in flight
times what one keeps. f follows from the stages behind it, so a stage in place s fits plans with up
to some number of stages behind. From the last stage to the first, ``fits[k][l, e]`` says whether
the layers from l on can be held by exactly k stages from device e on. A choice is left if some
number of stages behind it fits those layers, this stage, and all stages in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.stages import Stages
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
    SIZES,
    STAGE_DEVICES,
    STAGE_LAYERS,
    TO_THE_END,
    TP,
    TPS,
    ZEROS,
)
from parenvs.tasks.hybrid.turns.columns import Chains, Columns
from parenvs.tasks.hybrid.turns.outcome import Choices, outcome

FIRST, INNER, LAST = range(3)
_WIDER = (256, 512)  # devices of a last stage that takes all that are left
_CUT = 1.0 - 1e-12  # of a stage's micro-batches in flight, against rounding
_PLAIN = MODES[:3]


class Begun(NamedTuple):
    """The beginning of a plan.

    Attributes:
        turn: whose choice is next, see ``TURNS``.
        micro_batch: samples of a micro-batch in a replica of the first stage.
        chunks: pieces of the chain on each stage.
        shared: whether sequence parallelism was chosen.
        samples: of a micro-batch over all replicas; 0 before the first stage's tp is known.
        first: first device of the stage that is being made.
        stages: number of stages in front of it.
        ends: last layer plus one of each stage in the first piece of the chain. Here and below, the
            last entry is of the stage that is being made, and means nothing before it is chosen.
        devices: of each stage.
        tp: of each stage.
        zero: of each stage.
        mode: number of each stage's mode in ``MODES``.
    """

    turn: int
    micro_batch: int
    chunks: int
    shared: bool
    samples: int = 0
    first: int = 0
    stages: int = 0
    ends: Sequence[int] = (0,)
    devices: Sequence[int] = (0,)
    tp: Sequence[int] = (0,)
    zero: Sequence[int] = (0,)
    mode: Sequence[int] = (0,)


@dataclass(frozen=True)
class Shared:
    """What all stages of a plan share, as far as memory goes.

    Attributes:
        samples: of a micro-batch over all replicas.
        chunks: pieces of the chain on each stage.
        shared: whether sequence parallelism was chosen.
    """

    samples: int
    chunks: int
    shared: bool


class Completable:
    """Answers for one problem; tables are made when they are first asked for."""

    def __init__(self, columns: Columns) -> None:
        """Take a problem, the first of ``columns``."""
        self.columns, self.limits = columns, columns.limits[0]
        self._rooms: dict[Shared, Room] = {}
        self._opening: dict[int, bool] = {}

    @property
    def has_plan(self) -> bool:
        """Whether some plan of the turns fits the memory."""
        return any(self._opens(choice) for choice in np.flatnonzero(self.limits.opening).tolist())

    def choices(self, begun: Begun, legal: np.ndarray) -> np.ndarray:
        """Return which choices of a turn some plan that fits begins with.

        Args:
            begun: the choices so far.
            legal: bool, the choices of its turn that are legal; others are of no meaning.
        """
        turn = begun.turn
        if turn == GLOBAL:
            return np.array([self._opens(choice) for choice in range(SIZES[GLOBAL])])
        if turn == SERVER:
            return np.ones(SIZES[SERVER], dtype=bool)
        if turn == STAGE_LAYERS:
            return self._ends(begun, legal)
        left = np.zeros(SIZES[turn], dtype=bool)
        end = np.array(begun.ends[-1:])
        if turn == STAGE_DEVICES:
            remaining = self.limits.devices - begun.first
            for number, devices in enumerate((*DEVICES, remaining)):
                if devices <= remaining and (number < ALL_LEFT or end[0] == self._per(begun)):
                    left[number] = self._any_tp(begun, end, devices)[0]
            return left
        devices = begun.devices[-1]
        if turn == TP:
            for number, tp in enumerate(TPS):
                left[number] = self._fits(begun, end, devices, tp, None)[0]
            return left
        for choice in range(SIZES[DATA]):
            pair = divmod(choice, len(MODES))
            left[choice] = self._fits(begun, end, devices, begun.tp[-1], pair)[0]
        return left

    def _per(self, begun: Begun) -> int:
        """Layers of a piece of the chain."""
        return self.limits.layers // begun.chunks

    def _ends(self, begun: Begun, legal: np.ndarray) -> np.ndarray:
        """(128,) bool, which legal ends of the next stage some plan that fits has."""
        left = np.zeros(SIZES[STAGE_LAYERS], dtype=bool)
        remaining = self.limits.devices - begun.first
        choices = np.flatnonzero(legal[:TO_THE_END])
        options = (self.limits.unit,) if self.limits.unit else DEVICES
        for devices in options:
            if devices <= remaining and len(choices):
                left[choices] |= self._any_tp(begun, choices + 1, devices)
        if legal[TO_THE_END]:
            sizes = options if self.limits.unit else {*options, remaining}
            end = np.array([self._per(begun)])
            left[TO_THE_END] = any(
                self._any_tp(begun, end, size)[0] for size in sizes if size <= remaining
            )
        return left

    def _opens(self, choice: int) -> bool:
        """Whether some plan that fits begins with a choice of the global turn."""
        if choice not in self._opening:
            fits = False
            if self.limits.opening[choice]:
                settings = (
                    GLOBAL_MICRO_BATCH[choice],
                    GLOBAL_CHUNKS[choice],
                    GLOBAL_SHARED[choice],
                )
                micro_batch, chunks, shared = (x.item() for x in settings)
                legal = np.arange(SIZES[STAGE_LAYERS]) < self.limits.longest_first(
                    micro_batch, chunks, shared
                )
                legal[TO_THE_END] = chunks == 1
                begun = Begun(STAGE_LAYERS, micro_batch, chunks, shared)
                fits = bool(self._ends(begun, legal).any())
            self._opening[choice] = fits
        return self._opening[choice]

    def _any_tp(self, begun: Begun, ends: np.ndarray, devices: int) -> np.ndarray:
        """Return for which ends a stage on a number of devices has some tp that fits, bool."""
        found = np.zeros(len(ends), dtype=bool)
        for tp in TPS:
            found |= self._fits(begun, ends, devices, tp, None)
        return found

    def _fits(
        self,
        begun: Begun,
        ends: np.ndarray,
        devices: int,
        tp: int,
        data: tuple[int, int] | None,
    ) -> np.ndarray:
        """Return for which ends of the stage that is being made some plan that fits has it, bool.

        Args:
            begun: the choices so far.
            ends: last layer plus one of the stage, in the first piece of the chain.
            devices: its devices.
            tp: its tp.
            data: numbers of its ZeRO level and mode; None for any.
        """
        limits, count = self.limits, begun.stages
        none = np.zeros(len(ends), dtype=bool)
        possible = limits.shared if begun.shared else limits.tp
        first, inside = begun.first, limits.inside
        torn = first % tp and first // inside != (first + devices - 1) // inside
        if not possible[TPS.index(tp)] or devices % tp or torn:
            return none
        replicas = devices // tp
        samples = begun.samples if count else begun.micro_batch * replicas
        if samples % replicas or limits.batch % samples:
            return none
        single = (ends == self._per(begun)) & (count == 0)
        if single.any():
            none[single] = begun.chunks == 1 and self._alone(begun, devices, tp, data)
        if single.all() or (data is not None and data[0] > 1):
            return none
        room = self._room(Shared(samples, begun.chunks, begun.shared))
        begin = begun.ends[count - 1] if count else 0
        own = room.flights(FIRST if count == 0 else INNER, begin, ends, devices, tp, data)
        last = ends == self._per(begun)
        if last.any():
            own = np.where(last, room.flights(LAST, begin, ends, devices, tp, data), own)
        in_front = [
            float(
                room.flights(
                    FIRST if k == 0 else INNER,
                    begun.ends[k - 1] if k else 0,
                    np.array(begun.ends[k : k + 1]),
                    begun.devices[k],
                    begun.tp[k],
                    (ZEROS.index(begun.zero[k]), begun.mode[k]),
                )[0]
            )
            for k in range(count)
        ]
        completes = room.completes(in_front, own, ends, first + devices)
        return np.where(single, none, completes)

    def _alone(self, begun: Begun, devices: int, tp: int, data: tuple[int, int] | None) -> bool:
        """Whether a plan of this one stage fits."""
        modes = range(len(_PLAIN))
        if data is None:
            pairs = [(zero, mode) for zero in range(len(ZEROS)) for mode in modes]
        else:
            pairs = [(data[0], mode) for mode in modes if data[1] in (mode, len(_PLAIN))]
        one = np.ones((1, len(pairs)), dtype=np.int64)
        choices = Choices(
            rows=np.zeros(len(pairs), dtype=np.int64),
            stages=one[0],
            micro_batch=one[0] * begun.micro_batch,
            chunks=one[0],
            shared=one[0] * int(begun.shared) > 0,
            ends=one * self.limits.layers,
            devices=one * devices,
            tp=one * tp,
            zero=np.array([[ZEROS[zero] for zero, _ in pairs]]),
            mode=np.array([[mode for _, mode in pairs]]),
        )
        return bool((outcome(self.columns, choices).excess <= 0).any())

    def _room(self, shared: Shared) -> Room:
        """Return the tables for what all stages share."""
        if shared not in self._rooms:
            self._rooms[shared] = Room(self.columns, shared)
        return self._rooms[shared]


class Room:
    """Tables for plans that share samples, chunks and sequence parallelism.

    Attributes:
        micro_batches: M.
    """

    def __init__(self, columns: Columns, shared: Shared) -> None:
        """Ask the formulas for single layers on every kind of stage."""
        self.columns, self.shared, self.limits = columns, shared, columns.limits[0]
        self.micro_batches = self.limits.batch // shared.samples
        self.per = self.limits.layers // shared.chunks
        sizes = (self.limits.unit,) if self.limits.unit else (*DEVICES, *_WIDER)
        possible = self.limits.shared if shared.shared else self.limits.tp
        self.configs = [
            (devices, tp)
            for devices in sizes
            for tp, ok in zip(TPS, possible, strict=True)
            if ok and devices <= self.limits.devices and devices % tp == 0
            and shared.samples % (devices // tp) == 0
        ]  # fmt: skip
        self.number = {config: number for number, config in enumerate(self.configs)}
        self._linear()
        kinds = columns.kinds_before[0]
        pieces = np.arange(shared.chunks) * self.per
        self._before = np.stack([kinds[start : start + self.per + 1] for start in pieces])
        self._suffixes: dict[int, list[np.ndarray]] = {}
        self._in_flight: dict[int, list[float]] = {}

    def _linear(self) -> None:
        """Bytes by place, ZeRO 0 or 1, mode and configuration: of no layer, of one of each kind.

        ``_states`` (3, 2, C, 1 + K) does not grow with micro-batches in flight, ``_kept``
        (3, 3, C, 1 + K) does, but for what the head keeps (``_once``, (3, C)), and ``_working``
        (3, 3, C, 1 + K) is the largest of what the layers of a stage need.
        """
        columns, count = self.columns, len(self.configs)
        kinds = columns.kinds_before.shape[-1]
        contents = np.concatenate([np.zeros((kinds, 1)), np.eye(kinds)], axis=1)  # (K, 1 + K)
        shape = (2, len(_PLAIN), count, 1 + kinds)  # ZeRO, mode, configuration, contents
        zero, mode, config, content = (x.ravel() for x in np.indices(shape))
        devices, tp = (np.array(column)[config] for column in zip(*self.configs, strict=True))
        size = len(zero)

        def three(column: np.ndarray) -> np.ndarray:
            return np.broadcast_to(column, (3, size))

        layers = np.broadcast_to(contents[:, None, content], (kinds, 3, size))
        full, selective = (mode == MODES.index(name) for name in ("full", "selective"))
        ones, zeros = np.ones(size), np.zeros((3, size))
        stages = Stages(
            layers=layers, first_chunk=layers, full=layers * full, selective=layers * selective,
            on=zeros, back=zeros, first=np.ones((3, size)), links=zeros[1:], tp=three(tp),
            dp=three(devices // tp), zero=three(zero), device=three(0 * tp), speed=three(ones),
            samples=self.shared.samples * ones, micro_batches=ones, chunks=ones, context=1,
            sequence_parallel=np.broadcast_to(self.shared.shared & (tp > 1), size), expert=1,
            blocking=False, gradient_bytes=float(columns.software.gradient_bytes),
            gradient_overlap=False,
        )  # fmt: skip
        rows = np.zeros(size, dtype=np.int64)
        model: Any = Chains(columns, rows, stages.split)
        held = formulas.memory(model, columns.machine(rows), stages)
        places = (3, *shape)
        states = (held.total - held.activations - held.working).reshape(places)
        kept, working = held.activations.reshape(places), held.working.reshape(places)
        self._states = states[:, :, 0]
        self._kept, self._working = kept[:, 0], working[:, 0]
        self._once = self._kept[:, 0, :, 0].copy()
        self._once[FIRST] = 0.0  # what the embedding keeps, it keeps of every micro-batch
        self._kept = self._kept - self._once[:, None, :, None]

    def _of_mode(
        self, place: int, counts: np.ndarray, zero: int, mode: int, configs: np.ndarray
    ) -> np.ndarray:
        """(c, ...) micro-batches in flight that stages have memory for; -1 if states do not fit.

        Args:
            place: of the stages.
            counts: (..., K) layers of each kind.
            zero: 0 or 1.
            mode: number in ``MODES``, not the last.
            configs: (c,) numbers of configurations.
        """
        lead = (slice(None), *(None,) * (counts.ndim - 1))
        states, kept = self._states[place, zero, configs], self._kept[place, mode, configs]
        working, once = self._working[place, mode, configs], self._once[place, configs]
        need, grows, work = (states[:, 0] + once)[lead], kept[:, 0][lead], working[:, 0][lead]
        for kind in range(counts.shape[-1]):
            one = counts[..., kind]
            need = need + one * (states[:, kind + 1] - states[:, 0])[lead]
            grows = grows + one * (kept[:, kind + 1] - kept[:, 0])[lead]
            work = np.where(one > 0, np.maximum(work, working[:, kind + 1][lead]), work)
        left = self.columns.memory_limit[0] - need - work
        # No stage has a thousand billion in flight.
        return np.where(left >= 0, left / np.maximum(grows, 1e-12 * np.abs(left) + 1e-300), -1.0)

    def _max_flights(self, place: int, counts: np.ndarray, configs: np.ndarray) -> np.ndarray:
        """The maximum that any ZeRO level and mode leave memory for, see ``_of_mode``."""
        every = [
            self._of_mode(place, counts, zero, mode, configs)
            for zero in (0, 1)
            for mode in range(len(_PLAIN))
        ]
        return np.asarray(np.max(every, axis=0))

    def flights(
        self,
        place: int,
        begin: int,
        ends: np.ndarray,
        devices: int,
        tp: int,
        data: tuple[int, int] | None,
    ) -> np.ndarray:
        """(E,) micro-batches in flight that stages have memory for; see ``Completable._fits``."""
        configs = np.array([self.number[devices, tp]])
        counts = (self._before[:, ends] - self._before[:, begin, None]).sum(axis=0)
        if data is None:
            return self._max_flights(place, counts, configs)[0]
        zero, mode = data
        modes = (mode,) if mode < len(_PLAIN) else range(len(_PLAIN))
        every = [self._of_mode(place, counts, zero, m, configs)[0] for m in modes]
        return np.asarray(np.max(every, axis=0))

    def in_flight(self, left: int, stages: int) -> float:
        """Return the micro-batches in flight in a stage, ``left`` of ``stages`` from it on."""
        if stages not in self._in_flight:
            flights = formulas.in_flight(stages, self.micro_batches, self.shared.chunks)
            self._in_flight[stages] = [float(x) / self.shared.chunks for x in flights]
        return self._in_flight[stages][stages - left]

    def completes(
        self, in_front: list[float], own: np.ndarray, ends: np.ndarray, device: int
    ) -> np.ndarray:
        """Return with which ends of a stage some plan fits, (E,) bool.

        Args:
            in_front: micro-batches in flight that each stage in front has memory for.
            own: (E,) those that the stage has memory for.
            ends: (E,) last layer plus one, in the first piece of the chain.
            device: first device behind it.
        """
        made, last = len(in_front) + 1, ends == self.per
        if self.shared.chunks == 1:
            most = min(
                [k + x * _CUT if x * _CUT < self.micro_batches else np.inf
                 for k, x in enumerate(in_front)], default=np.inf,
            )  # fmt: skip
            behind = np.where(last, 0, self._fewest_behind[ends, device])
            flights = np.minimum(behind + 1, self.micro_batches)
            own_fits = (flights <= own * _CUT) & (last | (behind > 0))
            return np.asarray(own_fits & (made + behind <= most))
        found = np.zeros(len(ends), dtype=bool)
        for stages in range(made, self.limits.max_stages + 1):
            if self.micro_batches % stages or stages < 2:
                continue
            pairs = enumerate(in_front)
            if any(self.in_flight(stages - k, stages) > x * _CUT for k, x in pairs):
                continue
            holds = last
            if stages > made:
                tables = self._suffix(stages)
                if len(tables) <= stages - made:
                    continue
                holds = tables[stages - made][ends, device] & ~last
            found |= holds & (self.in_flight(stages - made + 1, stages) <= own * _CUT)
        return found

    @cached_property
    def _fewest_behind(self) -> np.ndarray:
        """(n + 1, D + 1) fewest stages that hold the layers from l on, from device e on; 0: none.

        With one chunk, fewer stages behind need less memory in front.
        """
        fewest = np.zeros((self.per + 1, self.limits.devices + 1), dtype=np.int64)
        for number, fits in enumerate(self._suffix(0)):
            if number:
                fewest = np.where((fewest == 0) & fits, number, fewest)
        return fewest

    @cached_property
    def _room_of_runs(self) -> dict[int, np.ndarray]:
        """Place -> (C, n + 1, n + 1) micro-batches in flight for which layers [l, l') have room.

        Where all layers are alike, (C, 1, n + 1), by their number.
        """
        before, configs = self._before, np.arange(len(self.configs))
        first = before[:, :, None] if before.shape[-1] > 1 else before[:, :1, None]
        runs = (before[:, None, :] - first).sum(axis=0)
        return {place: self._max_flights(place, runs, configs) for place in (INNER, LAST)}

    def _farthest(self, place: int, flight: float) -> np.ndarray:
        """(C, n + 1) farthest layer up to which a stage from each layer on has room, or less."""
        holds, numbers = self._room_of_runs[place] * _CUT >= flight, np.arange(self.per + 1)
        farthest = np.where(holds, numbers, -1).max(axis=2)
        if farthest.shape[1] == 1:
            farthest = np.minimum(numbers + farthest, self.per)
        return farthest

    def _suffix(self, stages: int) -> list[np.ndarray]:
        """For k = 0, 1, ...: (n + 1, D + 1) whether layers from l on fit k stages from device e on.

        Args:
            stages: of the whole plan, on which what is in flight depends with several chunks; 0 if
                there is one chunk.
        """
        if stages in self._suffixes:
            return self._suffixes[stages]
        layers, devices = self.per, self.limits.devices
        none = np.zeros((layers + 1, devices + 1), dtype=bool)
        none[layers] = True
        tables = [none]
        most = stages - 1 if stages else self.limits.max_stages - 1
        at, inside = np.arange(devices + 1), self.limits.inside
        for k in range(1, most + 1):
            flight = self.in_flight(k, stages or k)
            place = LAST if k == 1 else INNER
            behind = tables[-1]
            # Smallest layer from each on at which the stages behind can begin.
            number = np.where(behind, np.arange(layers + 1)[:, None], layers + 1)
            following = np.minimum.accumulate(number[::-1], axis=0)[::-1]
            farthest, fits = self._farthest(place, flight), np.zeros_like(none)
            for config, (size, tp) in enumerate(self.configs):
                if size > devices or (size in _WIDER and k > 1):
                    continue
                first = at[: devices + 1 - size]
                torn = (first % tp > 0) & (first // inside != (first + size - 1) // inside)
                if size in _WIDER:  # all that are left
                    torn = torn | (first + size < devices)
                reached = following[1:, size:] <= farthest[config, :-1, None]
                fits[:-1, : devices + 1 - size] |= reached & ~torn
            tables.append(fits)
            if not fits.any() and k > 1:
                break
        self._suffixes[stages] = tables
        return tables
