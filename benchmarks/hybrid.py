"""How far predicted step times are from published measurements of training runs.

    python benchmarks/hybrid.py                       # the shipped rows, a few seconds
    python benchmarks/hybrid.py --rows FILE --json    # your own rows; every figure as JSON
    python benchmarks/hybrid.py --leave-out           # errors by constants fitted without a source

``docs/generated/rows.md`` lists the fields of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.framework import Column, columns, main, measurement
from benchmarks.hybrid_predictions import STEP_UNITS, Prediction, predictions
from benchmarks.hybrid_settings import CONSTANTS, STACKS, Constant, recipe_of
from parenvs.cluster import EFFICIENCY, Cluster
from parenvs.markdown import escaped
from parenvs.tasks.hybrid.rows import PEAKS, Published, Row, read_rows
from parenvs.tasks.hybrid.stack import Stack


@dataclass(frozen=True)
class Group:
    """The predictions of one table.

    Attributes:
        source: who published it.
        table: its name; what tells a part of it apart stands behind a comma.
        stack: the stack.
        device: the devices.
        predictions: of its rows.
        constants: those that were fitted on rows among them.
    """

    source: str
    table: str
    stack: str
    device: str
    predictions: tuple[Prediction, ...]
    constants: tuple[Constant, ...]

    @property
    def errors(self) -> np.ndarray:
        """(n,) predicted over measured, less 1."""
        return np.array([one.error for one in self.predictions])

    @property
    def mean(self) -> float:
        """Mean absolute error."""
        return float(np.abs(self.errors).mean())

    @property
    def worst(self) -> float:
        """The error that is farthest from 0, with its sign."""
        return float(self.errors[np.abs(self.errors).argmax()])

    def of_tool(self, tool: str) -> tuple[int, float] | None:
        """Rows that a tool's output is recorded for, and its mean absolute error."""
        found = [abs(x.others[tool] / x.measured - 1) for x in self.predictions if tool in x.others]
        return (len(found), float(np.mean(found))) if found else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the table as JSON types."""
        tools = {tool for one in self.predictions for tool in one.others}
        return {
            "source": self.source,
            "table": self.table,
            "stack": self.stack,
            "device": self.device,
            "n": len(self.predictions),
            "mean_absolute": self.mean,
            "worst": self.worst,
            "fitted": [constant.words for constant in self.constants],
            "tools": {tool: self.of_tool(tool) for tool in sorted(tools)},
        }


@cache
def _shipped() -> frozenset[tuple]:
    """Figures of the shipped file, which constants were fitted on."""
    return frozenset(
        (row.source, row.table, row.name, row.get("gpus"), figure)
        for row in read_rows().rows
        for figure in row.measured.values()
    )


def fitted_on(one: Prediction) -> list[Constant]:
    """Return the constants that were fitted on a figure; none on one of another file."""
    if (one.source, one.table, one.name, one.gpus, one.measured) not in _shipped():
        return []
    if one.column in PEAKS:
        return []  # bytes are counted
    where = (one.source, one.table, one.name, one.stack, one.device, one.precision)
    return [item for item in CONSTANTS if item.is_of(*where)]


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties by their mean rank.

    None for less than three figures, or if all of one kind are equal.
    """
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(spearmanr(one, other).statistic)


def groups(predictions: Iterable[Prediction]) -> list[Group]:
    """Return the predictions by source and table, in the order of the file.

    A table with rows of several stacks or devices, or of ZeRO 3 and without, is taken apart, and
    so are the bytes of devices.
    """
    found = list(predictions)
    variants: dict[tuple[str, str], list[set]] = {}
    for one in found:
        kinds = variants.setdefault((one.source, one.table), [set(), set(), set(), set()])
        for kind, value in zip(kinds, _variant(one), strict=True):
            kind.add(value)
    tables: dict[tuple[str, str], list[Prediction]] = {}
    for one in found:
        kinds = variants[one.source, one.table]
        pairs = zip(kinds, _variant(one), strict=True)
        told = [value for kind, value in pairs if len(kind) > 1 and value]
        tables.setdefault((one.source, ", ".join(filter(None, [one.table, *told]))), []).append(one)
    return [
        Group(
            source,
            table,
            " ".join(sorted({one.stack for one in members})),
            " ".join(sorted({one.device for one in members})),
            tuple(members),
            tuple(dict.fromkeys(item for one in members for item in fitted_on(one))),
        )
        for (source, table), members in tables.items()
    ]


def _variant(one: Prediction) -> tuple[str, str, str, str]:
    zero = one.details.get("plan", {}).get("zero", 0)
    memory = "memory" if one.column in PEAKS else ""
    return one.stack, one.device, "ZeRO 3" if zero == 3 else "", memory


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
        changed = {item.name: {**getattr(stack, item.name), item.key: value}}
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


def as_measured(published: Published, found: Sequence[Prediction]) -> dict[str, float]:
    """Source -> mean absolute error of steps on devices like ``SERVER``'s, as that was measured."""
    server = Cluster.parse(SERVER)
    sources = {one.source for one in found if one.device == server.device.name}
    rows = tuple(row for row in published.rows if row.source in sources)
    after = predictions(replace(published, rows=rows, server=server))[0]
    return {
        source: _mean([x.error for x in after if x.source == source and is_step(x)])
        for source in sources
    }


