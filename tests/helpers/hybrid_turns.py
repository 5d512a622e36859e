"""Episodes of turns on small hybrid problems, and a second writing of them: one by one, in scalars.

``Scalar`` says what ``parenvs.tasks.hybrid.turns.episodes`` and ``board`` say in arrays.
"""

from dataclasses import replace

import numpy as np

from parenvs.cluster import Cluster
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.space import software_of
from parenvs.tasks.hybrid.turns.actions import (
    ALL_LEFT,
    DATA,
    DEVICES,
    GLOBAL,
    GLOBAL_CHUNKS,
    GLOBAL_MICRO_BATCH,
    GLOBAL_SHARED,
    SERVER,
    SERVERS,
    SIZES,
    STAGE_DEVICES,
    STAGE_LAYERS,
    TO_THE_END,
    TP,
    TPS,
)
from parenvs.tasks.hybrid.turns.episodes import Episodes
from parenvs.tasks.hybrid.turns.rules import behind
from parenvs.tasks.hybrid.turns.slots import Slots

SHAPE = TransformerShape("toy", 4, 1024, 8, 1024, 8192)


def toy(gigabytes, cluster="2x2:a100", batch=8, speeds=(), **shape):
    """Return a problem of four layers on devices of little memory."""
    numbers = {**vars(SHAPE), **shape}
    parsed = Cluster.parse(cluster)
    device = replace(parsed.device, memory_bytes=gigabytes * 1e9)
    parsed = replace(parsed, device=device, speeds=tuple(speeds))
    return Hybrid(HybridModel.of_shape(TransformerShape(**numbers)), parsed, batch, "nemo-2024")


def several(setting, count):
    """Return episodes of one problem in which nothing is chosen."""
    episodes = Episodes(count, Slots(setting.rules))
    episodes.put(np.arange(count), setting)
    episodes.start(np.arange(count))
    return episodes


def played(setting, count, rng, likes=None):
    """Play random legal actions, those that are liked if there are any; episodes and actions.

    ``likes`` takes an action, and returns whether it is liked.
    """
    episodes, taken = several(setting, count), [[] for _ in range(count)]
    liked = np.array([likes is None or likes(action) for action in range(sum(SIZES))])
    while not episodes.over.all():
        (rows,) = np.nonzero(~episodes.over)
        legal = episodes.legal[rows]
        best = legal & liked
        chosen = np.where(best.any(axis=1, keepdims=True), best, legal)
        actions = np.where(chosen, rng.random(chosen.shape), -1.0).argmax(axis=1)
        episodes.play(rows, actions)
        for row, action in zip(rows.tolist(), actions.tolist(), strict=True):
            taken[row].append(action)
    return episodes, taken


def every(setting, kept):
    """Return all complete episodes of kept actions: action tuple -> bytes over the limit."""
    found, beginnings = {}, [()]
    while beginnings:
        episodes = several(setting, len(beginnings))
        for actions in np.array(beginnings, dtype=np.int64).T:
            episodes.play(np.arange(len(beginnings)), actions)
        longer = []
        for row, taken in enumerate(beginnings):
            if episodes.over[row]:
                found[taken] = float(episodes.excess[row])
            else:
                legal = np.flatnonzero(episodes.legal[row]).tolist()
                longer += [(*taken, action) for action in legal if kept(action)]
        beginnings = longer
    return found


class Scalar:
    """An episode that grows a plan."""

    def __init__(self, limits):
        self.limits, self.turn, self.is_over = limits, GLOBAL, False
        self.micro_batch, self.chunks, self.shared = 0, 1, False
        self.samples = self.micro_batches = self.first = 0
        self.ends, self.devices, self.tp, self.zero, self.mode, self.servers = (
            [] for _ in range(6)
        )

    @property
    def per_chunk(self):
        return self.limits.layers // self.chunks

    @property
    def is_last(self):
        return self.ends[-1] == self.per_chunk

    def legal(self):
        """Which choices of this turn are legal."""
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
                legal[number] = devices <= left and any(self._allowed(devices))
            legal[ALL_LEFT] = self.is_last and any(self._allowed(left))
        elif turn == SERVER:
            legal[: limits.servers] = True
            legal[self.servers] = False
        elif turn == TP:
            legal[:] = list(self._allowed(self.devices[-1]))
        else:
            legal[: SIZES[DATA] if len(self.ends) == 1 and self.is_last else 8] = True
        return legal

    def act(self, choice):
        """Take a choice."""
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
            self._place(self.limits.devices - self.first if choice == ALL_LEFT else DEVICES[choice])
        elif turn == SERVER:
            self.servers.append(choice)
            self._name()
        elif turn == TP:
            self.tp.append(TPS[choice])
            if len(self.tp) == 1:
                self.samples = self.micro_batch * (self.devices[0] // TPS[choice])
                self.micro_batches = self.limits.batch // self.samples
            self.turn = DATA
        else:
            zero, mode = divmod(choice, 4)
            self.zero.append(zero)
            self.mode.append(mode)
            self.first += self.devices[-1]
            self.is_over = self.is_last
            self.turn = STAGE_LAYERS

    def _place(self, devices):
        self.devices.append(devices)
        self._name()

    def _name(self):
        """Go on with tp when all servers that the stage begins are named."""
        begun = -(-(self.first + self.devices[-1]) // self.limits.inside)
        free = self.limits.rules.order == "free"
        self.turn = SERVER if free and begun > len(self.servers) else TP

    def _longest(self):
        limits, count = self.limits, len(self.ends)
        if not count:
            return limits.longest_first(self.micro_batch, self.chunks, self.shared)
        left = (limits.devices - self.first) // limits.least - 1
        if self.chunks == 1:
            return self.per_chunk - 1 if left >= 1 and count + 2 <= SERVERS else 0
        return self.per_chunk - behind(self.micro_batches, count, left)

    def _allowed(self, devices):
        """Which of ``TPS`` the stage may have on a number of devices."""
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

    def plan(self, problem, modes):
        """The plan of a complete episode, whose stages recompute layers in full and selectively."""
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
        rest = (x for x in range(self.limits.servers) if x not in self.servers)
        return problem.plan(
            stages,
            self.micro_batch,
            schedule="interleaved" if self.chunks > 1 else "1f1b",
            chunks=self.chunks,
            sequence_parallel=self.shared and max(self.tp) > 1,
            p2p="blocking" if software.blocking else "overlapped",
            gradient_bytes=software.gradient_bytes,
            gradient_overlap=software.gradient_overlap,
            servers=(*self.servers, *rest) if self.servers else (),
        )
