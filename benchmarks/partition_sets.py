"""Fixed sets of partition problems of many graphs, and their references, both stored as data.

    python benchmarks/make_sets.py partition-test.json          # draw and solve a set again
    python benchmarks/make_sets.py banks/partition-test.npz     # its arrays, which are played

A problem is a shipped training step of a family on a drawn cluster, mostly of a slow network, with
drawn micro-batches and recomputation, and a limit of memory: between the bytes of the leanest plan
that is found and those of the shortest step without a limit. ``LIMITS`` problems of one draw follow
one another. A draw is taken if

* at eight limits some plan fits, the shortest is proven in seconds, and an episode can make it by
  choices that the mask leaves;
* the larger bound loses ``LOSS`` or more of the seconds on most; of
  every third draw that is not asked.

No family is in two sets. ``gpt`` is in none, as its graph is too large, nor are ``whisper``, whose
searches take minutes, ``lstm`` and ``dlrm``, of which few draws suit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import parenvs.datasets.partition.problems as pools
from parenvs.agents.partition.witnesses import find_witnesses, shortest
from parenvs.core.game import EVERY
from parenvs.datasets.partition.problems import LIMITS, SetRow
from parenvs.datasets.references import PARTITIONS, Row, read, write
from parenvs.errors import NO_PLAN, InfeasibleError, ParenvsError
from parenvs.instances import manifest
from parenvs.tasks.partition.choice import PartitionChoice
from parenvs.tasks.partition.classes import REMADE
from parenvs.tasks.partition.game import PARTITION
from parenvs.tasks.partition.linear import Linear
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.task import PartitionTask

FAMILIES: dict[str, dict[str, int]] = {
    "partition-train": dict.fromkeys(
        ("vgg", "resnet", "vit", "mixtral", "llama", "clip", "bert"), 2
    ),
    "partition-validation": dict.fromkeys(("convnext", "mixer", "dit"), 2),
    "partition-test": dict.fromkeys(("t5", "unet"), 3),
}
"""Shipped set -> its families, and the draws of each."""
MOST_INSTRUCTIONS = 50_000
"""Instructions of the largest graphs that are drawn, so that problems are read in seconds."""
SCANNED = "-scanned"
"""End of the names of graphs with loops, of five classes or so; the same networks without loops
have a hundred."""
CLUSTERS = (
    "4x4:v100,1Gbps", "8x4:v100,10Gbps", "16x1:v100,10Gbps", "2x8:a100,10Gbps", "8x1:a100,10Gbps",
    "8x8:a100,25Gbps", "4x8:h100,25Gbps", "3x4:a100,100Gbps", "1x6:v100", "2x8:h100,100Gbps",
)  # fmt: skip
MOST_SAMPLES = 32
MICRO_BATCHES = (1, 2, 4, 8, 16)
SHARES = (0.02, 0.8)
"""Range of limits, as a share of the way from the leanest plan's bytes to the shortest one's."""
TRIED = 2 * LIMITS
"""Limits that are drawn, of which the first ``LIMITS`` that suit are taken."""
WAY = 0.03
"""Least part of the shortest plan's bytes that lies between."""
BOUND = list(PartitionChoice.columns).index("bound")
"""Column of the larger bound."""
LOSS = 0.05
"""What the larger bound loses."""
MOST = 0.7
"""On how many of the problems of a draw."""
PROVEN = 1e-9
"""Share of the length that a bound of a proof may lie below by rounding."""
DRAWS = 200
"""Draws of a family before it is given up."""


