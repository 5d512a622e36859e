"""Many episodes of ``HybridPlan-v0`` as arrays: choices, legal ones, what is shown, their ends.

It does what ``Episode``, ``Board`` and ``Game`` of ``parenvs.tasks.hybrid.turns`` do one by one.
"""

from __future__ import annotations

import numpy as np

from parenvs.tasks.hybrid.game.slots import CONSTANTS, DOUBLINGS, Slots, bits_of
from parenvs.tasks.hybrid.turns.actions import (
    ALL_LEFT,
    DATA,
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
    TURNS,
    ZEROS,
)
from parenvs.tasks.hybrid.turns.columns import exponent
from parenvs.tasks.hybrid.turns.game import Game, Setting
from parenvs.tasks.hybrid.turns.observe import LOG2, MOST_DOUBLINGS, SHAPES
from parenvs.tasks.hybrid.turns.outcome import Choices, outcome
from parenvs.tasks.hybrid.turns.rules import Rules

_TPS, _HALVED, _EVERY = np.array(TPS), np.arange(len(TPS)), np.arange(DOUBLINGS)
_POWERS = np.arange(ALL_LEFT + 1)
_CHOSEN = (np.arange(1 << len(TPS))[:, None] >> _HALVED & 1).astype(np.bool_)
"""(16, 4) the tp that bits stand for."""
_ALIGNED = bits_of(np.arange(TPS[-1])[:, None] & (_TPS - 1) == 0)
"""(8,) bits of the tp whose groups can begin at a device, by its number modulo 8."""
_REPLICAS = _EVERY[:, None] - _HALVED
_DIVIDING = bits_of((_REPLICAS >= 0) & (_EVERY[:, None, None] >= _REPLICAS))
"""(32, 32) bits of the tp that make 2^i or fewer replicas of 2^j devices."""
_LAYERS = np.arange(SIZES[STAGE_LAYERS], dtype=np.int16)
_SERVERS = np.arange(SERVERS)
_TURN = np.eye(len(TURNS) + 1, len(TURNS), dtype=np.float32)  # the last row is no turn
_PROGRESS = np.array([0, 0, 0, 0, 0, 1, 1, 0], dtype=np.float32)
_LATER = np.arange(SIZES[DATA]) < 2 * len(MODES)


_CONSTANT = ("chain", "cluster", "numbers")


