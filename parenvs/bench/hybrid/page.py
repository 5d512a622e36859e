"""``parenvs bench hybrid``: what is measured, the table of errors and what stands around it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parenvs.bench.hybrid.baselines import beaten, leave_one_out, orders, totals
from parenvs.bench.hybrid.constants import CONSTANTS
from parenvs.bench.hybrid.errors import fitted_on, groups
from parenvs.bench.hybrid.predict import Prediction, Skipped, predictions
from parenvs.bench.hybrid.rows import read_rows
from parenvs.bench.hybrid.steps import SHIPPED, Steps, Verdict, compared, read_steps
from parenvs.bench.measurement import measurement
from parenvs.bench.page import Column, Row, columns
from parenvs.markdown import escaped

_NUMBERED = re.compile(r"\[\d+\]")
TOOLS = ("calculon", "llm_analysis")
"""Tools whose recorded outputs stand beside ours."""


@measurement(title="Costs against what others measured")
def hybrid(
    rows: Path | None = None,
    steps: Sequence[Path] = (),
    only: str | None = None,
    leave_out: bool = False,
    search: bool = False,
) -> dict[str, Any]:
    """Hold costs against published rows and measured steps.

    Args:
        rows: file of published rows (default: the shipped ones).
        steps: files of measured steps, judged beside the shipped ones of other models.
        only: ``"rows"`` or ``"steps"`` leaves out the other half.
        leave_out: whether to judge every source by constants that were fitted without it, too.
        search: whether to search for measured steps that beat the best plan by their stack.
    """
    published = None if only == "steps" else read_rows(rows)
    found, skipped = ([], []) if published is None else predictions(published)
    files = []
    if only == "steps" or (only is None and (rows is None or steps)):
        files = [read_steps(path) for path in steps]
        given = {one.model for one in files}
        files += [one for one in map(read_steps, SHIPPED) if one.model not in given]
    content = to_json(found, skipped, files, compared(files))
    if leave_out and published is not None:
        content["left_out"] = [asdict(one) for one in leave_one_out(published, found)]
    if search and published is not None:
        content["beaten"] = beaten(published, found)
    return content


def to_json(
    found: Sequence[Prediction],
    skipped: Sequence[Skipped],
    files: Sequence[Steps],
    verdicts: Sequence[Verdict],
) -> dict[str, Any]:
    """Return everything as JSON types."""
    parts = groups(found)
    used = {item for part in parts for item in part.constants}
    return {
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
        "totals": totals(found),
        "orders": orders(found),
        "steps": [
            {
                "file": one.path,
                "model": one.model,
                "assumed": list(one.assumed),
                "count": len(one.seconds),
            }
            for one in files
        ],
        "steps_judged": [
            {**asdict(one), "best": list(one.best), "far": [list(plan) for plan in one.far]}
            for one in verdicts
        ],
    }


@hybrid.page
def page(data: dict[str, Any]) -> list[str]:
    """Tables of errors, steps, constants, assumptions, rows left out."""
    rows, sections = data["rows"], []
    if rows:
        sections += [
            f"{len(rows)} figures of {len({(row['source'], row['row']) for row in rows})} "
            "published rows. An error is the predicted figure over the published one, less 1: the "
            "mean of its absolute values, and the worst. A table on which a constant was fitted "
            "names it; none was fitted on a single row. What other tools say is recorded, not run.",
            columns(data["tables"], ERRORS, left=4),
        ]
    sections += _honesty(data)
    if data["steps_judged"]:
        said = [
            f"* {escaped(one['model'])}: {one['count']} steps of {escaped(one['file'])}"
            f"{'; assumed: ' if one['assumed'] else ''}{'; '.join(one['assumed'])}."
            for one in data["steps"]
        ]
        sections += [
            "## Measured steps of pipelines",
            "Data-parallel and pipeline degrees on one cluster, at fp16 (a V100's peak is then 125 "
            "TFLOP/s, of its tensor cores), stack deepspeed-2022. Two constants are fitted on all "
            "steps of one model, and judged on another's. `Far off` are steps measured 30 % and "
            "more over the predicted; `its place` is that of the plan called best among the "
            "measured. With measured layers the matmul share is their speed relative to the "
            "profile.",
            "\n".join(said),
            columns(data["steps_judged"], STEPS, left=2),
        ]
    if data["constants"]:
        names = dict.fromkeys(item["constant"] for item in data["constants"])
        told = [{"constant": words, **_fit(words, data)} for words in names]
        sections += ["## Fitted constants", columns(told, FITS, left=(0, 3))]
    if rows:
        sections += ["## Assumed", *_assumed(rows)]
    if data["not_predicted"]:
        reasons = Counter((x["source"], x["table"], x["reason"]) for x in data["not_predicted"])
        lines = [
            f"* {escaped(' '.join(filter(None, [source, where])))}, {count} "
            f"{'row' if count == 1 else 'rows'}: {escaped(reason)}."
            for (source, where, reason), count in reasons.items()
        ]
        sections += ["## Rows that nothing is predicted for", "\n".join(lines)]
    return sections


def _of_tool(tool: str) -> Any:
    """A column: the mean error of a tool, and of how many rows if not of all."""

    def told(part: Row) -> str:
        count, mean = part["tools"].get(tool) or (0, 0.0)
        few = f" ({count})" if count < part["n"] else ""
        return f"{100 * mean:.1f} %{few}" if count else ""

    return told


ERRORS: list[Column] = [
    ("source", lambda part: escaped(part["source"])),
    ("table", lambda part: escaped(part["table"])),
    ("stack", "{stack}"),
    (
        "fitted here",
        lambda part: ", ".join(dict.fromkeys(words.split()[1] for words in part["fitted"])),
    ),
    ("n", "{n}"),
    ("mean", "{mean_absolute:.1%}"),
    ("worst", lambda part: f"{100 * part['worst']:+.1f} %"),
    ("rank corr.", "{rank_correlation:.2f}"),
    *((tool.replace("_", "-"), _of_tool(tool)) for tool in TOOLS),
]
STEPS: list[Column] = [
    ("steps of", lambda one: escaped(one["model"])),
    ("constants fitted on", lambda one: escaped(one["fitted_on"])),
    ("matmul share", "{share:.3f}"),
    ("network share", "{network:.3f}"),
    ("mean", "{mean:.1%}"),
    ("worst", lambda one: f"{100 * one['worst']:+.1f} %"),
    ("rank corr.", "{rank:.3f}"),
    ("far off", lambda one: len(one["far"])),
    ("rank corr. without", "{rank_without:.3f}"),
    ("called best", "{best[0]} x {best[1]}"),
    ("its place", "{place}"),
    ("over the best", "{over_best:.1%}"),
]
FITS: list[Column] = [
    ("constant", "{constant}"),
    ("value", "{value:g}"),
    (
        "plausible",
        lambda one: "{:g} to {:g}".format(*one["plausible"]) if one["plausible"] else "",
    ),
    ("fitted on", lambda one: escaped("; ".join(one["rows"]))),
]


def _fit(words: str, data: dict[str, Any]) -> Row:
    """The value of a constant, and the rows that it was fitted on."""
    own = [item for item in data["constants"] if item["constant"] == words]
    rows = dict.fromkeys(item["fitted_on"] for item in own)
    return {
        "value": own[-1]["value"], "rows": list(rows), "plausible": own[-1].get("plausible")
    }  # fmt: skip


def _honesty(data: dict[str, Any]) -> list[str]:
    """In and out of sample, naive models, order, constants left out, rows called illegal."""
    sections = []
    if data["totals"]:
        sections += [
            "## In and out of sample",
            "Steps by source. A figure is in sample if a constant was fitted on its table. Beside "
            "the model stand two that know one constant each, the geometric mean of the measured "
            "MFU of the same figures: of a device and precision, and of a stack.",
            columns(data["totals"], TOTALS, left=2),
        ]
    if data["orders"]:
        sections += [
            "## Order of plans",
            "Plans of one group train one model on as many devices of one kind at one precision. "
            "Regret is what the plan called best costs over the best measured one, in seconds a "
            "token; pairs are those that differ by more than 2 %.",
            columns(data["orders"], ORDERS),
        ]
    if data.get("left_out"):
        sections += [
            "## Sources left out",
            "Every source on which constants were fitted, judged by constants that know nothing of "
            "it: fitted anew on the rows of the same stack in other sources, or the mean of the "
            "same constant of other stacks where there are none. Beside it the constant MFU of a "
            "device and precision, of all other sources.",
            columns(data["left_out"], LEFT_OUT),
        ]
    if data.get("beaten"):
        sections += [
            "## Measured below what a stack calls best",
            "Measured steps below that of the best uniform plan that fits the same devices, "
            "batch and precision by the closed form of their own stack: it is too slow there, or "
            "has no room for what ran. What is proven by it is beaten.",
            columns(data["beaten"], BEATEN, left=3),
        ]
    called = Counter(
        (row["source"], reason.partition(":")[0])
        for row in data["rows"]
        for reason in row["details"].get("illegal", ())[:1]
    )
    if called:
        judged = [row for row in data["rows"] if "illegal" in row["details"]]
        rows = len({(row["source"], row["row"]) for row in judged if row["details"]["illegal"]})
        lines = [
            f"* {escaped(source)}: {count} for {_plain(field)}."
            for (source, field), count in called.items()
        ]
        sections += [
            "## Called illegal",
            f"{rows} of {len({(row['source'], row['row']) for row in judged})} configurations that "
            "ran break a rule of the judge, need more memory than a device has by this count, or "
            "fill a part of it that plans keep free for allocators, in figures: "
            + "; ".join(
                f"{sum(n for (_, field), n in called.items() if _plain(field) == what)} for {what}"
                for what in dict.fromkeys(_plain(field) for _, field in called)
            )
            + ".",
            "\n".join(lines),
        ]
    return sections


def _plain(field: str) -> str:
    """Return what a reason is about, without the numbers of stages."""
    return escaped(_NUMBERED.sub("", field))


TOTALS: list[Column] = [
    ("", lambda row: "in sample" if row["sample"] else "out of sample"),
    ("source", lambda row: escaped(row["of"])),
    ("n", "{n}"),
    ("model", "{model:.1%}"),
    ("MFU of a device", "{device:.1%}"),
    ("MFU of a stack", "{stack:.1%}"),
]
ORDERS: list[Column] = [
    ("source", lambda row: escaped(row["source"])),
    ("groups", "{groups}"),
    ("rows", "{rows}"),
    ("rank corr.", "{rank:.2f}"),
    ("regret", "{regret:.1%}"),
    ("worst", "{worst_regret:.1%}"),
    ("pairs right", "{right}"),
    ("wrong", "{wrong}"),
    ("tied", "{tied}"),
]
BEATEN: list[Column] = [
    ("source", lambda row: escaped(row["source"])),
    ("row", lambda row: escaped(row["name"])),
    ("stack", "{stack}"),
    ("measured (s)", "{measured:.4g}"),
    ("best by the stack (s)", "{best:.4g}"),
    ("below", "{below:.1%}"),
]
LEFT_OUT: list[Column] = [
    ("source", lambda row: escaped(row["source"])),
    ("n", "{n}"),
    ("fitted", "{fitted:.1%}"),
    ("left out", "{left_out:.1%}"),
    ("MFU of a device", "{baseline:.1%}"),
    ("constants", lambda row: escaped("; ".join(row["constants"]))),
]


def _assumed(rows: Sequence[Row]) -> list[str]:
    """One line for each source: what its rows leave out."""
    by_source: dict[str, Counter[str]] = {}
    for row in rows:
        by_source.setdefault(row["source"], Counter()).update(row["assumed"])
    lines = [
        f"* {escaped(source)}: " + "; ".join(
            f"{escaped(words)}{'' if count == 1 else f' ({count})'}"
            for words, count in counts.items()
        ) + "."
        for source, counts in by_source.items()
        if counts
    ]  # fmt: skip
    return ["What rows do not say, and in how many figures:", "\n".join(lines) or "nothing."]