def draw_row(rng: np.random.Generator, family: str) -> SetRow:
    """Draw a graph of a family, a cluster, micro-batches and recomputation, without a limit yet."""
    entries = manifest()["instances"]
    names = [x for x in entries if entries[x]["family"] == family and not x.endswith(SCANNED)]
    steps = {name: entries[name]["graphs"]["train"] for name in names}
    names = [name for name in names if steps[name]["instructions"] <= MOST_INSTRUCTIONS]
    name = names[int(rng.integers(len(names)))]
    max_power = int(np.log2(min(entries[name]["batch_size"], MOST_SAMPLES)))
    return SetRow(
        name,
        CLUSTERS[int(rng.integers(len(CLUSTERS)))],
        micro_batch=2 ** int(rng.integers(1, max_power + 1)),
        micro_batches=MICRO_BATCHES[int(rng.integers(len(MICRO_BATCHES)))],
        recompute=REMADE[int(rng.integers(len(REMADE)))],
    )


def at_drawn_limits(problem: Partitioning, rng: np.random.Generator) -> list[Linear]:
    """Draw memory limits; return the problem at each, with plans; none if memory never binds."""
    linear = Linear.of(unlimited(problem))
    fastest, _ = shortest(linear, linear.gain)
    linear = find_witnesses(linear)
    if fastest is None:
        return []
    plans = fastest, linear.witnesses[0]
    high, low = (linear.limit - float(linear.slack(plan).min()) for plan in plans)
    if high - low < WAY * high:
        return []
    shares = rng.uniform(*SHARES, size=TRIED)
    return [linear.at(float(round(low + (high - low) * share))) for share in shares]


def solved(linear: Linear, problem: Partitioning) -> tuple[Row, np.ndarray]:
    """Solve a problem, given as it is played and at any limit.

    Returns:
        Its fingerprint, seconds of the replicated step, of the shortest step that fits and a proven
        bound of those; and the plan, (K,) bool.

    Raises:
        InfeasibleError: no plan fits.
    """
    plan, bound = shortest(linear, linear.gain)
    if plan is None:
        raise InfeasibleError(f"{linear.name}: no plan within the limit is found")
    chosen = np.zeros(len(problem.classes), dtype=bool)
    chosen[linear.classes[plan]] = True
    judged = replace(problem, step=replace(problem.step, limit=linear.limit))
    if not judged.fits(chosen):
        raise AssertionError(f"{linear.name}: the judge holds another plan for one that fits")
    length, replicated = float(judged.step_seconds(chosen)), problem.replicate_seconds
    lower = min((1.0 - bound) * replicated, length)
    row: Row = {"fingerprint": problem.graph.fingerprint, "replicated": replicated}
    row |= {"length": length, "bound": lower, "proven": length - lower <= PROVEN * length}
    return row, plan


def bound_policy_seconds(linear: Linear) -> float:
    """Return the seconds of the step that choices of the larger bound make."""
    game = PartitionChoice(problem=linear)
    game.preview()
    while not game.over[0]:
        observation = game.observation(EVERY)
        bounds = observation["actions"][..., BOUND]
        scores = np.where(observation["action_mask"] > 0, bounds, -np.inf)
        game.play(EVERY, scores.argmax(axis=1))
    return float(game.cost[0])


def can_be_played(linear: Linear, chosen: np.ndarray) -> bool:
    """Return whether an episode can make a plan, (K,) bool, by choices that the mask leaves."""
    game = PartitionChoice(problem=linear)
    game.preview()
    while not game.over[0]:
        choice = int(chosen[game.position[0]])
        if not game.legal[0, choice]:
            return False
        game.play(EVERY, np.array([choice]))
    return np.array_equal(game.partial_plans.decisions[0, : len(chosen)] == PARTITION, chosen)


def suitable(row: SetRow, rng: np.random.Generator, strict: bool) -> list[tuple[SetRow, Row]]:
    """Return the problems of a draw with their references; none if it does not suit.

    If ``strict`` the larger bound has to lose.
    """
    try:
        problem = pools.build(row, row.instance)
        limits = at_drawn_limits(problem, rng)
    except ParenvsError:  # a dimension is no multiple of the batch; a loop is not recomputed
        return []
    suited: dict[float, tuple[SetRow, Row]] = {}
    lost = 0
    for limited_problem in limits:
        try:
            linear = find_witnesses(limited_problem)
            reference, best = solved(linear, problem)
        except NO_PLAN:
            continue
        if not (reference["proven"] and can_be_played(linear, best)):
            continue
        lost += bound_policy_seconds(linear) * (1.0 - LOSS) >= reference["length"]
        suited[linear.limit] = replace(row, memory_limit=linear.limit), reference
        if len(suited) == LIMITS:
            is_hard = lost >= MOST * LIMITS or not strict
            return [suited[limit] for limit in sorted(suited)] if is_hard else []
    return []


