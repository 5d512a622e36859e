"""``PipelineCut-v0``: cut a chain of pivots into pipeline stages, one cut a step."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
from gymnasium import spaces

from parenvs.cluster import SYNC_METHODS, server_of
from parenvs.core.game import EVERY, Fixed, Rowed, Rows, Source
from parenvs.core.plan import ILLEGAL
from parenvs.core.registry import problem as load_problem
from parenvs.envs.env import GameEnv, GameVectorEnv
from parenvs.errors import ParenvsError
from parenvs.graph.graph import Graph
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.plan import (
    COPIES,
    MICRO_BATCH,
    MICRO_BATCHES,
    PIPELINE_OPTIONS,
    RECOMPUTE,
    TIED,
    PipelinePlan,
)
from parenvs.tasks.pipeline.problem import Pipeline, Report
from parenvs.tasks.pipeline.profile import StageProfile
from parenvs.tasks.pipeline.spaces import RADIUS, CutSpace

MOST_BYTES = 16 << 20
"""Size up to which one environment tabulates stages; beyond, they are computed in every step."""
MAX_BYTES_VECTOR = 96 << 20
"""The same of many environments: tables that take longer to build pay off."""
MAX_OPENINGS = 1 << 22
"""Float32 numbers up to which the observations after the first cut are tabulated."""
BLOCK = 1 << 14
"""Pairs of environment and candidate worked on at a time, so that temporaries stay in the cache."""


class CutKernel:
    """Tables of a problem and what is made of them; the environments of a problem share one.

    Candidates are counted 0..c-1; as neighbors of a stage, ``end`` (c) stands for the end of the
    chain and ``start`` (c+1) for its first pivot. A *chain* is ``start``, the cuts made, and for a
    whole plan ``end``. Step k, 0..S-2, chooses cut k and so completes stage k; stage S-1 goes on to
    the end. Figures of observations are *scaled*: over the instance's maximum, at most 1, rounded
    to float32. Nothing in a kernel changes once it is built.

    Args:
        space: the candidates.
        most_bytes: tables of stages are built if they take no more than this.

    Attributes:
        space: the candidates.
        bubble_free: ``Pipeline.bubble_free``, seconds.
        cuts: S-1, cuts of a plan.
        low: first candidate of each step's window.
        high: one past the last candidate of each step's window.
        follower: (c+2,) int64, the first candidate that may come after each; ``start`` included.
        overlaps: of each step, whether some cut before it makes part of its window illegal.
        inside: of each step, whether a transfer over the cut before it can stay in one server.
        shares: (c,) float32, pivots over n.
        seconds_sum: (c+2,) float64, seconds of the model before each; all of them at ``end``.
        transfers: (2, c+2) float64, seconds of a transfer over each cut between servers, and inside
            one.
        slow: (c+2,) float32, the first of them scaled.
        fast: (c+2,) float32, the second.
        edge: (c+2,) int64: the transfer over the cut after this one stays inside a server if the
            next cut is below the edge, ``end`` counted as a cut.
        tabulated: whether there are tables of stages, the attributes that follow.
        columns: (S,) int64, of each stage, the number of cuts that may end it.
        bias: (S,) int64, of each stage, to find it: ``pair = last * columns + cut + bias``.
        figures: (4, pairs) float64: forward plus backward seconds, backward seconds, all-reduce
            seconds, bytes on each device.
        paces: (pairs, 2) float64: forward plus backward seconds as observations have them (another
            order of sums), and their negative.
        peaks: (pairs, 2) float32: scaled all-reduce, and 0.
        step_rows: of each step, all that ``extremes`` can return.
        step_masks: of each step, (w, c) bool, the legal candidates after each cut of the window
            before (or ``start``).
        first: (c, 3) float32, features before the first cut.
        openings: (w, c, 3) float32, features after each candidate of the first window, or None
            where there is no second cut or they are too many.
    """

    def __init__(self, space: CutSpace, most_bytes: int = MOST_BYTES) -> None:
        self.space, self._most_bytes = space, most_bytes
        pipeline = space.pipeline
        self.bubble_free, self._limit = pipeline.bubble_free, pipeline.memory_limit
        self._micro_batches = pipeline.micro_batches
        count, windows = len(space.pivots), space.windows()
        self.cuts = space.stages - 1
        self.end, self.start = count, count + 1
        self.low, self.high = [low for low, _ in windows], [high for _, high in windows]
        follower = space.followers()
        # What may follow the start is what may be the first cut.
        self.follower = np.append(follower, follower[-1])
        self.shares = (space.pivots / len(pipeline.profile)).astype(np.float32)
        self._cuts_before = [np.array([self.start]), *(np.arange(*window) for window in windows)]
        self.overlaps = [
            bool((self.follower[last] > low).any())
            for last, low in zip(self._cuts_before, self.low, strict=False)
        ]
        self._prepare_candidates()
        self._prepare_stages()
        self.first = self._first_features()
        self.openings = self._opening_features()
        # Environments of a problem share its kernel.
        for attribute in vars(self).values():
            if isinstance(attribute, np.ndarray):
                attribute.setflags(write=False)

    def _prepare_candidates(self) -> None:
        """Set the figures of each candidate: devices, seconds before it, and transfers over it."""
        space, pipeline, cluster = self.space, self.space.pipeline, self.space.pipeline.cluster
        # Entries c and c+1 are the end of the chain and its start.
        self.pivot = np.append(space.pivots, [len(pipeline.profile), 0])
        self.device = np.append(space.devices, [cluster.devices, 0])
        # A group of devices is inside a server if that of its first device is that of its last.
        last_device, per_server = self.device[: self.start] - 1, cluster.devices_per_server
        first_server: np.ndarray = server_of(self.device, per_server)
        last_server: np.ndarray = server_of(last_device, per_server)
        self.edge = np.searchsorted(last_server, first_server, side="right")
        self.seconds_sum = pipeline.seconds_sum[self.pivot]
        crossing = pipeline.cut_before[self.pivot]
        self.transfers = np.stack(
            [formulas.transfer_seconds(crossing, x) for x in (cluster.inter_bw, cluster.intra_bw)]
        )
        # The instance's maxima: all parameters over all devices, the largest cut over the cluster.
        all_devices = (np.array(0), np.array(cluster.devices))
        reduce = float(cluster.sync_seconds(pipeline.parameter_sum[-1:], *all_devices)[0])
        bandwidth = cluster.bandwidth(*all_devices)
        transfer = float(formulas.transfer_seconds(crossing[: self.end].max(), bandwidth))
        # What is always 0 is not divided.
        self._scale = np.array([reduce or 1.0, transfer or 1.0, 1.0])
        self.slow, self.fast = self._scaled(self.transfers, 1)
        self._last_stage = self._compute_and_reduce(np.arange(self.end), np.array(self.end))

    def _prepare_stages(self) -> None:
        """Set ``inside``, and tabulate stages and extremes if they take little enough memory."""
        # A transfer depends on the cut before and the cut after by way of the edge alone.
        before = [self._cuts_before[0], *self._cuts_before[:-1]]
        after = [*self._cuts_before[1:], np.array([self.end])]
        edges = [
            np.unique(self.edge[first].clip(cut[0], cut[-1] + 1))
            for first, cut in zip(before, after, strict=True)
        ]
        self.inside = [bool(edge[-1] > cut[0]) for edge, cut in zip(edges, after, strict=True)]
        sizes = [len(last) * len(cut) for last, cut in zip(self._cuts_before, after, strict=True)]
        variants = sum(size * len(edge) for size, edge in zip(sizes, edges, strict=True))
        # Bytes of the tables: 72 per pair of cuts, 12 per pair and side of a server, and masks.
        masks = sum(map(len, self._cuts_before)) * self.end
        self.tabulated = 72 * sum(sizes) + 12 * variants + masks <= self._most_bytes
        self.step_extremes: list[tuple[np.ndarray, np.ndarray]] = []
        self.step_masks: list[np.ndarray] = []
        self._variants: list[np.ndarray] = []
        if self.tabulated:
            self._tabulate_stages(after, sizes)
            self._tabulate_extremes(before, edges)

    def __deepcopy__(self, memo: dict[int, Any]) -> CutKernel:
        """Itself: nothing in it changes."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its space; tables are made anew, once in a process."""
        return kernel_of, (self.space, self._most_bytes)

    def reward(self, length: np.ndarray, excess_bytes: np.ndarray) -> np.ndarray:
        """Return the rewards of complete plans by their lengths and excess bytes, (m,) each."""
        return np.where(excess_bytes <= 0, formulas.value(length, self.bubble_free), ILLEGAL)

    def least_excess(self) -> float:
        """``Pipeline.excess_bytes`` of the plan that needs least; minus infinity without tables."""
        if not self.tabulated:
            return -np.inf
        # A dynamic program over the cuts; of each cut, the least fullest stage before it.
        *_, memory = self.figures
        fullest = np.zeros(1)
        for step, last in enumerate(self._cuts_before):
            cut = np.array([self.end]) if step == self.cuts else self._cuts_before[step + 1]
            pair = last[:, None] * self.columns[step] + cut + self.bias[step]
            legal = self.follower[last][:, None] <= cut
            after = np.where(legal, np.maximum(fullest[:, None], memory[pair]), np.inf)
            fullest = after.min(axis=0)
        return float(fullest.item() - self._limit)

    def add_stage(
        self, step: int, chains: np.ndarray, peaks: np.ndarray, paces: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Update the extremes over the completed stages for the stage that a new cut completes.

        Args:
            step: number of the stage.
            chains: (step + 2 or more, m), the new cut in row ``step + 1``.
            peaks: (m, 2) float32, longest scaled all-reduce and transfer before (step 0: anything).
            paces: (m, 2) float64, least compute seconds and minus the greatest before.

        Returns:
            ``peaks`` and ``paces`` with the new stage, fresh arrays.
        """
        last, cut = chains[step], chains[step + 1]
        if self.tabulated:
            pair = last * self.columns[step]
            pair += cut
            pair += self.bias[step]
            new_peaks, new_paces = self.peaks.take(pair, axis=0), self.paces.take(pair, axis=0)
        else:
            compute, reduce = self._compute_and_reduce(last, cut)
            new_peaks = np.stack([reduce, np.zeros_like(reduce)], axis=-1)
            new_paces = np.stack([compute, -compute], axis=-1)
        if step == 0:
            return new_peaks, new_paces
        # The transfer over the cut before is known only now: whether it stays in a server depends
        # on where this stage ends.
        link = self.slow.take(last)
        if self.inside[step]:
            link = np.where(cut < self.edge.take(chains[step - 1]), self.fast.take(last), link)
        new_peaks[:, 1] = link
        np.maximum(peaks, new_peaks, out=new_peaks)
        np.minimum(paces, new_paces, out=new_paces)
        return new_peaks, new_paces

    def features(
        self, step: int, chains: np.ndarray, peaks: np.ndarray, paces: np.ndarray, out: np.ndarray
    ) -> None:
        """Write features after ``step`` >= 1 cuts.

        Args:
            step: cuts made.
            chains: (step + 1 or more, m).
            peaks: (m, 2) float32, of the completed stages, see ``add_stage``.
            paces: (m, 2) float64, likewise.
            out: (m, c, 3) float32, all zeros.
        """
        low, high = self.low[step], self.high[step]
        rows = max(1, BLOCK // (high - low))
        for begin in range(0, chains.shape[1], rows):
            part = slice(begin, begin + rows)
            view = out[part, low:high]
            # Candidates that are not legal have paces 0 and -1, of which the ratio is 0.
            peak, pace = self.extremes(step, chains[step - 1, part], chains[step, part])
            longest, legal = peak[:, :2], peak[:, 2:]
            np.maximum(longest, peaks[part, :, None], out=longest)
            if self.overlaps[step]:
                longest *= legal
            view[..., 0], view[..., 1] = longest[:, 0], longest[:, 1]
            np.minimum(pace, paces[part, :, None], out=pace)
            ratio = np.divide(pace[:, 0], pace[:, 1])
            view[..., 2] = np.negative(ratio, out=ratio)

    def complete_evenly(self, step: int, chains: np.ndarray) -> None:
        """Complete plans by stages of equal seconds, as nearly as legal candidates allow.

        Args:
            step: cuts made less one.
            chains: (S+1, m), of which rows up to ``step + 1`` are given and the others are written.
        """
        before = self.seconds_sum[: self.end]
        for k in range(step + 1, self.cuts):
            last = chains[k]
            done = self.seconds_sum[last]
            ideal = done + (self.seconds_sum[self.end] - done) / (self.cuts + 1 - k)
            cut = np.searchsorted(before, ideal).clip(1, self.end - 1)
            # searchsorted gives the first candidate behind the ideal; the one before may be nearer.
            cut -= ideal - before[cut - 1] < before[cut] - ideal
            least = np.maximum(self.follower[last], self.low[k])
            chains[k + 1] = cut.clip(least, self.high[k] - 1)
        chains[self.cuts + 1] = self.end

    def length_and_excess(self, chains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``Pipeline.length`` and ``Pipeline.excess_bytes``, (m,), of whole plans (S+1, m)."""
        if not self.tabulated:
            inner, pipeline = chains[1:-1].T, self.space.pipeline
            plans = self.pivot[inner], self.device[inner]
            return pipeline.length(*plans), pipeline.excess_bytes(*plans)
        last = chains[1:-1]
        pair = chains[:-1] * self.columns[:, None]
        pair += chains[1:]
        pair += self.bias[:, None]
        seconds, backward, all_reduce, memory = self.figures.take(pair, axis=1)
        link = self.transfers[0].take(last)
        if any(self.inside):
            near = chains[2:] < self.edge.take(chains[:-2])
            link = np.where(near, self.transfers[1].take(last), link)
        core, tail = formulas.core_and_tail(
            formulas.interleaved(seconds, link + link),
            formulas.interleaved(backward, link),
            all_reduce,
            self._micro_batches,
        )
        return formulas.compose(core, tail), np.maximum.reduce(memory) - self._limit

    def extremes(
        self, step: int, before: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Extremes of the stage before and after each candidate, the rest being one last stage.

        Args:
            step: cuts made so far, at least 1.
            before: (m,) the last but one of them, or ``start``.
            last: (m,) the last of them.

        Returns:
            ``peaks`` (m, 3, w) float32: the longest scaled all-reduce and transfer, and whether the
            candidate is legal, 1 or 0; ``paces`` (m, 2, w) float64: least compute seconds, and the
            negative of the greatest; 0 and -1 where not legal. Fresh arrays.
        """
        if not self.tabulated:
            return self._compute_extremes(step, before, last)
        peaks, paces = self.step_extremes[step]
        variant = self._variants[step].take(before) + last
        return peaks.take(variant, axis=0), paces.take(last - self.low[step - 1], axis=0)

    def _compute_extremes(
        self, step: int, before: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """``extremes`` without tables; at step 0 ``before`` and ``last`` are ``start``."""
        cut, first = np.arange(self.low[step], self.high[step]), last[:, None]
        legal = cut >= self.follower[first]
        compute, reduce = self._compute_and_reduce(first, cut)
        compute_last, reduce_last = (figure[cut] for figure in self._last_stage)
        # Transfers over the last cut, whose bandwidth the candidate decides, and the candidate.
        link = np.where(cut < self.edge[before][:, None], self.fast[first], self.slow[first])
        link_new = np.where(self.edge[first] > self.end, self.fast[cut], self.slow[cut])
        peaks = np.zeros((len(last), 3, len(cut)), dtype=np.float32)
        np.maximum(reduce, reduce_last, out=peaks[:, 0], where=legal)
        np.maximum(link, link_new, out=peaks[:, 1], where=legal)
        peaks[:, 2] = legal
        paces = np.zeros((len(last), 2, len(cut)))
        paces[:, 1] = -1.0
        np.minimum(compute, compute_last, out=paces[:, 0], where=legal)
        np.minimum(-compute, -compute_last, out=paces[:, 1], where=legal)
        return peaks, paces

    def _compute_and_reduce(
        self, last: np.ndarray, cut: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute seconds and scaled all-reduce of the stages between two cuts, elementwise.

        Pairs that are no stage give numbers that mean nothing.
        """
        first = self.device[last]
        end = np.maximum(self.device[cut], first + 1)
        work = self.seconds_sum[cut] - self.seconds_sum[last]
        pivots = self.pivot[last], np.maximum(self.pivot[cut], self.pivot[last])
        reduce = self.space.pipeline.reduce_seconds(*pivots, first, end)
        return formulas.compute_seconds(work, end - first), self._scaled(reduce, 0)

    # How the tables are filled.

    def _tabulate_extremes(self, before: list[np.ndarray], edges: list[np.ndarray]) -> None:
        """Fill the tables of ``extremes``, one for each of the ``edges`` of a step."""
        for step in range(self.cuts):
            last, edge = self._cuts_before[step], edges[step]
            numbers = np.arange(self.end)
            legal = (numbers >= self.low[step]) & (numbers < self.high[step])
            self.step_masks.append(legal & (numbers >= self.follower[last][:, None]))
            if step == 0:
                self.step_extremes.append((np.empty(0), np.empty(0)))
                self._variants.append(np.empty(0))
                continue
            # One cut of each edge stands for all.
            clipped = self.edge[before[step]].clip(self.low[step], self.high[step])
            examples = before[step][[int(np.argmax(clipped == x)) for x in edge]]
            tables = [self._compute_extremes(step, np.full(len(last), x), last) for x in examples]
            peaks, (paces, *_) = zip(*tables, strict=True)  # paces do not depend on the edge
            self.step_extremes.append((np.concatenate(peaks), paces))
            rank = np.searchsorted(edge, self.edge.clip(edge[0], edge[-1]))
            self._variants.append(rank * len(last) - last[0])

    def _tabulate_stages(self, after: list[np.ndarray], sizes: list[int]) -> None:
        """Fill the tables of stages; ``after`` are the cuts that may end each, ``sizes`` pairs."""
        pipeline = self.space.pipeline
        offsets = np.cumsum([0, *sizes])
        self.columns = np.array([len(cut) for cut in after])
        starts = zip(self._cuts_before, after, strict=True)
        self.bias = offsets[:-1] - [last[0] * len(cut) + cut[0] for last, cut in starts]
        self.figures = np.empty((4, offsets[-1]))
        self.paces = np.empty((offsets[-1], 2))
        self.peaks = np.zeros((offsets[-1], 2), dtype=np.float32)
        for stage, (rows, columns) in enumerate(zip(self._cuts_before, after, strict=True)):
            pairs = slice(offsets[stage], offsets[stage + 1])
            last, cut = np.repeat(rows, len(columns)), np.tile(columns, len(rows))
            # Pairs that are no stage get one pivot and one device, to avoid division by zero; they
            # are never read.
            first, first_device = self.pivot[last], self.device[last]
            end = np.maximum(self.pivot[cut], first + 1)
            end_device = np.maximum(self.device[cut], first_device + 1)
            group = end_device - first_device
            forward, backward = (
                formulas.compute_seconds(total[end] - total[first], group)
                for total in (pipeline.forward_sum, pipeline.backward_sum)
            )
            self.figures[:, pairs] = (
                forward + backward,
                backward,
                pipeline.reduce_seconds(first, end, first_device, end_device),
                pipeline.memory_of(first, end, group, np.array(self.space.stages - stage)),
            )
            compute, self.peaks[pairs, 0] = self._compute_and_reduce(last, cut)
            self.paces[pairs] = np.stack([compute, -compute], axis=-1)

    def _first_features(self) -> np.ndarray:
        start = np.array([self.start])
        peaks, paces = self._compute_extremes(0, start, start)
        features = np.zeros((self.end, 3), dtype=np.float32)
        view = features[self.low[0] : self.high[0]]
        view[:, :2] = peaks[0, :2].T
        view[:, 2] = -(paces[0, 0] / paces[0, 1])
        return features

    def _opening_features(self) -> np.ndarray | None:
        cut = np.arange(self.low[0], self.high[0])
        if self.cuts < 2 or 3 * self.end * len(cut) > MAX_OPENINGS:
            return None
        chains = np.stack([np.full(len(cut), self.start), cut])
        unset = np.empty(0)
        peaks, paces = self.add_stage(0, chains, unset, unset)
        result = np.zeros((len(cut), self.end, 3), dtype=np.float32)
        self.features(1, chains, peaks, paces, result)
        return result

    def _scaled(self, figures: Any, feature: int) -> np.ndarray:
        return np.minimum(figures / self._scale[feature], 1.0).astype(np.float32)


_kernels: WeakValueDictionary[bytes, CutKernel] = WeakValueDictionary()


def kernel_of(space: CutSpace, most_bytes: int = MOST_BYTES) -> CutKernel:
    """The kernel of a space; spaces of equal content share one while it is in use."""
    pipeline, profile = space.pipeline, space.pipeline.profile
    options = tuple(pipeline.options.values())
    settings = (pipeline.cluster, pipeline.micro_batches, options, profile.tied, space.stages)
    # The content is the key, so environments that load a problem separately share its tables.
    key = hashlib.sha256(repr((*settings, most_bytes)).encode())
    arrays = [profile.forward, profile.backward, profile.cut_bytes, profile.parameter_bytes]
    optional = (profile.resident_bytes, profile.frozen_bytes)
    arrays += [array for array in optional if array is not None]
    for array in (*arrays, space.pivots, space.devices, space.allowed):
        key.update(f"{array.shape}".encode())
        key.update(array.tobytes())
    kernel = _kernels.get(key.digest())
    if kernel is None:
        kernel = _kernels[key.digest()] = CutKernel(space, most_bytes)
    return kernel


SHARP = 10.0
"""What column 0 gives for a plan of a whole reward more than the best of the others."""


class PipelineCut(Rowed):
    """Cut a model into S pipeline stages so that a training step is as short as possible.

    ## Description
    The forward instructions of a model are a chain of pivots. Step k chooses the first pivot of
    stage k+1 among the candidates; the cut of the devices follows from it: each stage gets devices
    in proportion to its seconds. After S-1 cuts the judge computes the length of a training step,
    with all-reduces and transfers (arXiv 2007.04069, sections 3.5 and 4.4; the formula is in
    ``parenvs.tasks.pipeline.formulas``).

    ## Action Space
    ``Discrete(c)``: the index of a candidate; ``game.space.pivots[action]`` is its pivot. A
    candidate is legal if it lies after the last cut and within the window of this step, leaves
    every stage a variable and a device, and can be followed by the remaining cuts. The mask of
    legal actions is ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or part of the
    observation with ``parenvs.wrappers.MaskInObservation``. Memory is not masked.

    ## Observation Space
    ``Dict``:

    * ``features``: (c, 3) float32 in [0, 1], of the plan that cuts at the candidate next and makes
      the rest of the chain the last stage: the longest all-reduce and the longest transfer, each
      divided by the instance's maximum, and the shortest compute time of a stage divided by the
      longest. Zeros for candidates that are not legal.
    * ``cuts``: (S-1,) float32 in [-1, 1], the chosen cuts divided by n, -1 if not yet chosen.
    * ``step``: Discrete(S), the number of cuts made.

    With ``rows`` a row for each candidate instead, see ``parenvs.core.game.Rowed``:

    * ``actions``: (c, 8) float32; ``context``: (4,) float32; ``action_mask``: (c,) int8.

    ## Rewards
    0 for every cut but the last. The last pays 1/L, where L is the length in units of the
    bubble-free time (all devices compute all the time), so it lies in (0, 1]; or -1 if a stage
    exceeds the device memory. An illegal action pays -1 and ends the episode.

    ## Starting State
    No cut; the same at every reset.

    ## Episode End
    After S-1 cuts or an illegal action. No truncation.

    ## Arguments
    * ``instance``: shipped name, path of a ``.csv`` profile or of a graph, ``parenvs.Graph`` or
      ``parenvs.StageProfile``; the last two make a specification that is not serializable.
    * ``cluster``: preset, short form, ``.json`` path or object, see ``Cluster.parse``.
    * ``stages``: S (default: one stage a server).
    * ``micro_batch``, ``micro_batches``: samples in a micro-batch, micro-batches in a step.
    * ``copies``, ``recompute``, ``sync``, ``tied``: copies of the parameters on each device,
      recomputation of activations, synchronization of gradients and tied weights, see
      ``parenvs.Pipeline``.
    * ``radius``: largest distance of a device cut from the center solution.
    * ``candidates``: ``"minima"``, pivots at which fewest bytes cross, or ``"all"``.
    * ``rows``: None, or ``"ahead"`` or ``"bare"``, with which candidates are observed as rows.
    * ``paper``: plays the task of arXiv 2007.04069, section 4.4: ``candidates="all"``, and
      ``features`` alone are observed.
    * ``problem``: a ``parenvs.Pipeline``, in place of all the above but ``radius``,
      ``candidates``, ``rows`` and ``paper``.

    Each but ``rows`` and ``paper`` is also a key of ``reset(options=...)``, for one episode, if the
    spaces stay the same.

    ## Infos
    ``action_mask``; at a reset and at the end ``instance``; at the end of a complete plan ``cost``,
    the seconds of a training step if it fits the memory, and ``excess_bytes``, by which the
    fullest stage exceeds the memory of a device (<= 0: it fits).

    ## Many at Once
    ``gym.make_vec("PipelineCut-v0", num_envs=1024)``, see ``PipelineCutVectorEnv``.

    ## Version History
    * v0: first version.
    """

    options = ("instance", "cluster", *PIPELINE_OPTIONS, "radius", "candidates", "problem")
    exact = "parenvs.agents.pipeline.planners:best_of_game"
    rule = "the cut after which the step is shortest if the rest of the chain is cut evenly"
    columns: ClassVar[Mapping[str, str]] = {
        "rule": "10 times the reward, less that of the best legal candidate",
        "reward": "of the plan that goes on with stages of the same seconds each",
        "all_reduce": "longest all-reduce if the rest is one stage, over the instance's maximum",
        "transfer": "longest transfer then, over the instance's maximum",
        "balance": "shortest compute time of a stage then, over the longest",
        "pivot": "the pivot over n",
        "stage": "seconds of the stage that ends there, over those of all that are left, evenly, "
        "over 4",
        "devices": "devices of that stage, as a share of all",
    }
    ahead = frozenset({"rule", "reward", "all_reduce", "transfer", "balance"})
    contexts: ClassVar[Mapping[str, str]] = {
        "made": "share of the cuts that are made",
        "last": "pivot of the last cut over n, 0 before the first",
        "left": "share of the seconds after it",
        "stages": "log2 of the stages / 10",
    }

    def __init__(
        self,
        count: int = 1,
        *,
        instance: str | Graph | StageProfile = "t5-base",
        cluster: str | dict[str, Any] = "C",
        stages: int | None = None,
        micro_batch: int = MICRO_BATCH,
        micro_batches: int = MICRO_BATCHES,
        copies: float = COPIES,
        recompute: str = RECOMPUTE[0],
        sync: str = SYNC_METHODS[0],
        tied: str = TIED[0],
        radius: int = RADIUS,
        candidates: str = "minima",
        rows: str | None = None,
        paper: bool = False,
        problem: Pipeline | None = None,
    ) -> None:
        arguments = locals()
        super().__init__(count)
        if paper and rows is not None:
            raise ParenvsError("paper: its task has no rows; leave them out")
        if problem is None:
            settings = {name: arguments[name] for name in PIPELINE_OPTIONS}
            problem = load_problem(instance, cluster, **settings, fractions=True)
        space = CutSpace.build(problem.with_fractions(), radius, "all" if paper else candidates)
        kernel = kernel_of(space)
        lowest_excess = kernel.least_excess()
        if lowest_excess > 0:
            warnings.warn(
                f"no plan fits the memory: {problem.instance} on {problem.cluster}: the fullest "
                f"stage exceeds that of a device by {lowest_excess:,.0f} bytes or more, so every "
                "episode pays -1",
                stacklevel=3,
            )
        # Tables that take longer to build pay off in many environments.
        if count > 1 and not kernel.tabulated:
            kernel = kernel_of(space, MAX_BYTES_VECTOR)
        self.source = Fixed(kernel)
        candidate_count, cuts = kernel.end, kernel.cuts
        self.action_space = spaces.Discrete(candidate_count)
        observed: dict[str, spaces.Space[Any]] = {
            "features": spaces.Box(0.0, 1.0, (candidate_count, 3), np.float32)
        }
        if not paper:
            observed["cuts"] = spaces.Box(-1.0, 1.0, (cuts,), np.float32)
            observed["step"] = spaces.Discrete(cuts + 1)
        self.observation_space, self._paper = spaces.Dict(observed), paper
        if rows is not None:
            self.show_rows(candidate_count, rows)
        # Row k of chains is cut k of every episode, between the ends of the model.
        self.chains = np.full((cuts + 2, count), kernel.end)
        self.chains[0] = kernel.start
        self.steps = np.empty(count, dtype=np.int64)
        self.figures = np.empty((2, count))  # length and excess bytes of complete plans
        self._cuts = np.empty((count, cuts), dtype=np.float32)
        # Legal are the candidates [begin, end) of each episode.
        self._window, self._first_window = np.empty((2, count, 2), dtype=np.int64)
        # Extremes over the completed stages, see CutKernel.add_stage.
        self._peaks, self._paces = np.zeros((count, 2), dtype=np.float32), np.zeros((count, 2))
        # Cuts that all have made, if they are as many and no episode is over.
        self._common: int | None = None

    @property
    def kernel(self) -> CutKernel | None:
        """The kernel of the problem that all episodes have; None if their problems differ."""
        kernel: CutKernel | None = self._shared
        return kernel

    @property
    def legal(self) -> np.ndarray:
        step, kernel = self._common, self.kernel
        if kernel is not None and step is not None:
            if step == 0 or not kernel.overlaps[step]:
                legal = np.zeros((self.count, kernel.end), dtype=np.bool_)
                legal[:, slice(*self._window[0])] = True
                return legal
            if kernel.tabulated:
                last = self.chains[step] - kernel.low[step - 1]
                return kernel.step_masks[step].take(last, axis=0)
        numbers, (begin, end) = np.arange(self.action_space.n), self._window.T[..., None]
        return (numbers >= begin) & (numbers < end)

    def put(self, rows: Rows, problem: CutKernel) -> None:
        begin = max(problem.follower[problem.start], problem.low[0])
        self._first_window[rows] = begin, problem.high[0]

    def start(self, rows: Rows) -> None:
        self.steps[rows] = 0
        self.over[rows] = False
        self._cuts[rows] = -1.0
        self._window[rows] = self._first_window[rows]
        self._common = 0 if rows is EVERY else self._common_step()

    def play(self, rows: Rows, actions: np.ndarray) -> np.ndarray:
        kernel, step, (begin, end) = self.kernel, self._common, self._window[rows].T
        legal = (actions >= begin) & (actions < end)
        if (
            rows is EVERY
            and kernel is not None
            and step is not None
            and np.count_nonzero(legal) == self.count
        ):
            self._common = step + 1 if step + 1 < kernel.cuts else None
            return self._cut(kernel, step, EVERY, actions)
        rows, rewards = self._rows[rows], np.full(len(actions), ILLEGAL)
        illegal = rows[~legal]
        self.over[illegal], self.figures[:, illegal] = True, np.nan
        for kernel, step, index in self._groups(rows, legal):
            rewards[index] = self._cut(kernel, step, rows[index], actions[index])
        self._common = self._common_step()
        return rewards

    def observation(self, rows: Rows) -> dict[str, np.ndarray]:
        features = self._features(rows)
        if self.shown:
            return self.row_observation(rows, features, self.legal[rows])
        if self._paper:
            return {"features": features}
        return {"features": features, "cuts": self._cuts[rows], "step": self.steps[rows]}

    def row_observation(
        self, rows: Rows, features: np.ndarray, legal: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return what is observed of episodes as rows.

        Args:
            rows: the episodes.
            features: (k, c, 3), as in the observation without rows.
            legal: (k, c) bool.
        """
        rows = self._rows[rows]
        pivot, stage, devices, reward = np.zeros((4, *legal.shape))
        context = np.zeros((len(rows), len(self.contexts)), dtype=np.float32)
        for kernel, step, index in self._groups(rows, ~self.over[rows]):
            chains, stages = self.chains[:, rows[index]], kernel.cuts + 1
            seconds = kernel.seconds_sum / kernel.seconds_sum[kernel.end]
            done, before = seconds[chains[step]], kernel.device[chains[step]]
            pivot[index] = kernel.shares
            even = (1.0 - done) / (stages - step)
            stage[index] = (seconds[: kernel.end] - done[:, None]) / (4.0 * even[:, None])
            ahead = kernel.device[: kernel.end] - before[:, None]
            devices[index] = ahead / kernel.device[kernel.end]
            context[index, 0] = step / kernel.cuts
            context[index, 1] = kernel.shares[chains[step]] if step else 0.0
            context[index, 2], context[index, 3] = 1.0 - done, np.log2(stages) / 10
            if self.looks:
                episode, cut = legal[index].nonzero()
                plans = chains[:, episode]
                plans[step + 1] = cut
                kernel.complete_evenly(step, plans)
                reward[index[episode], cut] = kernel.reward(*kernel.length_and_excess(plans))
        # Relative to the best legal candidate, the score does not depend on how good the problem
        # is.
        best = np.where(legal, reward, -np.inf).max(axis=1, keepdims=True)
        reduce, transfer, balance = features.transpose(2, 0, 1)
        columns = {
            "rule": SHARP * (reward - best), "reward": reward, "all_reduce": reduce,
            "transfer": transfer, "balance": balance, "pivot": pivot, "stage": stage,
            "devices": devices,
        }  # fmt: skip
        return self.as_rows(columns, context, legal, self.over[rows])

    def outcome(self, rows: Rows) -> dict[str, np.ndarray]:
        length, excess_bytes = self.figures[:, rows]
        return {"cost": np.where(excess_bytes > 0, np.nan, length), "excess_bytes": excess_bytes}

    def plan(self, row: int) -> PipelinePlan:
        """Return the plan so far; the rest of the chain is its last stage."""
        space = self.space_of(row)
        return space.pipeline.plan(*space.plan(self.chains[1 : 1 + self.steps[row], row]))

    def problem(self, row: int) -> Pipeline:
        return self.space_of(row).pipeline

    def space_of(self, row: int) -> CutSpace:
        """Return the candidates of an episode's problem."""
        space: CutSpace = self._problems[row].space
        return space

    @property
    def space(self) -> CutSpace:
        """The candidates of the first episode's problem."""
        return self.space_of(0)

    def view(self, row: int) -> Report | Pipeline:
        return self.problem(row).so_far(self.plan(row))

    def elsewhere(self, options: dict[str, Any]) -> Source:
        """See ``Game.elsewhere``; rows would show another number of cuts alike.

        Raises:
            ParenvsError: the problem has another number of stages.
        """
        source = super().elsewhere(options)
        stages, other = self.episode_steps + 1, source.only.cuts + 1
        if stages != other:
            raise ParenvsError(
                f"options: {', '.join(options)} would change the stages from {stages} to {other}; "
                "make another environment for it"
            )
        return source

    @property
    def episode_steps(self) -> int:
        """Steps of an episode in which no action is illegal."""
        return len(self.chains) - 2

    def _groups(
        self, rows: np.ndarray, chosen: np.ndarray
    ) -> Iterator[tuple[CutKernel, int, np.ndarray]]:
        """Yield a kernel, a number of cuts made, and the indices of ``chosen`` rows with both."""
        if not chosen.any():
            return
        steps, held = self.steps[rows], [self._problems[row] for row in rows.tolist()]
        for kernel in dict.fromkeys(held):
            alike = chosen if self.kernel else chosen & [other is kernel for other in held]
            for step in range(kernel.cuts):
                index = np.flatnonzero(alike & (steps == step))
                if index.size:
                    yield kernel, step, index

    def _common_step(self) -> int | None:
        """Return the number of cuts that all have made, if they are as many and none is over."""
        steps = int(self.steps[0])
        return steps if not self.over.any() and bool((self.steps == steps).all()) else None

    def _cut(self, kernel: CutKernel, step: int, rows: Rows, actions: np.ndarray) -> np.ndarray:
        """Take legal actions in episodes of a kernel with ``step`` cuts; returns rewards (k,)."""
        self.chains[step + 1, rows] = actions
        self._cuts[rows, step] = kernel.shares.take(actions)
        self.steps[rows] = step + 1
        if step + 1 == kernel.cuts:
            length, excess_bytes = kernel.length_and_excess(self.chains[:, rows])
            self.figures[0, rows], self.figures[1, rows] = length, excess_bytes
            self.over[rows] = True
            return kernel.reward(length, excess_bytes)
        # The next cut lies in its step's window, and behind what may follow this one.
        self._window[rows, 0] = np.maximum(kernel.follower.take(actions), kernel.low[step + 1])
        self._window[rows, 1] = kernel.high[step + 1]
        self._peaks[rows], self._paces[rows] = kernel.add_stage(
            step, self.chains[:, rows], self._peaks[rows], self._paces[rows]
        )
        return np.zeros(len(actions))

    def _features(self, rows: Rows) -> np.ndarray:
        kernel, step, size = self.kernel, self._common, self.action_space.n
        if rows is EVERY and kernel is not None and step is not None:
            if step == 0:
                features = np.empty((self.count, size, 3), dtype=np.float32)
                features[:] = kernel.first
                return features
            if step == 1 and kernel.openings is not None:
                return kernel.openings.take(self.chains[1] - kernel.low[0], axis=0, mode="clip")
            return self._computed(kernel, step, EVERY)
        rows = self._rows[rows]
        features = np.zeros((len(rows), size, 3), dtype=np.float32)
        for kernel, step, index in self._groups(rows, ~self.over[rows]):
            features[index] = self._computed(kernel, step, rows[index]) if step else kernel.first
        return features

    def _computed(self, kernel: CutKernel, step: int, rows: Rows) -> np.ndarray:
        chains = self.chains[:, rows]
        features = np.zeros((chains.shape[1], kernel.end, 3), dtype=np.float32)
        kernel.features(step, chains, self._peaks[rows], self._paces[rows], features)
        return features


class PipelineCutEnv(GameEnv, game=PipelineCut):
    """A single environment of ``PipelineCut``."""


class PipelineCutVectorEnv(GameVectorEnv, single=PipelineCutEnv):
    """A native batch of ``PipelineCut``."""
