"""Tuning on measured plans: how far the best of the first trials is from the best of all.

Groups are plans of one model on as many devices that one source measured. ``tune`` asks and is told
what was published; it does not know the stacks of which a constant was fitted on the group's
source. Beside it: plans in random order (the mean of all orders), in the order predicted by the
default stack and by each stack, by the mean of the stacks of which nothing is learned, and a
Gaussian process that knows no prediction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np
from scipy.special import ndtr

from benchmarks.framework import columns, main, measurement
from benchmarks.hybrid_predictions import predictions, problem_of
from benchmarks.hybrid_settings import CONSTANTS, setting_of
from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid, default_stack
from parenvs.tasks.hybrid.rows import Published, Row, read_rows, shipped
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.tune.model import LENGTH, NOISE
from parenvs.tasks.hybrid.tune.prior import features_of, lengths, stacks_on
from parenvs.tasks.hybrid.tune.study import Study, concatenated, of_row

AFTER = (1, 2, 3, 5, 8, 13)
"""Trials after which regret is told."""
CLOSE = 0.02
"""Regret from which a plan is as good as the best."""
LEAST = 3
"""Plans of a group, at least."""
SOURCES = (
    "internevo", "bigscience", "megatron-sc21-figures", "mb-dense-gb200", "tt-2412", "mb-moe-gb200",
    "mb-moe-h100", "dgxc-fp8",
)  # fmt: skip
"""Sources of rows whose groups are played, beside Parcae's."""
NODES = (8, 12, 16, 20, 24, 28, 32)
"""Nodes of Parcae's clusters: the plans of a group use as many or fewer."""
PARCAE = {
    "gpt-1.5b.json": (
        "Parcae GPT-1.5B", (48, 1600, 25, 1024, 50257)
    ),
    "bert-large.json": (
        "Parcae BERT-large", (24, 1024, 16, 512, 30522)
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Plans of one model on as many devices.

    Attributes:
        stacks: those that may run, without what was fitted on the source.
        seconds: (N,) measured, for the problem's batch.
    """

    source: str
    name: str
    problem: Hybrid
    stacks: tuple[Stack, ...]
    rows: tuple[Row, ...]
    seconds: np.ndarray


def unfitted(problem: Hybrid, source: str) -> tuple[Stack, ...]:
    """Return the stacks that may run, without those fitted on a source."""
    fitted = {item.stack for item in CONSTANTS if item.source.startswith(source)}
    return tuple(stack for stack in stacks_on(problem) if stack.name not in fitted)


def parcae() -> Iterator[Group]:
    """Yield the groups of two models on servers of one V100."""
    for file, (source, shape) in PARCAE.items():
        content = json.loads(shipped(file).read_text(encoding="utf-8"))
        names = ("layers", "hidden", "heads", "sequence", "vocabulary")
        sizes = dict(zip(names, shape, strict=True))
        model = HybridModel.of_shape(TransformerShape(name=source, **sizes))
        batch, micro_batch = content["global_batch"], content["micro_batch"]
        measured = [(int(dp), int(pp), ms / 1e3) for dp, pp, ms, _ in content["measured"]]
        for nodes in NODES:
            problem = Hybrid(model, f"{nodes}x1:v100,10Gbps", batch, None, "fp16")
            plans = [x for x in measured if x[0] * x[1] <= nodes]
            rows = [
                Row(k, {"dp": dp, "pp": pp, "micro_batch": micro_batch, "gpus": dp * pp})
                for k, (dp, pp, _) in enumerate(plans)
            ]
            seconds = np.array([x for *_, x in plans])
            stacks = unfitted(problem, file)
            yield Group(source, f"{nodes} nodes", problem, stacks, tuple(rows), seconds)


def published() -> Iterator[Group]:
    """Yield the groups of shipped rows."""
    for file in ("published.json", "rows-2026.json"):
        content = read_rows(file)
        rows = tuple(row for row in content.rows if row.source in SOURCES)
        part = Published(content.path, rows, content.sources, content.references)
        by_problem: dict[tuple, list] = {}
        for one in predictions(part)[0]:
            if "problem" in one.details:
                by_problem.setdefault((one.source, *one.details["problem"]), []).append(one)
        known = {row.number: row for row in rows}
        for (source, *_), members in by_problem.items():
            kept: dict[str, tuple[Row, float]] = {}
            for one in members:
                setting = setting_of(known[one.row], one.column)
                row = Row(one.row, setting.fields)
                plan = json.dumps(one.details["plan"])
                if plan not in kept:
                    kept[plan] = row, one.details["seconds_measured"]
            if len(kept) < LEAST:
                continue
            first = setting_of(known[members[0].row], members[0].column)
            problem = problem_of(first, HybridModel.of_shape(first.shape))
            plans, taken = zip(*kept.values(), strict=True)
            batches = np.array([of_row(row, problem).batch[0] for row in plans])
            seconds = np.array(taken) * problem.batch / batches
            name = f"{first.shape.layers} x {first.shape.hidden} on {first.gpus}"
            yield Group(source, name, problem, unfitted(problem, source), plans, seconds)


def tuned(group: Group, trials: int, stacks: list[Stack] | Stack) -> tuple[list[int], dict]:
    """Return the plans that a study asks for, in turn, and how its intervals did."""
    study = Study(group.problem, stack=stacks, candidates=list(group.rows))
    keys = {study.key(of_row(row, group.problem)): k for k, row in enumerate(group.rows)}
    order, inside, first, later = [], 0, 0.0, []
    for _ in range(min(trials, len(keys))):
        begin = process_time()
        trial = study.ask()
        taken = process_time() - begin
        first, later = (taken, later) if not order else (first, [*later, taken])
        k = keys[study.key(trial.plan)]
        seconds = group.seconds[k] * trial.plan.batch / group.problem.batch
        study.tell(trial, seconds=float(seconds))
        order.append(k)
        inside += trial.interval[0] <= seconds <= trial.interval[1]
    return order, {"inside": inside, "asked": len(order), "first": first, "later": later}


def alone(group: Group, trials: int, seed: int) -> list[int]:
    """Return the plans that a Gaussian process with no prior but its kernel asks for."""
    rng = np.random.default_rng(seed)
    plans = concatenated([of_row(row, group.problem) for row in group.rows])
    features = features_of(group.problem, plans)
    distance = ((features[:, None] - features[None]) ** 2).sum(axis=-1)
    kernel = 0.5**2 * np.exp(-distance / (2 * LENGTH**2))
    logs, order = np.log(group.seconds), [int(rng.integers(len(plans.tp)))]
    while len(order) < min(trials, len(logs)):
        told = logs[order]
        inverse = np.linalg.inv(kernel[np.ix_(order, order)] + NOISE**2 * np.eye(len(order)))
        mean = told.mean() + kernel[:, order] @ inverse @ (told - told.mean())
        variance = np.diag(kernel) - np.einsum(
            "ij,jk,ik->i", kernel[:, order], inverse, kernel[:, order]
        )
        deviation = np.sqrt(np.maximum(variance, 0) + NOISE**2)
        z = (told.min() - mean) / deviation
        gain = deviation * (z * ndtr(z) + np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi))
        gain[order] = -1.0
        order.append(int(gain.argmax()))
    return order


def regrets(seconds: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Return what the best of the first plans of an order takes over the best of all, after each.

    An order that ended goes on with its last regret.
    """
    best = np.minimum.accumulate(seconds[list(order)]) / seconds.min() - 1
    wide = np.full(max(*AFTER, len(seconds)), best[-1])
    wide[: len(best)] = best
    return wide


def orders(group: Group, seeds: int) -> dict[str, list[Sequence[int]]]:
    """Return for each method but ``tune`` the orders of plans that its regret is a mean of."""
    plans = concatenated([of_row(row, group.problem) for row in group.rows])

    by_stack = lengths(group.problem, group.stacks, plans)
    random = [np.random.default_rng(k).permutation(len(group.rows)) for k in range(200)]
    own = lengths(group.problem, (default_stack(group.problem.cluster),), plans)[0]
    return {
        "default stack": [np.argsort(own, kind="stable")],
        "every stack": [np.argsort(row, kind="stable") for row in by_stack],
        "mean of stacks": [np.argsort(by_stack.mean(axis=0), kind="stable")],
        "Gaussian process": [alone(group, max(AFTER), seed) for seed in range(seeds)],
        "random": random,
    }


def _row(group: Group, method: str, every: Sequence[np.ndarray], **more: Any) -> dict[str, Any]:
    mean = np.mean(every, axis=0)
    close = [int(np.argmax(x <= CLOSE)) + 1 if (x <= CLOSE).any() else len(x) for x in every]
    return {
        "source": group.source, "group": group.name, "plans": len(group.rows), "method": method,
        **{f"after {k}": float(mean[k - 1]) for k in AFTER}, "close": float(np.mean(close)),
        "stacks": [stack.name for stack in group.stacks], **more,
    }  # fmt: skip


def rows_of(group: Group, seeds: int = 8) -> Iterator[dict[str, Any]]:
    """Yield a row for each method."""
    order, figures = tuned(group, max(AFTER), list(group.stacks))
    yield _row(group, "tune", [regrets(group.seconds, order)], **figures)
    for method, several in orders(group, seeds).items():
        yield _row(group, method, [regrets(group.seconds, order) for order in several])
    named = [regrets(group.seconds, tuned(group, 5, stack)[0]) for stack in group.stacks]
    yield _row(group, "one stack named", named)


def averaged(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return means over groups by source and method, and means of the sources', "every source"."""
    keys = [*(f"after {k}" for k in AFTER), "close"]
    found = []
    for method in dict.fromkeys(row["method"] for row in rows):
        parts = []
        for source in dict.fromkeys(row["source"] for row in rows):
            own = [row for row in rows if row["source"] == source and row["method"] == method]
            means = {key: float(np.mean([row[key] for row in own])) for key in keys}
            parts.append({"source": source, "method": method, "groups": len(own), **means})
        every = {key: float(np.mean([part[key] for part in parts])) for key in keys}
        count = sum(part["groups"] for part in parts)
        found += [*parts, {"source": "every source", "method": method, "groups": count, **every}]
    return found


_SHOWN: tuple[tuple[str, Any], ...] = (
    ("source", "{source}"), ("groups", "{groups}"), ("method", "{method}"),
    *((f"after {k}", f"{{after {k}:.1%}}") for k in AFTER),
    ("trials to 2 %", "{close:.1f}"),
)  # fmt: skip


@measurement(title="Tuning on measured plans")
def tune() -> dict[str, Any]:
    """Play every group with every method."""
    rows = []
    for group in (*parcae(), *published()):
        if len(group.stacks) and len(group.rows) >= LEAST:
            try:
                rows += rows_of(group)
            except ParenvsError as error:
                raise ParenvsError(f"{group.source}, {group.name}: {error}") from None
    own = [row for row in rows if row["method"] == "tune"]
    later = [x for row in own for x in row["later"]]
    return {
        "rows": rows, "means": averaged(rows),
        "inside": sum(row["inside"] for row in own), "asked": sum(row["asked"] for row in own),
        "first": float(np.median([row["first"] for row in own])), "later": float(np.median(later)),
    }  # fmt: skip


@tune.page
def page(data: dict[str, Any]) -> list[str]:
    """Return the sections of the page."""
    means = sorted(data["means"], key=lambda row: row["source"])
    head = (
        "Regret: seconds of the best plan that was tried over the best of the group, less 1; means "
        "over the groups of a source, and of the sources."
    )
    every = [row for row in means if row["source"] == "every source"]
    others = [row for row in means if row["source"] != "every source"]
    calibration = (
        f"Of {data['asked']} step times {data['inside'] / data['asked']:.0%} lay in the interval "
        f"of 80 % that was told before. `ask` took {data['first']:.2f} s first and "
        f"{data['later']:.3f} s then (medians, processor seconds)."
    )
    return [head, columns(every, _SHOWN, 3), calibration, columns(others, _SHOWN, 3)]


if __name__ == "__main__":
    main(tune)
