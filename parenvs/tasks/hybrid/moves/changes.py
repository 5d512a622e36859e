"""What moves do to a plan, and which plans are legal, compiled.

A plan is some rows of whole numbers, see ``Plan``. A function that changes a plan returns whether
it can be changed so; what it leaves of a plan that cannot be is of no use.
"""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np

from parenvs.compiled import Array, bare
from parenvs.tasks.hybrid.moves import catalog
from parenvs.tasks.hybrid.moves import columns as col

FEW = 12
"""Stages, or pieces of the chain, that any plan can get by a move; others can double theirs."""


Plan = namedtuple("Plan", ("numbers", "stages", "ends", "servers"))
"""Plans as arrays; or one plan, without the first axis. Columns are those of ``columns``.

Attributes:
    numbers: (N, 7)
    stages: (N, S, 5); those behind the last stage are not read.
    ends: (N, G) layer behind each piece of the chain; those behind the last one are not read.
    servers: (N, V) order of the servers.
"""


Problems = namedtuple("Problems", (
    "known", "kinds_before", "crossing", "speeds", "places", "figures",
))  # fmt: skip
"""Problems as arrays, one in each row.

Attributes:
    known: (P,) records, see ``parenvs.tasks.hybrid.plan_arrays.KNOWN``.
    kinds_before: (P, n + 1, K) layers of each kind before each boundary.
    crossing: (P, n + 1) elements per sample that cross each boundary.
    speeds: (P, V) of servers.
    places: (P, 4, X) of samples, tp, context and expert among those of the splits; -1: none.
    figures: (P, n, 2 + K, 16) of embedding, head and K kinds of layers by split.
"""


@bare
def plan_at(plans: Plan, k: int) -> Plan:
    """Return one of several plans, as views."""
    return Plan(plans.numbers[k], plans.stages[k], plans.ends[k], plans.servers[k])


@bare
def copy_plan(to: Plan, plan: Plan) -> None:
    """Write a plan over another one."""
    count = plan.numbers[col.COUNT]
    for i in range(col.WHOLE):
        to.numbers[i] = plan.numbers[i]
    for stage in range(count):
        for i in range(col.OF_STAGE):
            to.stages[stage, i] = plan.stages[stage, i]
    for piece in range(count * plan.numbers[col.CHUNKS]):
        to.ends[piece] = plan.ends[piece]
    for place in range(len(plan.servers)):
        to.servers[place] = plan.servers[place]


@bare
def differ(one: Plan, other: Plan) -> bool:
    """Return whether two plans of a problem are different."""
    count, changed = one.numbers[col.COUNT], False
    for i in range(col.WHOLE):
        changed |= one.numbers[i] != other.numbers[i]
    if changed:
        return True
    for stage in range(count):
        for i in range(col.OF_STAGE):
            changed |= one.stages[stage, i] != other.stages[stage, i]
    for piece in range(count * one.numbers[col.CHUNKS]):
        changed |= one.ends[piece] != other.ends[piece]
    for place in range(len(one.servers)):
        changed |= one.servers[place] != other.servers[place]
    return changed


@bare
def busiest_first(count: int, busy: Array, order: Array) -> None:
    """Write the numbers of stages, the busiest first, of equal ones the first."""
    for stage in range(count):
        place = stage
        while place > 0 and busy[order[place - 1]] < busy[stage]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = stage


@bare
def total(plan: Plan, column: int, end: int) -> int:
    """Sum a number of the stages in front of ``end``."""
    result = 0
    for stage in range(end):
        result += plan.stages[stage, column]
    return result


@bare
def most(plan: Plan, column: int) -> int:
    """Return the largest number of the stages."""
    result = 0
    for stage in range(plan.numbers[col.COUNT]):
        result = max(result, plan.stages[stage, column])
    return result


@bare
def layers_of(plan: Plan, stage: int) -> int:
    """Return the layers of a stage."""
    count, size = plan.numbers[col.COUNT], 0
    # Piece c S + s is chunk c of stage s.
    for piece in range(stage, count * plan.numbers[col.CHUNKS], count):
        size += plan.ends[piece] - (plan.ends[piece - 1] if piece > 0 else 0)
    return size


