"""The best cuts and splits for given orders of the servers, by core: a dynamic program.

Many orders are completed at once. What counts is the core of a step, which is all but a few
thousandths of its length; the plan that comes out is judged whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parenvs.agents.hybrid.servers.tables import NEVER, ServerTables
from parenvs.agents.hybrid.tables import FIRST, INNER, LAST
from parenvs.tasks.hybrid.plan import SCHEDULES, SENDS, HybridPlan, HybridStage
from parenvs.tasks.pipeline.formulas import prepend_core


class Completed(NamedTuple):
    """The best plans of orders.

    Attributes:
        core: (B,) seconds; at least ``NEVER`` where no plan fits.
        stages: (B,) of them; the last so many servers of the order are used.
        cuts: for each order, the first layer of each stage.
        splits: for each order, the number of each stage's split.
    """

    core: np.ndarray
    stages: np.ndarray
    cuts: list[list[int]]
    splits: list[list[int]]


def complete(tables: ServerTables, orders: np.ndarray) -> Completed:
    """Find the cuts and splits of least core for orders of servers.

    The last stage is on the last server of an order. Servers at its front may be left out.

    Args:
        tables: the costs.
        orders: (B, P) speeds of the servers in their order, as numbers in ``tables.speeds``.
    """
    orders = np.atleast_2d(orders)
    batch, servers = orders.shape
    model, m = tables.problem.model, tables.setting.micro_batches
    n, rows = len(model), np.arange(batch)
    core = np.full((batch, n + 1), NEVER)
    core[:, n] = 0.0
    begin = np.arange(n + 1)
    sizes = tables.sizes
    end = np.minimum(begin[:, None] + sizes, n)
    number = tables.number[begin[:, None], end]
    number = np.where(begin[:, None] + sizes <= n, number, -1)
    links = 2 * tables.link[:, :, None]
    best, count = np.full(batch, NEVER), np.zeros(batch, dtype=np.int64)
    chosen, firsts = [], []
    for k in range(1, servers + 1):
        speed = orders[:, servers - k]
        if k > 1:
            seconds = tables.costs(FIRST, k).seconds[speed][:, :, tables.number[0]]
            whole = prepend_core(core[:, None], seconds, m).reshape(batch, -1)
            at = whole.argmin(axis=1)
            better = whole[rows, at] < best
            best = np.where(better, whole[rows, at], best)
            count = np.where(better, k, count)
            firsts.append(at)
        else:
            firsts.append(np.zeros(batch, dtype=np.int64))
        if k == servers:
            break
        seconds = tables.costs(LAST if k == 1 else INNER, k).seconds[speed]
        may_be_empty = k == 1 and model.head is not None
        own = number if may_be_empty else np.where(number == tables.number[0, 0], -1, number)
        behind = prepend_core(core[:, end][:, None], seconds[:, :, own], m)
        behind = prepend_core(behind, links, m)  # (B, C, n+1, w)
        if model.embedding is None:
            behind[:, :, 0] = NEVER
        behind = behind.transpose(0, 2, 1, 3).reshape(batch, n + 1, -1)
        at = behind.argmin(axis=2)
        core = np.take_along_axis(behind, at[:, :, None], 2)[:, :, 0]
        chosen.append(at)
    cuts, splits = [], []
    for row in range(batch):
        own_cuts, own_splits = [0], []
        if best[row] < NEVER:
            k = int(count[row])
            split, layer = divmod(int(firsts[k - 1][row]), n + 1)
            own_splits.append(split)
            for left in range(k - 1, 0, -1):
                own_cuts.append(layer)
                split, size = divmod(int(chosen[left - 1][row, layer]), len(sizes))
                own_splits.append(split)
                layer += int(sizes[size])
        cuts.append(own_cuts)
        splits.append(own_splits)
    return Completed(best, count, cuts, splits)


def plan_of(
    tables: ServerTables, servers: list[int], cuts: list[int], splits: list[int]
) -> HybridPlan:
    """Return the plan of one server for each stage, with as few layers recomputed as memory asks.

    Args:
        tables: the costs; every server's own speed must be among its speeds.
        servers: numbers of the servers, the first stage's first; the others of the cluster are
            left unused.
        cuts: first layer of each stage.
        splits: number of each stage's tp and ZeRO in the tables.
    """
    problem, setting = tables.problem, tables.setting
    ends, count = [*cuts[1:], len(problem.model)], len(cuts)
    own = problem.cluster.speeds or (1.0,) * problem.cluster.servers
    stages: list[HybridStage] = []
    for place, (server, first, end, split) in enumerate(
        zip(servers, cuts, ends, splits, strict=True)
    ):
        left = count - place
        which = FIRST if place == 0 else LAST if left == 1 else INNER
        speed = int(np.searchsorted(tables.speeds, own[server]))
        stages.append(tables.stage(which, left, speed, split, (first, end)))
    unused = [server for server in range(problem.cluster.servers) if server not in set(servers)]
    software = setting.software
    replicas = stages[0].devices // stages[0].tp
    return problem.plan(
        stages,
        setting.samples // replicas,
        schedule=SCHEDULES[0],
        sequence_parallel=setting.sequence_parallel and any(stage.tp > 1 for stage in stages),
        p2p=SENDS[0] if software.blocking else SENDS[1],
        gradient_bytes=software.gradient_bytes,
        gradient_overlap=software.gradient_overlap,
        servers=(*servers, *unused),
    )