def make_set(name: str, seed: int) -> Iterator[tuple[str, SetRow, Row]]:
    """Draw the problems of a shipped set, each from ``seed``, its family and its draw.

    Yields:
        Its name within the set, the problem in words, and its reference.

    Raises:
        ParenvsError: ``DRAWS`` draws of a family have too few problems that suit.
    """
    families = [entry["family"] for entry in manifest()["instances"].values()]
    for family, count in FAMILIES[name].items():
        accepted = 0
        for draw in range(DRAWS):
            rng = np.random.default_rng([seed, families.index(family), draw])
            problems = suitable(draw_row(rng, family), rng, strict=accepted % 3 != 2)
            for number, (row, reference) in enumerate(problems):
                yield f"{family}-{accepted * LIMITS + number:03d}", row, reference
            accepted += bool(problems)
            if accepted == count:
                break
        else:
            raise ParenvsError(f"{name}: {accepted} draws of {family} suit; draw other ones")


def write_set(name: str, path: Path, seed: int) -> int:
    """Write a set, and its references beside it; return the number of problems."""
    beside, begin = path.parent / PARTITIONS, f"{name}/"
    references = {k: v for k, v in read(beside).items() if not k.startswith(begin)}
    rows: dict[str, SetRow] = {}
    for member, row, reference in make_set(name, seed):
        rows[member], references[begin + member] = row, reference
        print(f"{begin}{member}: {row}: {reference['length']:.6g} s", flush=True)
    pools.save_set(path, rows)
    write(beside, references)
    return len(rows)


def pool_row(name: str, number: int) -> Mapping[str, np.ndarray]:
    """Return what a pool stores of the ``LIMITS`` problems of a set from ``number * LIMITS`` on."""
    names = pools.members(name)[number * LIMITS : (number + 1) * LIMITS]
    rows = [pools.row_of(member) for member in names]
    problem = pools.problem_named(names[0])
    # The leanest plan is that of a limit which all keep to, as where sets are drawn.
    with_witnesses = PartitionTask().start
    whole = with_witnesses(Linear.of(unlimited(problem), names[0]))
    limited = [with_witnesses(whole.at(float(row.memory_limit))) for row in rows]
    return packed(limited, problem, rows[0].instance)


SAMPLES = 512
"""Plans that are drawn to see which moments are the fullest."""


def packed(
    problems: Sequence[Linear], problem: Partitioning, instance: str
) -> Mapping[str, np.ndarray]:
    """Return the arrays of a pool for problems that differ in their limit alone."""
    first = problems[0]
    saved_share = 1.0 - problem.device_share[first.classes]
    count = max(len(limited.witnesses) for limited in problems)
    witnesses = [x.witnesses[np.arange(count) % len(x.witnesses)].ravel() for x in problems]
    rivals = [(k, r) for k, excluded in enumerate(first.rivals) for r in excluded.tolist()]
    split_bytes, divisor = np.zeros_like(first.saved_bytes), saved_share[:, None]
    np.divide(first.saved_bytes, divisor, out=split_bytes, where=divisor > 0)
    return {
        "instance": np.array(instance),
        "fingerprint": np.array(pools.fingerprint_of(instance)),
        "classes": first.classes.astype(np.int32),
        "gain": first.gain,
        "replicated": np.array(first.replicated_seconds),
        "rivals": np.array(rivals, dtype=np.int16).reshape(-1, 2),
        "whole": first.replicated_bytes.astype(np.int64),
        "held": np.rint(split_bytes).astype(np.int64).ravel(),
        "spared": saved_share,
        "fullest": fullest(first).astype(np.int16),
        "members": np.concatenate(first.groups).astype(np.int16),
        "sizes": np.array([len(group) for group in first.groups], dtype=np.int16),
        "weights": first.weights,
        "paid": first.paid,
        "figures": first.figures.ravel(),
        "step": np.concatenate([limited.step for limited in problems]),
        "limits": np.array([limited.limit for limited in problems]),
        "witnesses": np.concatenate(witnesses),
    }


