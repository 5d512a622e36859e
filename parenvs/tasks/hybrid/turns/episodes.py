"""Many episodes of ``HybridPlan-v0`` as arrays: choices, legal ones, and what they end in."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from parenvs.core.game import EVERY
from parenvs.core.plan import ILLEGAL
from parenvs.tasks.hybrid.plan import SCHEDULES, SENDS, HybridPlan, HybridStage
from parenvs.tasks.hybrid.space import software_of
from parenvs.tasks.hybrid.turns.actions import (
    ACTIONS,
    ALL_LEFT,
    DATA,
    FEWEST,
    GLOBAL,
    GLOBAL_CHUNKS,
    GLOBAL_MICRO_BATCH,
    GLOBAL_SHARED,
    MODES,
    OFFSETS,
    SERVER,
    SERVERS,
    SIZES,
    STAGE_DEVICES,
    STAGE_LAYERS,
    TO_THE_END,
    TP,
    TPS,
    TURNS,
    data_choice,
)
from parenvs.tasks.hybrid.turns.columns import exponent
from parenvs.tasks.hybrid.turns.completable import Begun
from parenvs.tasks.hybrid.turns.outcome import Choices, outcome
from parenvs.tasks.hybrid.turns.problems import KEPT, Setting
from parenvs.tasks.hybrid.turns.slots import CONSTANTS, DOUBLINGS, Slots, bits_of

MASKS = ("legal", "completable")
"""What masks leave: whatever some plan begins with, or whatever some plan that fits begins with."""
_TPS, _HALVED, _EXPONENTS = np.array(TPS), np.arange(len(TPS)), np.arange(DOUBLINGS)
_SIZES = 1 << _EXPONENTS
_POWERS = np.arange(ALL_LEFT + 1)[None]
_CHOSEN = (np.arange(1 << len(TPS))[:, None] >> _HALVED & 1).astype(np.bool_)
"""(16, 4) the tp that bits stand for."""
_ALIGNED = bits_of(np.arange(TPS[-1])[:, None] & (_TPS - 1) == 0)
"""(8,) bits of the tp whose groups can begin at a device, by its number modulo 8."""
_REPLICAS = _EXPONENTS[:, None] - _HALVED
_DIVIDING = bits_of((_REPLICAS >= 0) & (_EXPONENTS[:, None, None] >= _REPLICAS))
"""(32, 32) bits of the tp that make 2^i or fewer replicas of 2^j devices."""
_LAYERS = np.arange(SIZES[STAGE_LAYERS], dtype=np.int16)
_SERVERS = np.arange(SERVERS)
_LATER = np.arange(SIZES[DATA]) < 2 * len(MODES)
EPISODE = np.arange(1)
"""The rows of a single episode."""


class Observer(Protocol):
    """Is told what happens in episodes ``rows``, (k,)."""

    def put(self, rows: np.ndarray) -> None:
        """They have got a problem."""

    def start(self, rows: np.ndarray) -> None:
        """They begin anew."""

    def update(self, turn: int, rows: np.ndarray) -> None:
        """They have made the choices of a turn."""


class Episodes:
    """n episodes, which grow plans.

    An action is legal if some plan without a malformed field begins with it; whether one fits the
    memory is another question, which the mask ``"completable"`` answers. ``sequence_parallel``
    concerns the stages whose tp is at least 2; a plan without such a stage does not have it.

    Args:
        count: n.
        slots: the problems; episodes may share it.
        mask: one of ``MASKS``.

    Attributes:
        observer: is told of problems and choices, if there is one.
        over: (n,) bool, whether the plan is complete, or an action was illegal.
        slot: (n,) row of each episode's problem in ``slots``.
        turn: (n,) number of each episode's turn.
        made: (n,) stages that are complete.
        begin: (n,) first layer of the next stage, in the first piece of the chain.
        first: (n,) its first device.
        length: (n,) seconds of a step; this and the next two are NaN until the plan is complete.
        excess: (n,) bytes over the limit on the fullest device; at most 0 if the plan fits.
        value: (n,) what the plan earns: bound over seconds, in (0, 1], or -1 if it does not fit.
    """

    def __init__(self, count: int, slots: Slots, mask: str = MASKS[0]) -> None:
        """Make arrays; ``put`` gives episodes their problem, and ``start`` begins them."""
        self.count, self.slots, self.free = count, slots, slots.rules.order == "free"
        self.over = np.zeros(count, dtype=np.bool_)
        self.slot = np.full(count, -1)
        self._constants = np.zeros((CONSTANTS, count), dtype=np.int64)
        self._state = np.zeros((15, count), dtype=np.int64)
        self._end = np.full((3, count), np.nan)
        self._offered = np.zeros((count, ALL_LEFT + 1), dtype=np.uint8)
        self._ranks = np.zeros(count, dtype=np.uint8)
        self.shared = np.zeros(count, dtype=np.bool_)
        self._stages = np.zeros((5, SERVERS, count), dtype=np.int64)
        self.order = np.zeros((count, SERVERS), dtype=np.int64)
        self.taken = np.zeros((count, SERVERS), dtype=np.bool_)
        self._name()
        # The last column stands for all numbers that are not actions.
        self._legal = np.zeros((count, ACTIONS + 1), dtype=np.bool_)
        self._is_known, self._exact = False, mask == MASKS[1]  # whether ``_legal`` is up to date
        self.observer: Observer | None = None

    def _name(self) -> None:
        """Name the rows of arrays."""
        (self.group, self.row, self.layers, self.all_devices, self.servers, self.inside,
         self.batch, self.unit, self.least, self.halvings) = self._constants  # fmt: skip
        (self.turn, self.made, self.begin, self.first, self.begun, self.named, self.micro_batch,
         self.samples, self.micro_batches, self.doublings, self._replicas, self._possible,
         self.choice, self.per, self.chunks) = self._state  # fmt: skip
        self.length, self.excess, self.value = self._end
        self.ends, self.devices, self.tp, self.zero, self.mode = self._stages
        self._all: tuple[np.ndarray, ...] = (
            self._constants, self._state, self._end, self._stages, self.slot, self.shared,
            self._ranks, self._offered.T, self.order.T, self.taken.T, self.over,
        )  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copies have names for the rows of their own arrays."""
        self.__dict__.update(state)
        self._name()

    @classmethod
    def of(cls, setting: Setting, mask: str = MASKS[0]) -> Episodes:
        """Return one episode of a problem, in which nothing is chosen."""
        one = cls(1, Slots(setting.rules), mask)
        one.put(EPISODE, setting)
        one.start(EPISODE)
        return one

    def put(self, rows: np.ndarray, setting: Setting) -> None:
        """Give episodes ``rows``, (k,), a problem; they have to be started then."""
        if len(self.slots.settings) >= KEPT + self.count:
            self._forget()
        slot = self.slots.find(setting)
        self.slot[rows] = slot
        self._constants[:, rows] = self.slots.arrays["constants"][slot][:, None]
        if self.observer is not None:
            self.observer.put(rows)

    def start(self, rows: np.ndarray) -> None:
        """Begin episodes ``rows``, (k,), with nothing chosen."""
        self._state[:, rows], self.chunks[rows] = 0, 1
        self._end[:, rows] = np.nan
        self.shared[rows] = self.taken[rows] = self.over[rows] = self._is_known = False
        if self.observer is not None:
            self.observer.start(rows)

    @property
    def complete(self) -> np.ndarray:
        """(n,) bool, whether the plans are complete."""
        return self.length == self.length  # not NaN

    @property
    def legal(self) -> np.ndarray:
        """(n, 261) bool, the legal actions; rows of ended episodes mean nothing."""
        if not self._is_known:
            self._is_known = True
            self._legal[:] = False
            (rows,) = (~self.over).nonzero()
            for turn, which in _by_turn(self.turn[rows]):
                own, begin, end = rows[which], OFFSETS[turn], OFFSETS[turn] + SIZES[turn]
                self._legal[own, begin:end] = self._choices(turn, own)
                for row in own.tolist() if self._exact else ():
                    legal = self._legal[row, begin:end]
                    legal &= self.setting(row).completable.choices(self._beginning(row), legal)
        return self._legal[:, :ACTIONS]

    def act(self, action: int) -> None:
        """Take an action in the first episode."""
        self.play(EPISODE, np.array([action]))

    def play(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Take an action in each of some episodes that are not over.

        Args:
            rows: (k,) the episodes.
            actions: (k,) from 0 to 261; an illegal one ends its episode, as 261 does.

        Returns:
            (k,) rewards.
        """
        self.legal  # noqa: B018  # brings ``_legal`` up to date
        rewards, legal, played = np.zeros(self.count), self._legal[rows, actions], rows
        (wrong,) = (~legal).nonzero()
        if wrong.size:
            rewards[rows[wrong]], self.over[rows[wrong]] = ILLEGAL, True
            played, actions = rows[legal], actions[legal]
        for turn, which in _by_turn(self.turn[played]):
            own = played[which]
            self._choose(turn, own, actions[which] - OFFSETS[turn])
            if self.observer is not None:
                self.observer.update(turn, own)
            if turn == DATA:
                ended = own[self.begin[own] == self.per[own]]
                if ended.size:
                    self._judge(ended)
                    rewards[ended], self.over[ended] = self.value[ended], True
        self._is_known = False
        return rewards[rows]

    def state(self, row: int) -> tuple[np.ndarray, ...]:
        """Return all that is chosen in an episode, for ``resume``."""
        return tuple(array[..., row].copy() for array in self._all)

    def resume(self, row: int, state: tuple[np.ndarray, ...]) -> None:
        """Go on from a state of an episode with the same ``slots``; observers are not told."""
        for array, values in zip(self._all, state, strict=True):
            array[..., row] = values
        self._is_known = False

    def plan(self, row: int) -> HybridPlan:
        """Return the plan of an episode.

        What is open ends the chain as early as it can, on as many devices and with as large a tp as
        it can, with ZeRO 1 and as few recomputed layers as fit.
        """
        one = Episodes(1, self.slots)
        one.resume(0, self.state(row))
        one.over[:] = one.complete
        while not one.over[0]:
            possible, turn = np.flatnonzero(one.legal[0]), one.turn[0]
            action = possible[-1]
            if turn == GLOBAL or (turn == STAGE_LAYERS and action != OFFSETS[turn] + TO_THE_END):
                action = possible[0]
            elif turn == DATA:
                action = OFFSETS[turn] + data_choice(1, FEWEST)
            one.act(action)
        return one._plan()

    def setting(self, row: int) -> Setting:
        """Return an episode's problem."""
        return self.slots.settings[self.slot[row]]

    def _forget(self) -> None:
        """Look up anew the problems that are played; so many others are kept."""
        kept = [self.setting(row) for row in range(self.count)]
        self.slots = Slots(self.slots.rules)
        self.slot[:] = [self.slots.find(setting) for setting in kept]
        self._constants[:] = self.slots.arrays["constants"][self.slot].T

    def _plan(self) -> HybridPlan:
        """Return the plan of the first episode, which is complete."""
        problem, limits = self.setting(0).problem, self.setting(0).limits
        columns = self.slots.groups[self.group[0]]
        ended, count = outcome(columns, self._made(EPISODE)), int(self.made[0])
        ends, devices, tp, zero, _ = self._stages[:, :count, 0].tolist()
        per, chunks, stages, begin = int(self.per[0]), int(self.chunks[0]), [], 0
        for k, end in enumerate(ends):
            modes = ("full", int(ended.full[k, 0])), ("selective", int(ended.selective[k, 0]))
            stages.append(
                HybridStage(
                    layers=tuple((c * per + begin, c * per + end) for c in range(chunks)),
                    devices=devices[k],
                    tp=tp[k],
                    zero=zero[k],
                    recompute=dict(modes),
                )
            )
            begin = end
        software = software_of(problem)
        used = self.order[0, : int(self.named[0])].tolist()
        rest = (x for x in range(limits.servers) if x not in set(used))
        return problem.plan(
            stages,
            int(self.micro_batch[0]),
            schedule=SCHEDULES[1] if chunks > 1 else SCHEDULES[0],
            chunks=chunks,
            sequence_parallel=bool(self.shared[0]) and max(tp) > 1,
            p2p=SENDS[0] if software.blocking else SENDS[1],
            gradient_bytes=software.gradient_bytes,
            gradient_overlap=software.gradient_overlap,
            servers=(*used, *rest) if used else (),
        )

    def _beginning(self, row: int) -> Begun:
        """Return the choices of an episode so far."""
        stages = int(self.made[row])
        return Begun(
            int(self.turn[row]), int(self.micro_batch[row]), int(self.chunks[row]),
            bool(self.shared[row]), int(self.samples[row]), int(self.first[row]), stages,
            *self._stages[:, : stages + 1, row].tolist(),
        )  # fmt: skip

    def _choose(self, turn: int, rows: np.ndarray, choice: np.ndarray) -> None:
        """Take legal choices, (k,), of one turn in episodes that have it."""
        stage = self.made[rows]
        if turn == GLOBAL:
            self.choice[rows] = choice
            micro_batch, chunks = GLOBAL_MICRO_BATCH[choice], GLOBAL_CHUNKS[choice]
            self.micro_batch[rows], self.chunks[rows] = micro_batch, chunks
            self.doublings[rows] = doublings = exponent(micro_batch)
            self._replicas[rows] = self.halvings[rows] - doublings
            self.shared[rows] = shared = GLOBAL_SHARED[choice]
            possible = self.slots.arrays["possible"]
            self._possible[rows] = possible[self.slot[rows], shared.view(np.int8)]
            self.per[rows] = self.layers[rows] // chunks
            self.turn[rows] = STAGE_LAYERS
        elif turn == STAGE_LAYERS:
            self.ends[stage, rows] = np.where(choice == TO_THE_END, self.per[rows], choice + 1)
            if self.unit[rows[0]]:
                devices = self.unit[rows]
                self._ranks[rows] = self._allowed(rows, stage, exponent(devices)[:, None])[:, 0]
                self._put(rows, stage, devices)
            else:
                self._offered[rows] = self._offers(rows, stage)
                self.turn[rows] = STAGE_DEVICES
        elif turn == STAGE_DEVICES:
            left = self.all_devices[rows] - self.first[rows]
            self._ranks[rows] = self._offered[rows, choice]
            self._put(rows, stage, np.where(choice == ALL_LEFT, left, 1 << choice))
        elif turn == SERVER:
            named = self.named[rows]
            self.order[rows, named], self.taken[rows, choice] = choice, True
            self.named[rows] = named + 1
            self.turn[rows] = np.where(named + 1 == self.begun[rows], TP, SERVER)
        elif turn == TP:
            tp = _TPS[choice]
            self.tp[stage, rows] = tp
            at_first = stage == 0
            if at_first.any():
                new = rows[at_first]
                replicas = self.devices[0, new] // tp[at_first]
                self.samples[new] = samples = self.micro_batch[new] * replicas
                self.micro_batches[new] = self.batch[new] // samples
                self.doublings[new] = self._replicas[new] = exponent(samples)
            self.turn[rows] = DATA
        else:
            self.zero[stage, rows], self.mode[stage, rows] = np.divmod(choice, len(MODES))
            self.begin[rows] = self.ends[stage, rows]
            self.first[rows] += self.devices[stage, rows]
            self.made[rows] = stage + 1
            self.turn[rows] = STAGE_LAYERS

    def _put(self, rows: np.ndarray, stage: np.ndarray, devices: np.ndarray) -> None:
        """Give stages their devices; servers that they begin are named next."""
        self.devices[stage, rows] = devices
        self.turn[rows] = TP
        if self.free:
            self.begun[rows] = begun = -(-(self.first[rows] + devices) // self.inside[rows])
            self.turn[rows] = np.where(begun == self.named[rows], TP, SERVER)

    def _choices(self, turn: int, rows: np.ndarray) -> np.ndarray:
        """Return which choices of one turn are legal, (k, size of the turn) bool."""
        if turn == GLOBAL:
            return self.slots.arrays["opening"].take(self.slot[rows], axis=0)
        stage = self.made[rows]
        if turn == STAGE_LAYERS:
            longest = self._longest(rows, stage)
            legal = self.begin[rows].astype(np.int16)[:, None] <= _LAYERS
            legal &= longest.astype(np.int16)[:, None] > _LAYERS
            legal[:, TO_THE_END] = (self.chunks[rows] == 1) | (
                (stage > 0) & (self.micro_batches[rows] % (stage + 1) == 0)
            )
            return legal
        if turn == SERVER:
            return ~self.taken[rows] & (self.servers[rows][:, None] > _SERVERS)
        if turn == STAGE_DEVICES:
            return self._offered[rows] > 0
        if turn == TP:
            return _CHOSEN.take(self._ranks[rows], axis=0)
        single = (stage == 0) & (self.ends[stage, rows] == self.per[rows])
        return single[:, None] | _LATER

    def _longest(self, rows: np.ndarray, stage: np.ndarray) -> np.ndarray:
        """(k,) largest end of a stage behind which another one can come; below 1 if none can."""
        first = self.slots.arrays["longest"][self.slot[rows], self.choice[rows]]
        if not stage.any():
            return first
        per, chunks = self.per[rows], self.chunks[rows]
        left = (self.all_devices[rows] - self.first[rows]) // self.least[rows] - 1
        longest = np.where((left >= 1) & (stage + 2 <= SERVERS), per - 1, 0)
        (several,) = ((chunks > 1) & (stage > 0)).nonzero()
        if several.size:
            behind, count = self._behind(rows[several], stage[several]), stage[several]
            possible = behind <= np.minimum(left[several], SERVERS - 1 - count)
            longest[several] = np.where(possible, per[several] - behind, 0)
        return np.where(stage == 0, first, longest)

    def _behind(self, rows: np.ndarray, stage: np.ndarray) -> np.ndarray:
        """(k,) how many stages must follow one where micro-batches go in rounds, see ``behind``."""
        column = np.minimum(stage + 2, SERVERS + 1)
        rounds = self.slots.arrays["rounds"][self.slot[rows], self.doublings[rows], column]
        return rounds - stage - 1

    def _offers(self, rows: np.ndarray, stage: np.ndarray) -> np.ndarray:
        """(k, 9) bits of the tp that stages may have, for each choice of devices."""
        left = self.all_devices[rows] - self.first[rows]
        doublings = _POWERS.repeat(len(rows), axis=0)
        doublings[:, ALL_LEFT] = exponent(left)
        allowed = self._allowed(rows, stage, doublings)
        # Behind the first stage samples are a power of two, and what divides them, too.
        rest = allowed[:, ALL_LEFT] * (left & (left - 1) == 0)
        if not stage.all():
            exact = np.where(stage > 0, 0, self.doublings[rows])
            alone = self.slots.arrays["alone"][self.slot[rows], exact] & self._possible[rows]
            rest = np.where(stage > 0, rest, alone)
        allowed[:, ALL_LEFT] = rest * (self.ends[stage, rows] == self.per[rows])
        return allowed

    def _allowed(self, rows: np.ndarray, stage: np.ndarray, doublings: np.ndarray) -> np.ndarray:
        """(k, m) bits of the tp that stages may have on two to the power of (k, m) devices."""
        first, behind = self.first[rows], self.per[rows] - self.ends[stage, rows]
        left, inside, least = self.all_devices[rows] - first, self.inside[rows], self.least[rows]
        sizes, largest = _SIZES.take(doublings), left - least * (behind > 0)
        (rounds,) = ((self.chunks[rows] > 1) & (behind > 0)).nonzero()
        later, begin = rounds[stage[rounds] > 0], rounds[stage[rounds] == 0]
        if later.size:
            more = self._behind(rows[later], stage[later])
            possible = more <= np.minimum(behind[later], SERVERS - 1 - stage[later])
            largest[later] = np.where(possible, left[later] - more * least[later], 0)
        bits = _DIVIDING[self._replicas[rows][:, None], doublings]
        bits &= self._possible[rows].astype(np.uint8)[:, None]
        spans = sizes > (inside - (first & (inside - 1)))[:, None]
        bits &= np.where(spans, _ALIGNED.take(first & (TPS[-1] - 1))[:, None], bits)
        bits *= sizes <= largest[:, None]
        if begin.size:
            samples = self.doublings[rows[begin]][:, None, None] + doublings[begin][:, :, None]
            slots = self.slot[rows[begin]][:, None, None]
            rounds = self.slots.arrays["rounds"][slots, np.maximum(samples - _HALVED, 0), 2]
            more = rounds - 1
            taken = more * least[begin][:, None, None] + sizes[begin][:, :, None]
            free = np.minimum(behind[begin], SERVERS - 1)
            possible = (more <= free[:, None, None]) & (taken <= left[begin][:, None, None])
            bits[begin] &= bits_of(possible)
        return bits

    def _judge(self, rows: np.ndarray) -> None:
        """Compute what complete plans end in."""
        groups = self.group[rows]
        for number, columns in enumerate(self.slots.groups):
            own = rows[groups == number]
            if own.size:
                ended = outcome(columns, self._made(own))
                value = columns.bound[self.row[own]] / ended.length
                value = np.where(ended.excess > 0, ILLEGAL, value)
                self._end[:, own] = ended.length, ended.excess, value

    def _made(self, rows: np.ndarray) -> Choices:
        """Return the choices of complete plans of problems of one group."""
        made = self.made[rows]
        count = int(made.max())
        real = np.arange(count)[:, None] < made
        ends, devices, tp, zero, mode = self._stages[:, :count, rows] * real
        return Choices(
            rows=self.row[rows],
            stages=made,
            micro_batch=self.micro_batch[rows],
            chunks=self.chunks[rows],
            shared=self.shared[rows],
            ends=ends + self.per[rows] * ~real,
            devices=devices,
            tp=tp + ~real,
            zero=zero,
            mode=mode,
            servers=self.order[rows] if self.free else None,
        )


def _by_turn(turns: np.ndarray) -> list[tuple[int, slice | np.ndarray]]:
    """Return the turns in (k,) turns, and where each one is."""
    if not turns.size:
        return []
    first = int(turns[0])
    if turns.size == 1 or (turns == first).all():
        return [(first, EVERY)]
    where = ((turn, (turns == turn).nonzero()[0]) for turn in range(len(TURNS)))
    return [(turn, which) for turn, which in where if which.size]