@measurement(
    title="Predicted step times beside published ones",
    about={
        "rows": "JSON file of rows (default: those that ship)",
        "leave_out": "judge every source by constants fitted without it, too",
    },
)
def hybrid(rows: Path | None = None, leave_out: bool = False) -> dict[str, Any]:
    published = read_rows(rows)
    found, skipped = predictions(published)
    parts, measured = groups(found), as_measured(published, found)
    used = {item for part in parts for item in part.constants}
    content: dict[str, Any] = {
        "tables": [part.to_json() for part in parts],
        "rows": [
            {**one.to_json(), "fitted": [item.words for item in fitted_on(one)]} for one in found
        ],
        "not_predicted": [asdict(one) for one in skipped],
        "constants": [
            {
                "constant": item.words,
                "value": item.value,
                "fitted_on": item.rows,
                "plausible": item.plausible,
            }
            for item in CONSTANTS
            if item in used or (used and not item.ships)
        ],
        "totals": [{**row, "measured": measured.get(row["of"])} for row in totals(found)],
        "orders": orders(found),
    }
    if leave_out:
        content["left_out"] = [asdict(one) for one in leave_one_out(published, found)]
    return content


SERVER = "b200-server.json"
"""Cluster's file with what was measured of a server."""
TOTALS: list[Column] = [
    ("", lambda row: "in sample" if row["sample"] else "out of sample"),
    ("source", lambda row: escaped(row["of"])),
    ("n", "{n}"),
    ("model", "{model:.1%}"),
    ("as measured", "{measured:.1%}"),
    ("MFU of a device", "{device:.1%}"),
    ("MFU of a stack", "{stack:.1%}"),
]
ORDERS: list[Column] = [
    ("source", lambda row: escaped(row["source"])),
    ("groups", "{groups}"),
    ("rows", "{rows}"),
    ("rank correlation", "{rank:.2f}"),
    ("regret", "{regret:.1%}"),
    ("worst", "{worst_regret:.1%}"),
    ("pairs right", "{right}"),
    ("wrong", "{wrong}"),
    ("tied", "{tied}"),
]
LEFT_OUT: list[Column] = [
    ("source", lambda row: escaped(row["source"])),
    ("n", "{n}"),
    ("fitted", "{fitted:.1%}"),
    ("left out", "{left_out:.1%}"),
    ("MFU of a device", "{baseline:.1%}"),
]
MISSED = 0.1
MISSES: list[Column] = [
    ("source", lambda part: escaped(part["source"])),
    ("table", lambda part: escaped(part["table"])),
    ("stack", "{stack}"),
    ("n", "{n}"),
    ("mean", "{mean_absolute:.1%}"),
    ("worst", lambda part: f"{part['worst']:+.1%}"),
]
TOOLS = ("calculon", "llm_analysis")
"""Tools whose recorded outputs are compared."""


@hybrid.page
def page(data: dict[str, Any]) -> list[str]:
    rows = data["rows"]
    sections = [
        f"{len(rows)} figures of {len({(row['source'], row['row']) for row in rows})} published "
        f"rows; {len(data['not_predicted'])} more rows lack what a prediction needs. An error is "
        "the predicted figure over the published one, less 1. A figure is in sample if a constant "
        "was fitted on its table; none was fitted on a single row. Two naive models are compared, "
        "which know one constant each, the geometric mean of the measured MFU of the same figures: "
        "of a device and precision, and of a stack. Figures are mean absolute errors of steps; as "
        f"measured: kernels and links by what another measured of such a server (`{SERVER}`).",
        columns(data["totals"], TOTALS, left=2),
    ]
    for tool in TOOLS:
        pairs = [
            (part["n"], part["mean_absolute"], *part["tools"][tool])
            for part in data["tables"]
            if part["tools"].get(tool)
        ]
        if pairs:
            count, model, known, other = np.array(pairs).T
            model = np.average(model, weights=count)
            other = np.average(other, weights=known)
            sections.append(
                f"On the {len(pairs)} tables for which outputs of {tool.replace('_', '-')} are "
                f"recorded, its mean absolute error is {other:.1%}, that of the model {model:.1%}."
            )
    sections += [
        "**Order of plans.** Plans of one group train one model on as many devices of one kind at "
        "one precision. Regret is the measured step time of the plan that is predicted best over "
        "the best measured one, per token; pairs are those that differ by more than 2 %.",
        columns(data["orders"], ORDERS),
    ]
    if data.get("left_out"):
        sections += [
            "**Sources left out.** Errors by constants that know nothing of a source: fitted on "
            "the rows of the same stack in other sources, or the mean of the same constant of "
            "other stacks. Beside them the constant MFU of a device and precision, of all other "
            "sources.",
            columns(data["left_out"], LEFT_OUT),
        ]
    missed = [part for part in data["tables"] if part["mean_absolute"] > MISSED]
    missed.sort(key=lambda part: -part["mean_absolute"])
    sections += [
        f"**Misses.** Tables whose mean absolute error is above {MISSED:.0%}:",
        columns(missed, MISSES, left=3),
    ]
    ran = [row for row in rows if "illegal" in row["details"]]
    count = len({(row["source"], row["row"]) for row in ran})
    refused = {(row["source"], row["row"]) for row in ran if row["details"]["illegal"]}
    sections.append(
        f"{len(refused)} of {count} configurations that ran are called illegal: they break a rule "
        "of the evaluator, or need more memory than it leaves to a plan."
    )
    return sections


if __name__ == "__main__":
    main(hybrid)
