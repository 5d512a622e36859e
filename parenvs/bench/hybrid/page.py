"""The table of errors and what stands around it, in Markdown and as JSON types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from parenvs.bench.hybrid.constants import CONSTANTS
from parenvs.bench.hybrid.errors import Group, fitted_on, groups
from parenvs.bench.hybrid.predict import Prediction, Skipped
from parenvs.bench.hybrid.steps import Steps, Verdict
from parenvs.markdown import escaped, table

TOOLS = ("calculon", "llm_analysis")
"""Tools whose recorded outputs stand beside ours."""


def to_json(
    command: str,
    found: Sequence[Prediction],
    skipped: Sequence[Skipped],
    files: Sequence[Steps],
    verdicts: Sequence[Verdict],
) -> dict[str, Any]:
    """Return everything as JSON types."""
    parts = groups(found)
    used = {item for part in parts for item in part.constants}
    return {
        "command": command,
        "tables": [part.to_json() for part in parts],
        "rows": [
            {**one.to_json(), "fitted": [item.words for item in fitted_on(one)]} for one in found
        ],
        "not_predicted": [asdict(one) for one in skipped],
        "constants": [
            {"constant": item.words, "value": item.value, "fitted_on": item.rows}
            for item in CONSTANTS
            if item in used
        ],
        "steps": [
            {"file": one.path, "model": one.model, "assumed": list(one.assumed)} for one in files
        ],
        "steps_judged": [
            {**asdict(one), "best": list(one.best), "far": [list(plan) for plan in one.far]}
            for one in verdicts
        ],
    }


def markdown(
    command: str,
    found: Sequence[Prediction],
    skipped: Sequence[Skipped],
    files: Sequence[Steps],
    verdicts: Sequence[Verdict],
) -> str:
    """Return a page: tables of errors, steps, constants, assumptions, rows left out."""
    parts = groups(found)
    sections = ["# Costs against what others measured", f"`{command}`"]
    if found:
        sections += [
            f"{len(found)} figures of {len({one.row for one in found})} published rows. An error "
            "is the predicted figure over the published one, less 1: the mean of its absolute "
            "values, and the worst. A table on which a constant was fitted names it; none was "
            "fitted on a single row. Other tools' outputs are recorded, not run.",
            _errors(parts),
        ]
    if verdicts:
        sections += ["## Measured steps of pipelines", *_steps(files, verdicts)]
    used = [item for part in parts for item in part.constants]
    if used:
        sections += ["## Fitted constants", _constants(used)]
    if found:
        sections += ["## Assumed", *_assumed(found)]
    if skipped:
        reasons = Counter((one.source, one.table, one.reason) for one in skipped)
        lines = [
            f"* {escaped(' '.join(filter(None, [source, where])))}, {count} "
            f"{'row' if count == 1 else 'rows'}: {escaped(reason)}."
            for (source, where, reason), count in reasons.items()
        ]
        sections += ["## Rows that nothing is predicted for", "\n".join(lines)]
    return "\n\n".join(sections) + "\n"


def _errors(parts: Sequence[Group]) -> str:
    header = ["source", "table", "stack", "fitted here", "n", "mean", "worst", "rank corr."]
    rows = []
    for part in parts:
        fitted = ", ".join(dict.fromkeys(item.name for item in part.constants))
        others = []
        for tool in TOOLS:
            figure = part.of_tool(tool)
            count = f" ({figure[0]})" if figure and figure[0] < len(part.predictions) else ""
            others.append(f"{100 * figure[1]:.1f} %{count}" if figure else "")
        rank = "" if part.rank is None else f"{part.rank:.2f}"
        rows.append(
            [escaped(part.source), escaped(part.table), part.stack, fitted, len(part.predictions),
             f"{100 * part.mean:.1f} %", f"{100 * part.worst:+.1f} %", rank, *others]
        )  # fmt: skip
    return table([*header, "calculon", "llm-analysis"], rows, left=4)


def _steps(files: Sequence[Steps], verdicts: Sequence[Verdict]) -> list[str]:
    header = [
        "steps of", "constants fitted on", "matmul share", "network share", "mean", "worst",
        "rank corr.", "far off", "rank corr. without", "called best", "its place", "over the best",
    ]  # fmt: skip
    rows = [
        [
            escaped(one.model), escaped(one.fitted_on), f"{one.share:.3f}", f"{one.network:.3f}",
            f"{100 * one.mean:.1f} %", f"{100 * one.worst:+.1f} %", _figure(one.rank),
            len(one.far), _figure(one.rank_without), f"{one.best[0]} x {one.best[1]}", one.place,
            f"{100 * one.over_best:.1f} %",
        ]
        for one in verdicts
    ]  # fmt: skip
    said = [
        f"* {escaped(one.model)}: {len(one.seconds)} steps of {escaped(one.path)}"
        f"{'; assumed: ' if one.assumed else ''}{'; '.join(one.assumed)}."
        for one in files
    ]
    words = (
        "Data-parallel and pipeline degrees on one cluster, at fp16 (a V100's peak is then 125 "
        "TFLOP/s, of its tensor cores), stack deepspeed-2022. Two constants are fitted on all "
        "steps of one model, and judged on another's. `Far off` are steps measured 30 % and more "
        "over the predicted; `its place` is that of the plan called best among the measured. With "
        "measured layers the matmul share is their speed relative to the profile."
    )
    return [words, "\n".join(said), table(header, rows, left=2)]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _constants(used: Sequence[Any]) -> str:
    on: dict[str, list[str]] = {}
    values = {}
    for item in used:
        rows = on.setdefault(item.words, [])
        values[item.words] = item.value
        if item.rows not in rows:
            rows.append(item.rows)
    cells = [[words, f"{values[words]:g}", escaped("; ".join(rows))] for words, rows in on.items()]
    return table(["constant", "value", "fitted on"], cells, left=(0, 2))


def _assumed(found: Sequence[Prediction]) -> list[str]:
    """One line for each source: what its rows leave out."""
    by_source: dict[str, Counter[str]] = {}
    for one in found:
        by_source.setdefault(one.source, Counter()).update(one.assumed)
    lines = [
        f"* {escaped(source)}: " + "; ".join(
            f"{escaped(words)}{'' if count == 1 else f' ({count})'}"
            for words, count in counts.items()
        ) + "."
        for source, counts in by_source.items()
        if counts
    ]  # fmt: skip
    return ["What rows do not say, and in how many figures:", "\n".join(lines) or "nothing."]