def fullest(problem: Linear) -> np.ndarray:
    """Return the moments that can be the fullest of a legal plan, ascending, by linear programs.

    A moment cannot be if the relaxed plan at which it exceeds some others most leaves it below one
    of them. The duals of that program bound the excess whatever their precision, so a moment is
    left out only if the bound, computed from them, is a byte or more below 0.
    """
    from scipy.optimize import linprog

    whole, saved = problem.replicated_bytes, problem.saved_bytes
    plans = _legal_plans(problem).astype(np.float64)
    moments = np.unique((whole - plans @ saved).argmax(axis=1)).tolist()
    # Of the classes of a clique, any two of which exclude each other, a plan splits one at most.
    at_once = _cliques(problem.rivals, len(saved))
    column, scale = np.zeros((len(at_once), 1)), whole.max()
    objective = np.append(np.zeros(len(saved)), -1.0)
    for moment in sorted(set(range(len(whole))) - set(moments), key=lambda m: -whole[m]):
        saves_more = (saved[:, moments] - saved[:, [moment]]).T  # bytes that the others save more
        free = whole[moment] - whole[moments]
        solution = linprog(
            objective,
            A_ub=np.block([[at_once, column], [-saves_more / scale, np.ones((len(moments), 1))]]),
            b_ub=np.append(np.ones(len(at_once)), free / scale),
            bounds=[(0, 1)] * len(saved) + [(None, None)],
        )
        duals = np.maximum(-solution.ineqlin.marginals, 0.0)
        share = duals[len(at_once) :] / duals[len(at_once) :].sum()
        price = duals[: len(at_once)] * scale
        slack = np.maximum(share @ saves_more - price @ at_once, 0.0).sum()
        if not share @ free + price.sum() + slack <= -1.0:
            moments.append(moment)
    return np.sort(moments)


def _legal_plans(problem: Linear) -> np.ndarray:
    """Draw legal plans, (``SAMPLES``, K) bool, that split few classes to all that they may."""
    rng, plans = np.random.default_rng(0), np.zeros((SAMPLES, len(problem.gain)), dtype=bool)
    probabilities = rng.random(SAMPLES)
    for plan, probability in zip(plans, probabilities, strict=True):
        for k in rng.permutation(len(plan)):
            plan[k] = rng.random() < probability and not plan[problem.rivals[k]].any()
    return plans


def _cliques(rivals: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Cover all pairs of classes that exclude each other by cliques, (cliques, K) of 0 and 1."""
    rival_sets, cliques = [set(excluded.tolist()) for excluded in rivals], []
    pairs = {(i, j) for i, excluded in enumerate(rival_sets) for j in excluded if i < j}
    while pairs:
        # Greedy: large cliques first leave few rows, and tighten the relaxation more than pairs.
        first, second = clique = list(min(pairs))
        for k in sorted(rival_sets[first] & rival_sets[second]):
            if rival_sets[k].issuperset(clique):
                clique.append(k)
        pairs -= {(i, j) for i in clique for j in clique}
        cliques.append(np.isin(np.arange(count), clique))
    return np.array(cliques, dtype=np.float64).reshape(-1, count)


def unlimited(problem: Partitioning) -> Partitioning:
    """Return a problem with a limit that every plan keeps to: twice the replicated plan's peak."""
    limit = 2.0 * problem.peak(np.zeros(len(problem.classes), dtype=bool))
    return replace(problem, step=replace(problem.step, limit=limit))