class HybridEpisodes:
    """n episodes; arrays have one column, or one row, for each.

    Attributes:
        slots: the problems.
        slot: (n,) row of each episode's problem there.
        turn: (n,) number of each episode's turn.
    """

    def __init__(self, count: int, rules: Rules) -> None:
        """Make arrays for ``count`` episodes; ``begin`` gives each its problem."""
        self.count, self.free, self.slots = count, rules.order == "free", Slots(rules)
        self.slot = np.full(count, -1)
        self._constants = np.zeros((CONSTANTS, count), dtype=np.int64)
        (self.group, self.row, self.layers, self.all_devices, self.servers, self.inside,
         self.batch, self.unit, self.least, self.halvings) = self._constants  # fmt: skip
        self._state = np.zeros((12, count), dtype=np.int64)
        (
            self.turn,
            self.made,
            self.first,
            self.begun,
            self.named,
            self.micro_batch,
            self.samples,
            self.micro_batches,
            self.doublings,
            self.choice,
            self.per,
            self.chunks,
        ) = self._state
        self._offered = np.zeros((count, ALL_LEFT + 1), dtype=np.uint8)
        self._ranks = np.zeros(count, dtype=np.uint8)
        self.shared = np.zeros(count, dtype=np.bool_)
        self._stages = np.zeros((5, SERVERS, count), dtype=np.int64)
        self.ends, self.devices, self.tp, self.zero, self.mode = self._stages
        self.order = np.zeros((count, SERVERS), dtype=np.int64)
        self.taken = np.zeros((count, SERVERS), dtype=np.bool_)
        self.differ = False
        self._shown = {
            key: np.zeros((count, *shape), dtype=np.float32) for key, shape in SHAPES.items()
        }
        self._end = np.zeros((2, count))

    def begin(self, who: np.ndarray, slots: np.ndarray) -> None:
        """Start episodes ``who``, (k,), on problems of ``slots``, (k,)."""
        arrays = self.slots.arrays
        changed = self.slot[who] != slots
        if changed.any():
            new, rows = who[changed], slots[changed]
            self.slot[new] = rows
            self._constants[:, new] = arrays["constants"][rows].T
            for key in _CONSTANT:
                self._shown[key][new] = arrays[key].take(rows, axis=0)
            self.differ = any(group.differ for group in self.slots.groups)
        self._shown["cluster"][who, :, 3] = 0.0
        self.restart(who)

    def setting(self, index: int) -> Setting:
        """Return an episode's problem."""
        return self.slots.settings[self.slot[index]]

    def of_problems(self, name: str, who: np.ndarray) -> np.ndarray:
        """Return what is looked up of episodes' problems, one row for each; see ``Slots``."""
        found: np.ndarray = self.slots.arrays[name][self.slot[who]]
        return found

    def ended(self, who: np.ndarray) -> np.ndarray:
        """(2, k) seconds of a step and bytes over the limit of complete plans, NaN of others."""
        return self._end[:, who]

    def restart(self, who: np.ndarray) -> None:
        """Forget the choices of episodes ``who``, (k,)."""
        self._state[:, who], self.chunks[who] = 0, 1
        self._end[:, who] = np.nan
        self.shared[who] = False
        self.taken[who] = False
        self._shown["stages"][who] = 0.0
        self._shown["progress"][who] = _PROGRESS

    def game(self, index: int) -> Game:
        """Return one episode as a game with the same choices, without its mask."""
        game = Game(self.setting(index))
        episode = game.episode
        done, turn = int(self.made[index]), int(self.turn[index])
        if turn == GLOBAL and not self.micro_batch[index]:
            return game
        choices = [int(self.choice[index])]
        limits, first, named = episode.limits, 0, 0
        per = int(self.per[index])
        for k in range(min(done + 1, SERVERS)):
            if k == done and turn == STAGE_LAYERS:
                break
            end = int(self.ends[k, index])
            choices.append(TO_THE_END if end == per else end - 1)
            if k == done and turn == STAGE_DEVICES:
                break
            devices = int(self.devices[k, index])
            if not limits.unit:
                power = devices.bit_length() - 1
                known = devices == 1 << power and power < ALL_LEFT
                choices.append(power if known else ALL_LEFT)
            if self.free:
                begun = -(-(first + devices) // limits.inside)
                until = int(self.named[index]) if k == done and turn == SERVER else begun
                choices += self.order[index, named:until].tolist()
                named = until
                if k == done and turn == SERVER:
                    break
            if k == done and turn == TP:
                break
            choices.append(TPS.index(int(self.tp[k, index])))
            if k == done and turn == DATA:
                break
            choices.append(
                len(MODES) * ZEROS.index(int(self.zero[k, index])) + int(self.mode[k, index])
            )
            first += devices
        for choice in choices:
            game.act(choice)
        return game

    def act(self, turn: int, who: np.ndarray, choice: np.ndarray) -> np.ndarray:
        """Take legal choices of one turn, and return the episodes whose plan is complete.

        Args:
            turn: number of the turn.
            who: (k,) episodes that have this turn.
            choice: (k,) their choices.
        """
        progress, stages = self._shown["progress"], self._shown["stages"]
        stage = self.made[who]
        if turn == GLOBAL:
            self.choice[who] = choice
            micro_batch, chunks = GLOBAL_MICRO_BATCH[choice], GLOBAL_CHUNKS[choice]
            self.micro_batch[who], self.chunks[who] = micro_batch, chunks
            self.doublings[who] = exponent(micro_batch)
            self.shared[who] = GLOBAL_SHARED[choice]
            self.per[who] = self.layers[who] // chunks
            progress[who, 0], progress[who, 1] = LOG2[micro_batch] / 4.0, LOG2[chunks] / 3.0
            progress[who, 2] = GLOBAL_SHARED[choice]
            self.turn[who] = STAGE_LAYERS
        elif turn == STAGE_LAYERS:
            per = self.per[who]
            end = np.where(choice == TO_THE_END, per, choice + 1)
            begin = np.where(stage > 0, self.ends[stage - 1, who], 0)
            self.ends[stage, who] = end
            stages[who, stage, 0], stages[who, stage, 1] = end / per, (end - begin) / per
            progress[who, 5] = (per - end) / per
            if self.unit[who[0]]:
                devices = self.unit[who]
                self._ranks[who] = self._allowed(who, stage, exponent(devices)[:, None])[:, 0]
                self._put(who, stage, devices)
            else:
                self._offered[who] = self._offers(who, stage)
                self.turn[who] = STAGE_DEVICES
        elif turn == STAGE_DEVICES:
            left = self.all_devices[who] - self.first[who]
            self._ranks[who] = self._offered[who, choice]
            self._put(who, stage, np.where(choice == ALL_LEFT, left, 1 << choice))
        elif turn == SERVER:
            named = self.named[who]
            self.order[who, named], self.taken[who, choice] = choice, True
            self._shown["cluster"][who, choice, 3] = 1.0
            self.named[who] = named + 1
            ready = named + 1 == self.begun[who]
            if ready.any():
                self.turn[who[ready]] = TP
                self._use(who[ready], stage[ready])
        elif turn == TP:
            tp, devices = _TPS[choice], self.devices[stage, who]
            self.tp[stage, who] = tp
            at_first = stage == 0
            if at_first.any():
                new = who[at_first]
                self.samples[new] = samples = self.micro_batch[new] * (devices // tp)[at_first]
                self.micro_batches[new] = self.batch[new] // samples
                self.doublings[new] = exponent(samples)
            stages[who, stage, 4] = LOG2[tp] / 3.0
            stages[who, stage, 5] = LOG2[devices // tp] / 9.0
            for column, numbers in ((3, self.micro_batches[who]), (7, self.samples[who])):
                progress[who, column] = LOG2[np.minimum(numbers, len(LOG2) - 1)] / MOST_DOUBLINGS
            self.turn[who] = DATA
        else:
            zero, mode = np.divmod(choice, len(MODES))
            self.zero[stage, who], self.mode[stage, who] = zero, mode
            stages[who, stage, 6] = zero / ZEROS[-1]
            stages[who, stage, 7] = mode / (len(MODES) - 1)
            self.first[who] += self.devices[stage, who]
            self.made[who] = stage + 1
            progress[who, 4] = (stage + 1) / SERVERS
            self.turn[who] = STAGE_LAYERS
            return who[self.ends[stage, who] == self.per[who]]
        return who[:0]

    def _put(self, who: np.ndarray, stage: np.ndarray, devices: np.ndarray) -> None:
        """Give stages their devices; servers that they begin are named next."""
        self.devices[stage, who] = devices
        ready = np.ones(len(who), dtype=np.bool_)
        if self.free:
            self.begun[who] = -(-(self.first[who] + devices) // self.inside[who])
            ready = self.begun[who] == self.named[who]
        self.turn[who] = np.where(ready, TP, SERVER)
        if ready.any():
            self._use(who[ready], stage[ready])

    def _use(self, who: np.ndarray, stage: np.ndarray) -> None:
        """Show devices, servers, slowest speed and load of stages, see ``Board``."""
        stages, cluster = self._shown["stages"], self._shown["cluster"]
        devices, total = self.devices[stage, who], self.all_devices[who]
        first, inside = self.first[who], self.inside[who]
        stages[who, stage, 2], stages[who, stage, 3] = LOG2[devices] / 9.0, devices / total
        self._shown["progress"][who, 6] = (total - first - devices) / total
        end = first + devices
        begin, behind = first // inside, -(-end // inside)
        # One entry for each server of each stage.
        counts = behind - begin
        ends, plan = counts.cumsum(), np.repeat(np.arange(len(who)), counts)
        server = np.arange(ends[-1]) + (behind - ends)[plan]
        if self.free:
            server = self.order[who[plan], server]
        cluster[who[plan], server, 3] = 1.0
        cluster[who, server[ends - 1], 3] = (end - (behind - 1) * inside) / inside
        slowest, slot = np.ones(len(who)), self.slot[who]
        work, speeds = self.slots.arrays["work"], self.slots.arrays["speeds"]
        if self.differ:
            slowest = np.minimum.reduceat(speeds[slot[plan], server], ends - counts)
        per, chunks = self.per[who], self.chunks[who]
        start = np.where(stage > 0, self.ends[stage - 1, who], 0)
        pieces = np.arange(int(chunks.max()))[:, None]
        at = np.minimum(pieces, chunks - 1) * per
        parts = work[slot, at + self.ends[stage, who]] - work[slot, at + start]
        share = np.zeros(len(who))
        for part in np.where(pieces < chunks, parts, 0.0):
            share += part  # one after the other, as ``Board`` does
        load = share * total / (devices * slowest)
        stages[who, stage, 8], stages[who, stage, 9] = slowest, load / (1.0 + load)

    def legal(self, turn: int, who: np.ndarray) -> np.ndarray:
        """Return which choices of one turn are legal, (k, size of the turn) bool."""
        if turn == GLOBAL:
            return self.slots.arrays["opening"].take(self.slot[who], axis=0)
        stage = self.made[who]
        if turn == STAGE_LAYERS:
            begin = np.where(stage > 0, self.ends[stage - 1, who], 0)
            longest = self._longest(who, stage)
            legal = begin.astype(np.int16)[:, None] <= _LAYERS
            legal &= longest.astype(np.int16)[:, None] > _LAYERS
            legal[:, TO_THE_END] = (self.chunks[who] == 1) | (
                (stage > 0) & (self.micro_batches[who] % (stage + 1) == 0)
            )
            return legal
        if turn == SERVER:
            return ~self.taken[who] & (self.servers[who][:, None] > _SERVERS)
        if turn == STAGE_DEVICES:
            return self._offered[who] > 0
        if turn == TP:
            return _CHOSEN.take(self._ranks[who], axis=0)
        single = (stage == 0) & (self.ends[stage, who] == self.per[who])
        return single[:, None] | _LATER

    def _longest(self, who: np.ndarray, stage: np.ndarray) -> np.ndarray:
        """(k,) largest end of a stage behind which another one can come, see ``Episode``."""
        per, chunks = self.per[who], self.chunks[who]
        left = (self.all_devices[who] - self.first[who]) // self.least[who] - 1
        longest = np.where((left >= 1) & (stage + 2 <= SERVERS), per - 1, 0)
        several = np.flatnonzero((chunks > 1) & (stage > 0))
        if several.size:
            behind, count = self._behind(who[several], stage[several]), stage[several]
            possible = behind <= np.minimum(left[several], SERVERS - 1 - count)
            longest[several] = np.where(possible, per[several] - behind, 0)
        first = self.slots.arrays["longest"][self.slot[who], self.choice[who]]
        return np.where(stage == 0, first, longest)

    def _behind(self, who: np.ndarray, stage: np.ndarray) -> np.ndarray:
        """(k,) how many stages must follow one where micro-batches go in rounds, see ``behind``."""
        column = np.minimum(stage + 2, SERVERS + 1)
        rounds = self.slots.arrays["rounds"][self.slot[who], self.doublings[who], column]
        return rounds - stage - 1

    def _offers(self, who: np.ndarray, stage: np.ndarray) -> np.ndarray:
        """(k, 9) bits of the tp that stages may have, for each choice of devices."""
        left = self.all_devices[who] - self.first[who]
        doublings = np.empty((len(who), ALL_LEFT + 1), dtype=np.int64)
        doublings[:] = _POWERS
        doublings[:, ALL_LEFT] = exponent(left)
        allowed = self._allowed(who, stage, doublings)
        # Behind the first stage samples are a power of two, and what divides them, too.
        rest = np.where(left & (left - 1) == 0, allowed[:, ALL_LEFT], 0)
        exact = np.where(stage > 0, 0, self.doublings[who])
        alone = self.slots.arrays["alone"][self.slot[who], exact] & self._possible(who)
        rest = np.where(stage > 0, rest, alone)
        allowed[:, ALL_LEFT] = np.where(self.ends[stage, who] == self.per[who], rest, 0)
        return allowed

    def _possible(self, who: np.ndarray) -> np.ndarray:
        """(k,) bits of the tp that the models' matrices can be divided by."""
        return self.slots.arrays["possible"][self.slot[who], self.shared[who].view(np.int8)]

    def _allowed(self, who: np.ndarray, stage: np.ndarray, doublings: np.ndarray) -> np.ndarray:
        """(k, m) bits of the tp that stages may have on two to the power of (k, m) devices."""
        first, per, end = self.first[who], self.per[who], self.ends[stage, who]
        left, inside, least = self.all_devices[who] - first, self.inside[who], self.least[who]
        exact, sizes = self.doublings[who], np.left_shift(1, doublings)
        most = np.where(end == per, left, left - least)
        rounds = (self.chunks[who] > 1) & (end < per)
        later, begin = np.flatnonzero(rounds & (stage > 0)), np.flatnonzero(rounds & (stage == 0))
        if later.size:
            behind = self._behind(who[later], stage[later])
            possible = behind <= np.minimum((per - end)[later], SERVERS - 1 - stage[later])
            most[later] = np.where(possible, left[later] - behind * least[later], 0)
        most_replicas = np.where(stage > 0, exact, self.halvings[who] - exact)
        bits = _DIVIDING[most_replicas[:, None], doublings]
        bits &= self._possible(who)[:, None]
        spans = sizes > (inside - (first & (inside - 1)))[:, None]
        bits &= np.where(spans, _ALIGNED.take(first & (TPS[-1] - 1))[:, None], bits)
        bits *= sizes <= most[:, None]
        if begin.size:
            samples = exact[begin][:, None, None] + doublings[begin][:, :, None] - _HALVED
            rows = self.slot[who[begin]][:, None, None]
            behind = self.slots.arrays["rounds"][rows, np.maximum(samples, 0), 2] - 1
            taken = behind * least[begin][:, None, None] + sizes[begin][:, :, None]
            free = np.minimum((per - end)[begin], SERVERS - 1)
            possible = (behind <= free[:, None, None]) & (taken <= left[begin][:, None, None])
            bits[begin] &= bits_of(possible)
        return bits

    def finish(self, who: np.ndarray) -> np.ndarray:
        """Judge complete plans, and return what they earn, (k,); see ``Game.value``."""
        values = np.empty(len(who))
        groups = self.group[who]
        for number, columns in enumerate(self.slots.groups):
            which = np.flatnonzero(groups == number)
            if not which.size:
                continue
            own = who[which]
            made = self.made[own]
            most = int(made.max())
            real = np.arange(most)[:, None] < made
            ends, devices, tp, zero, mode = self._stages[:, :most, own] * real
            ended = outcome(
                columns,
                Choices(
                    rows=self.row[own],
                    stages=made,
                    micro_batch=self.micro_batch[own],
                    chunks=self.chunks[own],
                    shared=self.shared[own],
                    ends=ends + self.per[own] * ~real,
                    devices=devices,
                    tp=tp + ~real,
                    zero=zero,
                    mode=mode,
                    servers=self.order[own] if self.free else None,
                ),
            )
            bound = columns.bound[self.row[own]]
            values[which] = np.where(ended.excess > 0, -1.0, bound / ended.length)
            self._end[:, own] = ended.length, ended.excess
        return values

    def observation(self, over: np.ndarray) -> dict[str, np.ndarray]:
        """Return what is shown of all episodes, in arrays that are written to later.

        Args:
            over: episodes that have ended, which have no turn.
        """
        turns = self.turn.copy()
        turns[over] = np.where(self._is_complete(over), -1, turns[over])
        self._shown["turn"][:] = _TURN[turns]
        return self._shown

    def _is_complete(self, who: np.ndarray) -> np.ndarray:
        """(k,) bool, whether the plans are complete."""
        made = self.made[who]
        return (
            (made > 0)
            & (self.ends[made - 1, who] == self.per[who])
            & (self.turn[who] == STAGE_LAYERS)
        )
