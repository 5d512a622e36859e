"""What stands beside the errors of tables: naive models, totals, order, and constants left out.

A *step* is a prediction of a training step's time in any unit. Its MFU counts no recomputation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any

import numpy as np

from parenvs.bench.hybrid.constants import CONSTANTS, Constant
from parenvs.bench.hybrid.errors import fitted_on, rank_correlation
from parenvs.bench.hybrid.predict import STEP_UNITS, Prediction, predictions, problem_of
from parenvs.bench.hybrid.rows import Published, Row
from parenvs.bench.hybrid.settings import recipe_of, setting_of
from parenvs.cluster import EFFICIENCY
from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import UniformSpace
from parenvs.tasks.hybrid.stack import STACKS, Stack

BASELINES: dict[str, Callable[[Prediction], tuple]] = {
    "device": lambda one: (one.device, one.precision),
    "stack": lambda one: (one.stack,),
}
"""Naive models: one constant MFU for each device and precision, or for each stack."""
APART = 0.02
"""Steps that differ by less, as a share, are not told apart."""
LEAST_ROWS = 3
"""Rows on which a constant can be fitted, at least."""
FLAT = 1e-3
"""Share by which a constant must change the squared errors of rows, to be fitted on them."""


def is_step(one: Prediction) -> bool:
    """Return whether a prediction is of a training step's time."""
    return one.unit in STEP_UNITS and "mfu" in one.details


def constant_mfu(
    steps: Sequence[Prediction], kind: str, others: Sequence[Prediction] | None = None
) -> list[float]:
    """Return the errors of a model that knows one MFU of each kind, in the order of the steps.

    Args:
        steps: what is judged.
        kind: one of ``BASELINES``.
        others: the steps of whose MFU it takes the geometric mean (default: those that are
            judged); a kind that none of them has gets the mean of all.
    """
    key = BASELINES[kind]
    by_kind: dict[tuple, list[float]] = {}
    for one in steps if others is None else others:
        by_kind.setdefault(key(one), []).append(np.log(one.details["mfu"]))
    every = [log for logs in by_kind.values() for log in logs]
    errors = []
    for one in steps:
        faster = np.exp(np.mean(by_kind.get(key(one), every))) / one.details["mfu"]
        errors.append(float(1 / faster - 1 if one.unit in ("s", "ms") else faster - 1))
    return errors