@bare
def slowest(
    problems: Problems, row: int, plan: Plan, first: int, devices: int, sign: int
) -> tuple[float, int]:
    """Return speed and place of the slowest (1) or fastest (-1) server of a range of devices."""
    inside, least, place = problems.known[row].devices_per_server, np.inf, 0
    # Rounded up: a stage may begin or end inside a server.
    for server in range(first // inside, -(-(first + devices) // inside)):
        speed = sign * problems.speeds[row, plan.servers[server]]
        if speed < least:
            least, place = speed, server
    return least, place


@bare
def _recompute(plan: Plan, full: float, selective: float) -> None:
    """Recompute such shares of the layers of every stage, rounded up."""
    for stage in range(plan.numbers[col.COUNT]):
        size = layers_of(plan, stage)
        # 1e-9: a share that came of whole layers must not round up by an error of floats.
        plan.stages[stage, col.FULL] = int(np.ceil(size * full - 1e-9))
        plan.stages[stage, col.SELECTIVE] = int(np.ceil(size * selective - 1e-9))


@bare
def _scaled(number: int, factor: float) -> int:
    """Return a number times as large; 0 where that is not whole."""
    scaled = number * factor
    whole = int(np.rint(scaled))
    return whole if abs(scaled - whole) < 1e-9 else 0


@bare
def _stages(plan: Plan, value: float, towards: int) -> bool:
    """All stages anew: ``value`` times as many, each with as many devices; tp is the first's.

    With ``towards`` 1 the pieces of the chain stay about as many, else each stage has one.
    """
    numbers, stages, before = plan.numbers, plan.stages, plan.numbers[col.COUNT]
    tp, ranks = stages[0, col.TP], stages[0, col.TP] * numbers[col.CONTEXT]
    # A replica keeps its micro-batch, so memory changes little.
    per_replica = numbers[col.SAMPLES] // max(stages[0, col.DEVICES] // ranks, 1)
    devices, zero = total(plan, col.DEVICES, before), most(plan, col.ZERO)
    count = int(np.rint(before * value))
    # Thirds are floats.
    if abs(before * value - count) >= 1e-6 or not 1 <= count <= min(max(2 * before, FEW), 64):
        return False
    # Devices must be dealt out evenly, in whole replicas.
    if devices % (count * ranks) != 0:
        return False
    numbers[col.CHUNKS] = max(before * numbers[col.CHUNKS] // count, 1) if towards == 1 else 1
    numbers[col.COUNT] = count
    for stage in range(count):
        stages[stage, col.DEVICES], stages[stage, col.TP] = devices // count, tp
        stages[stage, col.ZERO] = zero
    numbers[col.SAMPLES] = per_replica * max(devices // count // ranks, 1)
    return True


@bare
def _layout(
    problems: Problems, row: int, plan: Plan, kind: int, value: float, towards: int
) -> bool:
    """Moves after which all stages recompute the shares of layers that the plan did."""
    layers, count = problems.known[row].layers, plan.numbers[col.COUNT]
    full, selective = total(plan, col.FULL, count), total(plan, col.SELECTIVE, count)
    if kind == catalog.BY_STAGES and not _stages(plan, value, towards):
        return False
    if kind == catalog.BY_CHUNKS:  # more or less by ``towards``, or ``value`` times; 0: one
        before = plan.numbers[col.CHUNKS]
        chunks = max(before + towards if towards != 0 else int(np.rint(before * value)), 1)
        plan.numbers[col.CHUNKS] = chunks if chunks * count <= max(2 * before * count, FEW) else 1
    pieces, whole = plan.numbers[col.COUNT] * plan.numbers[col.CHUNKS], 0.0
    # Every piece but the first and the last has a layer.
    if pieces > layers + 2:
        return False
    # Layers are dealt out evenly over the pieces, embedding and head as a layer each.
    for piece in range(0 if kind == catalog.BY_BALANCE else pieces):
        # n + 2 units with embedding and head; the first unit is the embedding, hence - 1.
        end = int(np.rint((piece + 1) * (layers + 2) / pieces)) - 1
        if layers % pieces == 0:
            end = (piece + 1) * (layers // pieces)
        plan.ends[piece] = layers if piece == pieces - 1 else min(max(end, 0), layers)
    # Or by the devices and speeds of the stages; several chunks stay.
    for turn in range(2 if kind == catalog.BY_BALANCE and pieces == count else 0):
        first, weight = 0, 0.0
        for stage in range(count):
            devices = plan.stages[stage, col.DEVICES]
            weight += devices * slowest(problems, row, plan, first, devices, 1)[0]
            first += devices
            if turn == 1:
                end = int(np.rint(weight / max(whole, 1.0) * (layers + 2))) - 1
                # The last stage ends where the chain does, whatever was rounded.
                plan.ends[stage] = layers if stage == count - 1 else min(max(end, 0), layers)
        whole = weight
    _recompute(plan, full / max(layers, 1), selective / max(layers, 1))
    return True


@bare
def _swap(problems: Problems, row: int, plan: Plan, value: int, towards: int, order: Array) -> None:
    """The busiest stage's slowest server for the fastest one of a stage that is little busy.

    With ``towards`` 0 they change places, else the first one moves to the other's place.
    """
    servers, other = plan.servers, order[max(plan.numbers[col.COUNT] - 1 - value, 0)]
    first, devices = total(plan, col.DEVICES, order[0]), plan.stages[order[0], col.DEVICES]
    slow = slowest(problems, row, plan, first, devices, 1)[1]
    first, devices = total(plan, col.DEVICES, other), plan.stages[other, col.DEVICES]
    fast = slowest(problems, row, plan, first, devices, -1)[1]
    server = servers[slow]
    if towards == 0:
        servers[slow] = servers[fast]
    else:
        # Servers between the two places move up by one.
        step = 1 if slow < fast else -1
        for place in range(slow, fast, step):
            servers[place] = servers[place + step]
    servers[fast] = server


@bare
def _cut(plan: Plan, stage: int, value: int, towards: int) -> None:
    """A stage gives ``value`` layers away: from its last piece, or in front from its first."""
    count, chunks, ends = plan.numbers[col.COUNT], plan.numbers[col.CHUNKS], plan.ends
    border = (chunks - 1) * count + stage if towards > 0 else stage - 1
    # Both ends of the chain are fixed; only borders between pieces move.
    if 0 <= border < count * chunks - 1:
        giving = border if towards > 0 else border + 1
        if ends[giving] - (ends[giving - 1] if giving > 0 else 0) >= value:
            ends[border] -= towards * value


@bare
def _merge(plan: Plan, stage: int) -> bool:
    """A stage and the next become one, with the devices of both."""
    stages, ends, count = plan.stages, plan.ends, plan.numbers[col.COUNT]
    if stage >= count - 1 or plan.numbers[col.CHUNKS] > 1:
        return False
    for i in (col.DEVICES, col.FULL, col.SELECTIVE):
        stages[stage, i] += stages[stage + 1, i]
    stages[stage, col.ZERO] = max(stages[stage, col.ZERO], stages[stage + 1, col.ZERO])
    for behind in range(stage, count - 1):
        ends[behind] = ends[behind + 1]
        for i in range(col.OF_STAGE if behind > stage else 0):
            stages[behind, i] = stages[behind + 1, i]
    plan.numbers[col.COUNT] = count - 1
    return True


@bare
def _split(plan: Plan, stage: int, parts: int) -> bool:
    """A stage becomes ``parts`` stages, each with as many of its devices."""
    stages, ends, count = plan.stages, plan.ends, plan.numbers[col.COUNT]
    if plan.numbers[col.CHUNKS] > 1 or stages[stage, col.DEVICES] % parts:
        return False
    if count + parts - 1 > min(len(stages), len(ends)):
        return False
    begin, end = ends[stage - 1] if stage > 0 else 0, ends[stage]
    # Devices divide; layers that are recomputed are rounded up.
    for i in (col.DEVICES, col.FULL, col.SELECTIVE):
        stages[stage, i] = -(-stages[stage, i] // parts)
    for new in range(count + parts - 2, stage, -1):
        old = max(new - parts + 1, stage)
        ends[new] = ends[old]
        for i in range(col.OF_STAGE):
            stages[new, i] = stages[old, i]
    for part in range(parts):
        ends[stage + part] = begin + int(np.rint((end - begin) * (part + 1) / parts))
    plan.numbers[col.COUNT] = count + parts - 1
    return True


@bare
def _tp(plan: Plan, first: int, end: int, value: float) -> bool:
    """``value`` times the tp of some stages."""
    good = True
    for stage in range(first, end):
        plan.stages[stage, col.TP] = _scaled(plan.stages[stage, col.TP], value)
        good = good and plan.stages[stage, col.TP] > 0
    return good


@bare
def change(
    problems: Problems, row: int, plan: Plan, kind: int, value: float, towards: int,
    order: Array, rank: int,
) -> bool:  # fmt: skip
    """Change a plan by a move of the catalog; ``order`` are its stages, the busiest first."""
    numbers, stages, inside = plan.numbers, plan.stages, problems.known[row].devices_per_server
    stage, count = order[rank] if rank >= 0 else 0, numbers[col.COUNT]
    if kind <= catalog.BY_BALANCE:
        return _layout(problems, row, plan, kind, value, towards)
    if kind == catalog.BY_SORTING:
        # Servers by their speed, the fastest first (``towards`` 1) or last.
        servers, speeds = plan.servers, problems.speeds[row]
        for server in range(problems.known[row].servers):
            place = server
            while place > 0 and towards * speeds[servers[place - 1]] < towards * speeds[server]:
                servers[place] = servers[place - 1]
                place -= 1
            servers[place] = server
    elif kind == catalog.BY_SWAP:
        _swap(problems, row, plan, int(value), towards, order)
    elif kind == catalog.BY_TP:
        # ``samples`` is over all replicas, of which there are ``value`` times fewer; with
        # ``towards`` 1 a replica keeps its own.
        numbers[col.SAMPLES] = _scaled(numbers[col.SAMPLES], 1 / value if towards == 1 else 1.0)
        return _tp(plan, 0, count, value)
    elif kind == catalog.BY_SEQUENCE:
        numbers[col.SHARED] = 1 - numbers[col.SHARED]
    elif kind == catalog.BY_CONTEXT:
        numbers[col.CONTEXT] = _scaled(numbers[col.CONTEXT], value)
    elif kind == catalog.BY_SAMPLES:
        numbers[col.SAMPLES] = _scaled(numbers[col.SAMPLES], value)
    elif kind == catalog.BY_ZERO:
        for each in range(count):
            stages[each, col.ZERO] = int(value)
    elif kind == catalog.BY_RECOMPUTE:  # a share of all layers in full; -1: the attention of all
        _recompute(plan, max(value, 0.0), 1.0 if value < 0 else 0.0)
    elif kind == catalog.BY_EXPERTS:  # dealt out among one replica, or as many as can be
        numbers[col.EXPERT] = 1 if value == 0 else problems.known[row].experts
    elif kind == catalog.BY_EXPERT_SCALE:
        numbers[col.EXPERT] = _scaled(numbers[col.EXPERT], value)
        return numbers[col.EXPERT] > 0
    elif kind == catalog.BY_SHARD:  # the replicas of a stage that are in one server, or all
        near = inside // most(plan, col.TP)
        numbers[col.SHARD] = 0 if numbers[col.SHARD] > 0 or near <= 1 else near
    elif kind == catalog.BY_CUT:
        _cut(plan, stage, int(value), towards)
    elif kind == catalog.BY_MERGE:
        return _merge(plan, stage)
    elif kind == catalog.BY_SPLIT:
        return _split(plan, stage, int(value))
    elif kind == catalog.BY_DEVICES:
        # A share of them to a neighbor; 0: those of one server.
        other = stage + towards
        if other < 0 or other >= count:
            return False
        given = int(stages[stage, col.DEVICES] * value) if value != 0 else inside
        stages[stage, col.DEVICES] -= given
        stages[other, col.DEVICES] += given
    elif kind == catalog.BY_STAGE_TP:
        return _tp(plan, stage, stage + 1, value)
    elif kind == catalog.BY_STAGE_ZERO:
        stages[stage, col.ZERO] = 1 if stages[stage, col.ZERO] == 0 else 0
    elif kind == catalog.BY_STAGE_RECOMPUTE:
        # ``value`` more layers in full; with ``towards`` 1 the attention of all.
        size = layers_of(plan, stage)
        full = min(max(stages[stage, col.FULL] + int(value), 0), size)
        stages[stage, col.FULL] = 0 if towards == 1 else full
        stages[stage, col.SELECTIVE] = size if towards == 1 else 0
    return True


@bare
def place_of(problems: Problems, row: int, axis: int, value: int) -> int:
    """Return the place of a value on an axis of the splits, -1 where a plan cannot have it."""
    if 0 <= value < problems.places.shape[2]:
        return int(problems.places[row, axis, value])
    return -1


@bare
def settle(problems: Problems, row: int, plan: Plan) -> bool:
    """Give up what another choice rules out; return whether the plan is legal and can be judged.

    No more layers are recomputed than there are, ZeRO shares among several replicas, and gradients
    without a pipeline only; sequence parallelism goes with tp, experts are dealt out among as many
    replicas as all stages have, and states by neighbors only where they can be.
    """
    known, numbers, stages = problems.known[row], plan.numbers, plan.stages
    count, samples, context = numbers[col.COUNT], numbers[col.SAMPLES], numbers[col.CONTEXT]
    chunks = numbers[col.CHUNKS]
    if not 1 <= count <= col.MAX_STAGES or not 1 <= chunks <= len(plan.ends) // count:
        return False
    micro_batches = known.batch // max(samples, 1)
    if micro_batches * samples != known.batch or place_of(problems, row, 2, context) < 0:
        return False
    # Interleaving takes micro-batches in multiples of the stages.
    if chunks > 1 and (not known.interleaves or count < 2 or micro_batches % count != 0):
        return False
    # Every piece has a layer, but for those that hold embedding or head.
    before, pieces = 0, count * chunks
    for piece in range(pieces):
        end = plan.ends[piece]
        holds_end = (piece == 0 and known.has_front) or (piece == pieces - 1 and known.has_back)
        if end < before or (end == before and not holds_end):
            return False
        before = end
    if before != known.layers:
        return False
    first, widest, common, most_zero, divides = 0, 1, 0, 0, True
    devices, tp, replicas = 0, 0, 0
    for stage in range(count):
        # Most stages are as the one in front, which was checked.
        if devices != stages[stage, col.DEVICES] or tp != stages[stage, col.TP]:
            devices, tp = stages[stage, col.DEVICES], stages[stage, col.TP]
            dp = devices // (tp * context)
            if dp < 1 or dp * tp * context != devices or place_of(problems, row, 1, tp) < 0:
                return False
            own = samples // dp
            if own * dp != samples or place_of(problems, row, 0, own) < 0:
                return False
            replicas, widest = dp * context, max(widest, tp)
            if numbers[col.EXPERT] > 1:
                common = math.gcd(common, dp)
            if numbers[col.SHARD] > 0:
                divides = divides and replicas % numbers[col.SHARD] == 0
        if tp > 1 and first % tp != 0:
            return False
        first += devices
        if stages[stage, col.FULL] != 0 or stages[stage, col.SELECTIVE] != 0:
            size = layers_of(plan, stage)
            full = min(max(stages[stage, col.FULL], 0), size)
            selective = min(max(stages[stage, col.SELECTIVE], 0), size - full)
            stages[stage, col.FULL], stages[stage, col.SELECTIVE] = full, selective
        zero = min(stages[stage, col.ZERO], 1 if count > 1 else 3) if replicas > 1 else 0
        stages[stage, col.ZERO], most_zero = zero, max(most_zero, zero)
    if numbers[col.EXPERT] > 1:
        numbers[col.EXPERT] = math.gcd(numbers[col.EXPERT], common)
    if widest == 1:
        numbers[col.SHARED] = 0
    if not divides or most_zero == 0:
        numbers[col.SHARD] = 0
    if first > known.devices or known.devices_per_server % widest != 0:
        return False
    if place_of(problems, row, 3, numbers[col.EXPERT]) < 0:
        return False
    if numbers[col.SHARED] and not known.may_share:
        return False
    ranks = (widest if numbers[col.SHARED] else 1) * (2 * context if context > 1 else 1)
    return known.sequence % ranks == 0


@bare
def neighbor(
    problems: Problems, row: int, plan: Plan, order: Array, moves: Any, move: int, into: Plan
) -> bool:
    """Write a plan after a move of ``catalog.Moves``; return whether it is a legal neighbor."""
    known, kind, rank = problems.known[row], moves.kind[move], moves.rank[move]
    if rank >= plan.numbers[col.COUNT]:
        return False
    if catalog.BY_SORTING <= kind <= catalog.BY_SWAP and not known.differs:
        return False
    if catalog.BY_EXPERTS <= kind <= catalog.BY_EXPERT_SCALE and known.experts <= 1:
        return False
    copy_plan(into, plan)
    value, towards = moves.value[move], moves.towards[move]
    if not change(problems, row, into, kind, value, towards, order, rank):
        return False
    return settle(problems, row, into) and differ(into, plan)


@bare
def neighbors_all(
    problems: Problems, rows: Array, plans: Plan, busy: Array, moves: Any,
    order: Array, others: Plan, plan: Array, move: Array,
) -> int:  # fmt: skip
    """Write all legal neighbors of n plans, in the order of the catalog; return their number.

    ``busy`` is (n, S) seconds of a micro-batch on each of their stages, ``order`` memory, (S,).
    Neighbors are written to ``others``, which has room for n times as many plans as there are
    moves, and of each the number of the plan that it is one of, and of the move.
    """
    size = 0
    for k in range(len(rows)):
        base = plan_at(plans, k)
        busiest_first(base.numbers[col.COUNT], busy[k], order)
        for m in range(len(moves.kind)):
            if neighbor(problems, rows[k], base, order, moves, m, plan_at(others, size)):
                plan[size], move[size] = k, m
                size += 1
    return size
