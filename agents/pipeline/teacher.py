"""What each action of ``PipelinePlan-v0`` is worth: the return of the best plan behind it.

The labels of all suffixes (``parenvs.agents.pipeline.labels``) say how a plan can end; an action is
worth what the stages before it and the best of these ends give together. Ends of plans longer than
``LIMIT`` times the shortest are not kept, so actions that lead to no other have no worth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parenvs.agents.pipeline.exact import exact_points
from parenvs.agents.pipeline.labels import LabelSearch
from parenvs.compiled import Array, compiled
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.planning import POINTS, PipelinePlanning
from parenvs.tasks.pipeline.problem import (
    bytes_of,
    in_front,
    is_near,
    link_seconds,
    reduce_seconds,
    through,
)
from parenvs.tasks.pipeline.spaces import PointSpace

LIMIT = 1.2
"""Length of the longest plans whose ends are kept, over that of the shortest."""


class Ends:
    """How plans of a problem can end.

    Attributes:
        shortest: seconds of the shortest plan, proven.
    """

    def __init__(self, space: PointSpace) -> None:
        self.space, pipeline = space, space.pipeline
        self.shortest = exact_points(space).cost
        search = LabelSearch(
            pipeline, space.pivots[1:-1], LIMIT * self.shortest, devices=space.devices, whole=True
        )
        search.run()
        self.tables, self.layers = search.tables, search.layers

    def seconds(self, points: Array, units: Array) -> Array:
        """Return the seconds of the shortest plan behind each choice of an end, (m+1, u+1).

        Args:
            points: (k,) first points of the stages so far; the last one's end is to be chosen.
            units: (k,) their first units.
        """
        space, stages_left = self.space, self.space.stages - len(points)
        core, tail = _ends(
            self.tables, self.layers[stages_left], space.pivots, space.devices,
            space.pivots[points], space.devices[units], stages_left + 1,
        )  # fmt: skip
        return formulas.compose(core, tail)


@compiled
def _ends(tables, labels, pivots, devices, cuts, device_cuts, left):
    """Core and tail, (m+1, u+1) each, of the shortest plans behind choices of a stage's end."""
    m, last = tables.micro_batches, len(cuts) - 1
    passed, hidden, core, tail = in_front(tables, cuts, device_cuts, last)
    p, e = cuts[last], device_cuts[last]
    cores = np.full((len(pivots), len(devices)), np.inf)
    tails = np.zeros((len(pivots), len(devices)))
    for unit in range(1, len(devices) - 1):
        d = devices[unit]
        if d <= e or not tables.is_group[d - e]:
            continue
        before, before_core, before_hidden = passed, core, hidden
        if last:
            link = link_seconds(tables, p, is_near(tables, device_cuts[last - 1], d))
            before += 2 * link
            before_core = max(core, through(before, 2 * link, m))
            before_hidden += link
        near = is_near(tables, e, d)
        shared = is_near(tables, e, d + 1)
        label, stop = labels.start[shared, d], labels.start[shared, d + 1]
        for point in range(1, len(pivots) - 1):
            q = pivots[point]
            while label < stop and labels.pivot[label] < q:
                label += 1
            if q <= p or label == stop or labels.pivot[label] != q:
                continue
            if tables.variables[q] == tables.variables[p]:
                continue
            if bytes_of(tables, p, q, d - e, left) > tables.limit:
                continue
            x = (tables.work[q] - tables.work[p]) / (d - e)
            prefix_core = max(before_core, through(before + x, x, m))
            reduce = reduce_seconds(tables, p, q, near, d - e)
            prefix_tail = max(tail, reduce - before_hidden)
            prefix_hidden = before_hidden + (tables.backward[q] - tables.backward[p]) / (d - e)
            while label < stop and labels.pivot[label] == q:
                plan_core = max(prefix_core, before + x + labels.core[label])
                plan_tail = max(prefix_tail, labels.tail[label] - prefix_hidden, 0.0)
                if plan_core + plan_tail < cores[point, unit] + tails[point, unit]:
                    cores[point, unit], tails[point, unit] = plan_core, plan_tail
                label += 1
    return cores, tails


def teach(game: Any) -> Callable[[], Array] | None:
    """Return a function of what actions are worth, (n, 192), NaN where no plan behind is kept.

    The unit is the return of the shortest plan; None is returned of another game.
    """
    if not isinstance(game, PipelinePlanning):
        return None
    cached: dict[int, Ends] = {}

    def action_values() -> Array:
        nonlocal cached
        rows = np.flatnonzero(~game.over).tolist()
        current = {id(game.space_of(row)) for row in rows}
        cached = {key: ends for key, ends in cached.items() if key in current}
        result = np.full(game.legal.shape, np.nan, np.float32)
        for row in rows:
            space = game.space_of(row)
            if id(space) not in cached:
                cached[id(space)] = Ends(space)
            stage, is_unit = divmod(int(game.choices[row]), 2)
            ends = cached[id(space)]
            seconds = ends.seconds(game.points[row, : stage + 1], game.units[row, : stage + 1])
            # The ends of the chain and of the devices are no actions.
            value = (ends.shortest / seconds)[:-1, :-1]
            if is_unit:
                value = value[game.points[row, stage + 1]]
                result[row, POINTS : POINTS + len(value)] = np.where(value > 0, value, np.nan)
            else:
                value = value.max(axis=1)
                result[row, : len(value)] = np.where(value > 0, value, np.nan)
        return np.where(game.legal, result, np.nan)

    return action_values