def totals(found: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return the errors of steps by source, of all and of their means, in and out of sample apart.

    A figure is in sample if a constant was fitted on its table.
    """
    rows = []
    for sample in (True, False):
        steps = [one for one in found if is_step(one) and bool(fitted_on(one)) == sample]
        if not steps:
            continue
        sides = {kind: constant_mfu(steps, kind) for kind in BASELINES}
        columns = {"model": [one.error for one in steps], **sides}
        names = np.array([one.source for one in steps])
        parts = []
        for source in dict.fromkeys(names.tolist()):
            own = names == source
            means = {key: _mean(np.array(x)[own]) for key, x in columns.items()}
            parts.append({"sample": sample, "of": source, "n": int(own.sum()), **means})
        whole = {"sample": sample, "n": len(steps)}
        rows += [
            *parts,
            {**whole, "of": "all figures", **{k: _mean(x) for k, x in columns.items()}},
            {
                **whole,
                "of": "mean of the sources' means",
                "n": len(parts),
                **{key: float(np.mean([part[key] for part in parts])) for key in columns},
            },
            {
                **whole,
                "of": "median figure",
                **{k: float(np.median(np.abs(x))) for k, x in columns.items()},
            },
        ]
    return rows


def _mean(errors: Any) -> float:
    return float(np.abs(errors).mean())


def orders(found: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return, by source, how plans of one problem are ordered and what the one called best costs.

    Plans of a group train one shape on as many devices of one kind at one precision, and are told
    apart by seconds a token. ``regret`` is the measured cost of the plan that is called best over
    the best measured one.
    """
    groups: dict[tuple, list[Prediction]] = {}
    for one in found:
        if is_step(one):
            groups.setdefault((one.source, *one.details["problem"]), []).append(one)
    by_source: dict[str, list[dict[str, Any]]] = {}
    for (source, *_), members in groups.items():
        members = list({(x.row, x.details["seconds_measured"]): x for x in members}.values())
        if len(members) > 1:
            by_source.setdefault(source, []).append(_order(members))
    rows = []
    for source, parts in by_source.items():
        ranks = [part["rank"] for part in parts if part["rank"] is not None]
        regrets = [part["regret"] for part in parts]
        pairs = np.sum([part["pairs"] for part in parts], axis=0).tolist()
        rows.append(
            {
                "source": source,
                "groups": len(parts),
                "rows": sum(part["rows"] for part in parts),
                "rank": float(np.mean(ranks)) if ranks else None,
                "regret": float(np.mean(regrets)),
                "worst_regret": max(regrets),
                "right": pairs[0],
                "wrong": pairs[1],
                "tied": pairs[2],
            }
        )
    return rows


def _order(members: Sequence[Prediction]) -> dict[str, Any]:
    """Order of one group: rank correlation, regret, pairs that are right, wrong and tied."""
    tokens = np.array([one.details["tokens"] for one in members])
    measured = np.array([one.details["seconds_measured"] for one in members]) / tokens
    predicted = np.array([one.details["seconds"]["length"] for one in members]) / tokens
    pairs = [0, 0, 0]
    for i, j in combinations(range(len(members)), 2):
        true, said = measured[i] / measured[j], predicted[i] / predicted[j]
        if abs(np.log(true)) > np.log(1 + APART):
            tied = abs(said - 1) < 1e-9
            pairs[2 if tied else int((true > 1) != (said > 1))] += 1
    return {
        "rows": len(members),
        "rank": rank_correlation(measured.tolist(), predicted.tolist()),
        "regret": float(measured[predicted.argmin()] / measured.min() - 1),
        "pairs": pairs,
    }


def beaten(published: Published, found: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return measured steps that are shorter than the best uniform plan by the row's own stack.

    Such a stack is too slow there: what is proven by it is beaten by a measurement.

    Args:
        published: the rows.
        found: their predictions.
    """
    rows = {(row.source, row.number, row.name): row for row in published.rows}
    best: dict[tuple, float] = {}
    beating = []
    for one in found:
        if not is_step(one) or one.details["seconds_measured"] >= one.details["seconds"]["length"]:
            continue
        setting = setting_of(rows[one.source, one.row, one.name], one.column, published.stacks)
        key = (*one.details["problem"], setting.batch, one.stack, setting.cluster.device_nic_bw)
        if key not in best:
            problem = problem_of(setting, HybridModel.of_shape(setting.shape))
            if problem.cluster.devices != setting.gpus:
                continue  # the row does not fill its servers
            best[key] = _shortest(problem)
        took = one.details["seconds_measured"]
        if took < best[key] < np.inf:
            beating.append(
                {
                    "source": one.source,
                    "name": one.name,
                    "stack": one.stack,
                    "measured": took,
                    "best": best[key],
                    "below": 1 - took / best[key],
                }
            )
    return beating


def _shortest(problem: Hybrid) -> float:
    """Seconds of the best uniform plan by the closed form; infinite if none fits."""
    try:
        space = UniformSpace.build(problem)
    except InfeasibleError:
        return np.inf
    k = space.best()
    return np.inf if k is None else float(space.length[k])


@dataclass(frozen=True)
class LeftOut:
    """The errors on a source by constants that were fitted without it.

    Attributes:
        source: the source.
        n: its figures.
        fitted: mean absolute error with the constants as they are.
        left_out: mean absolute error with those that were fitted on the source fitted anew.
        baseline: mean absolute error of a constant MFU by device and precision, of other sources.
        constants: in words, what became of each constant.
    """

    source: str
    n: int
    fitted: float
    left_out: float
    baseline: float
    constants: tuple[str, ...]


def leave_one_out(published: Published, found: Sequence[Prediction]) -> list[LeftOut]:
    """Judge every source on which constants were fitted by constants that know nothing of it.

    A constant is fitted anew on the rows of its stack, and of its device, in other sources, by the
    least sum of the squared logarithms; where these have fewer than ``LEAST_ROWS`` rows, or none
    that it makes a difference to, it is the geometric mean of the same constant of other stacks and
    devices on which other sources were fitted.

    Args:
        published: the rows.
        found: their predictions.
    """
    rows = []
    for source in dict.fromkeys(item.source for item in CONSTANTS):
        own = [one for one in found if one.source == source]
        steps = [one for one in own if is_step(one)]
        if not own:
            continue
        changed, said = _without(source, published)
        part = tuple(x for x in published.rows if x.source == source)
        again = predictions(replace(published, rows=part, stacks=changed))[0]
        others = [one for one in found if is_step(one) and one.source != source]
        naive = constant_mfu(steps, "device", others) if steps and others else [np.nan]
        rows.append(
            LeftOut(
                source,
                len(own),
                _mean([one.error for one in own]),
                _mean([one.error for one in again]),
                float(np.abs(naive).mean()),
                tuple(said),
            )
        )
    return rows


def _without(source: str, published: Published) -> tuple[dict[str, Stack], list[str]]:
    """Stacks with constants that know nothing of a source, and what became of each."""
    changed: dict[str, Stack] = {}
    said = []
    for item in dict.fromkeys(_bare(x) for x in CONSTANTS if x.source == source):
        stack = changed.get(item.stack, STACKS[item.stack])
        rows = tuple(row for row in published.rows if row.source != source and _is_of(item, row))
        part = replace(published, rows=rows)
        value = _fitted(item, stack, part) if len(rows) >= LEAST_ROWS else None
        how = f"fitted on {len(rows)} rows"
        if value is None:
            same = {
                (x.stack, x.key): x.value
                for x in CONSTANTS
                if x.name == item.name and x.source != source
                and (x.stack, x.key) != (item.stack, item.key)
                and x.value > 0 and x.precision == item.precision
            }  # fmt: skip
            usual = {entry.name: entry.default for entry in fields(Stack)}[item.name]
            default = float(usual) if isinstance(usual, (int, float)) else EFFICIENCY
            value = float(np.exp(np.mean(np.log(list(same.values()))))) if same else default
            how = f"mean of {len(same)} others" if same else "default"
        changed[item.stack] = with_constant(stack, item, value)
        said.append(f"{item.words} {item.value:g} to {value:.3g} ({how})")
    return changed, said


def _bare(item: Constant) -> Constant:
    """A constant without the rows that it was fitted on."""
    return replace(item, source="", table="", word="")


def _is_of(item: Constant, row: Row) -> bool:
    """Whether a row says that it ran on a constant's stack, and on its device."""
    device = str(row.get("device", "")).lower()
    key = item.key.split()[0] if item.key else ""
    right = not key or device.startswith(key)
    if key == "other":  # devices that the stack does not name
        named = [x.split()[0] for x in dict(getattr(STACKS[item.stack], item.name))]
        right = not any(device.startswith(x) for x in named)
    return (
        row.get("stack") == item.stack
        and right
        and (not item.precision or recipe_of(row) == item.precision)
    )


def with_constant(stack: Stack, item: Constant, value: float) -> Stack:
    """Return a stack with another value of one constant."""
    changed: dict[str, Any] = {item.name: value}
    if item.key:
        shares = {**dict(getattr(stack, item.name)), item.key: value}
        changed = {item.name: tuple(shares.items())}
    return replace(stack, **changed)


def _fitted(item: Constant, stack: Stack, part: Published) -> float | None:
    """The value of a constant with which rows are met best, within its plausible range.

    None if it makes no difference to them.
    """
    low, high = item.plausible or (item.value / 2, item.value * 2)
    grid = np.geomspace(max(low, 1e-6), high, 9)

    def off(value: float) -> float:
        stacks = {item.stack: with_constant(stack, item, value)}
        again = predictions(replace(part, stacks=stacks))[0]
        return float(np.mean([np.log1p(one.error) ** 2 for one in again]))

    errors = [off(value) for value in grid]
    return float(grid[int(np.argmin(errors))]) if np.ptp(errors) > FLAT * min(errors) else None
