"""Pipeline plans in plain text: verdict, chain, table of stages, coarse Gantt chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.core.registry import TASKS, problem
from parenvs.errors import InfeasibleError, printable
from parenvs.tasks.pipeline.borders import NUMBERED, Path, scopes_of
from parenvs.tasks.pipeline.problem import Pipeline, Report, Stage, stages_on
from parenvs.tasks.pipeline.spaces import CutSpace
from parenvs.view.tables import empty
from parenvs.view.words import (
    SEPARATOR,
    clip_start,
    columns,
    duration,
    milliseconds,
    paint,
    plural,
    reason_lines,
    size,
    wrapped,
)

if TYPE_CHECKING:
    from rich.table import Table

    from parenvs.tasks.pipeline.profile import StageProfile

AFTER = "after "
"""How the name of a cut begins that comes after what it names."""


def cut_labels(profile: StageProfile, cuts: Iterable[int], width: int = 36) -> list[str]:
    """Names of cuts, by the outermost scope that ends or begins there.

    Inside a scope a cut is named after the instruction: ``after h/3/mlp/dot``. A scope is written
    from two parts before its last number on. Equal names become numbers of pivots.

    Args:
        profile: the chain.
        cuts: first pivot after each cut; the length of the chain stands for its end.
        width: most characters of a name, ``after`` not counted.

    Returns:
        A name for each cut; different cuts have different names.
    """
    parsed = [scopes_of(str(name), bool(profile.source)) for name in profile.names]
    spans: dict[Path, list[int]] = {}  # first and last pivot of each scope
    for pivot, (path, _) in enumerate(parsed):
        for depth in range(1, len(path) + 1):
            spans.setdefault(path[:depth], [pivot, pivot])[1] = pivot

    def outermost(pivot: int, end: int) -> Path:
        path = parsed[pivot][0]
        scopes = (path[:depth] for depth in range(1, len(path) + 1))
        return next((scope for scope in scopes if spans[scope][end] == pivot), ())

    def label(cut: int) -> str:
        if cut == len(parsed):
            return "end"
        ending, starting = outermost(cut - 1, 1), outermost(cut, 0)
        if starting and (not ending or len(starting) < len(ending)):
            return clip_start(f"before {_tail(starting)}", width)
        path, operation = parsed[cut - 1]
        words = _tail(ending) if ending else "/".join(filter(None, (_tail(path), operation)))
        return AFTER + clip_start(printable(words), width)

    pivots = list(cuts)
    words = {cut: label(cut) for cut in pivots}
    count = Counter(words.values())
    return [words[cut] if count[words[cut]] == 1 else f"{AFTER}pivot {cut - 1}" for cut in pivots]


def _tail(path: Path) -> str:
    numbered = [index for index, part in enumerate(path) if NUMBERED.search(part)]
    start = max(numbered[-1] - 2, 0) if numbered else len(path) - 1
    # A number says nothing without what it counts.
    return "/".join(path[max(start - path[start].isdecimal(), 0) :]) if path else ""


_TRACK = 90  # columns of the Gantt chart
# Compute stage, link: idle, forward, backward, all-reduce.
_MARKS = (" ░█╱", " ›‹ ")
_FIGURES = ("compute", "transfer", "all-reduce", "memory", "busy")
_LEGEND = "stage: ░ forward  █ backward  ╱ all-reduce   link: › forward  ‹ backward"


def text(viewable: Report | Pipeline, color: bool = False) -> str:
    """A judged plan as text of at most 110 columns.

    Args:
        viewable: what the judge says of the plan, or the problem to show the chain alone.
        color: whether to color stages with ANSI escapes.

    Returns:
        Lines without a newline at the end: the verdict, and, unless the plan is malformed,
        a table of its stages and a coarse Gantt chart.
    """
    pipeline, report = problem_and_report(viewable)
    lines = wrapped([title(pipeline, report), SEPARATOR.join(verdict(pipeline, report))])
    if report is not None:
        lines += reason_lines(report.reasons)
        lines += wrapped(f"  {remark}" for remark in report.remarks)
    if report is not None and report.stages:
        lines += ["", *_table(report, color), "", *_gantt(report, color)]
    return "\n".join(lines)


def problem_and_report(viewable: Report | Pipeline) -> tuple[Pipeline, Report | None]:
    """The problem, and the report if there is one."""
    return (viewable.pipeline, viewable) if isinstance(viewable, Report) else (viewable, None)


def title(pipeline: Pipeline, report: Report | None) -> str:
    """Instance, cluster, stages and micro-batches."""
    parts = [printable(pipeline.words)]
    if report is not None and report.stages:
        parts.append(plural(len(report.stages), "stage"))
    batches = plural(pipeline.micro_batches, "micro-batch", "es")
    return SEPARATOR.join([*parts, f"{batches} of {pipeline.profile.micro_batch}"])


def verdict(pipeline: Pipeline, report: Report | None) -> list[str]:
    """Legality, both lengths and the value; without a plan, the size of the problem."""
    if report is None:
        return [
            "no cut yet",
            f"{len(pipeline.profile):,} pivots",
            f"{size(float(pipeline.parameter_sum[-1]))} of parameters",
            f"bubble-free {duration(pipeline.bubble_free)}",
        ]
    if not report.stages:
        return ["illegal: malformed plan", f"value {report.value:g}"]
    length, simulated = duration(report.length_seconds), duration(report.simulated_seconds)
    lengths = [f"L {length}", f"simulated {simulated}"]
    if not report.legal:
        return ["illegal", *lengths, f"value {report.value:g}"]
    free = duration(report.bubble_free_seconds)
    return [*lengths, f"value {report.value:.4f} = bubble-free {free} / L"]


def answer(report: Report) -> str:
    """The step, the stages and the memory, in one line."""
    if not report.stages:
        return "malformed"
    counts = ", ".join(str(x.device_end - x.device_first) for x in report.stages)
    used = max(stage.memory_bytes for stage in report.stages) / 1e9
    parts = (
        f"{duration(report.length_seconds)} a step",
        f"{plural(len(report.stages), 'stage')} on {counts} devices",
        f"{used:.4g} of {report.memory_limit_bytes / 1e9:.4g} GB a device",
    )
    return SEPARATOR.join(parts)


def device_range(stage: Stage) -> str:
    """The devices of a stage, both ends included: ``8–15``."""
    last = stage.device_end - 1
    return f"{stage.device_first}–{last}" if last > stage.device_first else f"{last}"


def device_words(stage: Stage) -> str:
    """``device 3``, or ``devices 8–15``."""
    count = stage.device_end - stage.device_first
    return f"device{'s' if count > 1 else ''} {device_range(stage)}"


def _table(report: Report, color: bool) -> list[str]:
    limit = report.memory_limit_bytes
    ends = cut_labels(report.pipeline.profile, (stage.end for stage in report.stages), 27)
    rows = [
        ["", "devices", "pivots", "ends after", *_FIGURES, ""],
        ["", "", "", "", "ms", "ms", "ms", f"of {limit / 1e9:.1f}", "%", ""],
    ]
    for number, (stage, end) in enumerate(zip(report.stages, ends, strict=True)):
        compute = stage.forward_seconds + stage.backward_seconds
        seconds = (compute, stage.transfer_seconds, stage.all_reduce_seconds)
        place = [f"{number}", device_range(stage), f"{stage.first}–{stage.end - 1}"]
        others = [f"{stage.memory_bytes / 1e9:.2f}", f"{stage.efficiency * 100:.1f}"]
        others.append("!" if stage.memory_bytes > limit else "")
        rows.append([*place, end.removeprefix(AFTER), *map(milliseconds, seconds), *others])
    head, units, *lines = columns(rows, 4)
    return [head, units, *(paint(x[:2], k, color) + x[2:] for k, x in enumerate(lines))]


def _gantt(report: Report, color: bool) -> list[str]:
    table = report.timetable
    span = max(report.simulated_seconds, report.length_seconds)
    edges = np.linspace(0.0, span, _TRACK + 1)
    lines = []
    for row in range(len(table.reduce_start)):
        stage, link = divmod(row, 2)
        passes = [(table.start[row, kind], table.end[row, kind]) for kind in (0, 1)]
        passes.append((table.reduce_start[[row]], table.reduce_end[[row]]))
        covered = np.stack([_covered_seconds(edges, *times) for times in passes])
        marks = np.where(covered.max(axis=0) > 1e-9 * span, 1 + covered.argmax(axis=0), 0)
        track = "".join(_MARKS[link][k] for k in marks).rstrip()
        label = "  link" if link else f"stage {stage}"
        lines.append(f"{label:<9}{paint(track, stage, color and not link)}".rstrip())
    return [*lines, f"{'':9}0{duration(span):>{_TRACK - 1}}", f"{'':9}{_LEGEND}"]


def _covered_seconds(edges: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    before = np.clip(edges - start[:, None], 0.0, (end - start)[:, None]).sum(axis=0)
    return np.diff(before)


def of_instance(instance: str, cluster: Any, options: Mapping[str, Any]) -> list[Table]:
    """The chain of an instance, whether or not the default number of stages fits it."""
    if TASKS["pipeline"].names(instance) or "stages" in options:
        return [chain(problem(instance, cluster, "pipeline", **options))]
    pipeline = problem(instance, cluster, "pipeline", stages=1, **options)
    return [chain(pipeline.with_stages(stages_on(pipeline.cluster)))]


def chain(pipeline: Pipeline) -> Table:
    """A chain of pivots on a cluster, and how much of it ``PipelineCut-v0`` leaves to search."""
    try:
        space = CutSpace.build(pipeline)
        candidates = f"{len(space.pivots)} (radius {space.radius})"
    except InfeasibleError:
        candidates = "none: they allow no plan of so many stages"
    profile = pipeline.profile
    rows = (
        ("pivots", f"{len(profile)}"),
        ("pivots with variables", f"{int(pipeline.variable_sum[-1])}"),
        ("forward, one device", f"{profile.forward.sum():.4f} s a micro-batch"),
        ("backward, one device", f"{profile.backward.sum():.4f} s a micro-batch"),
        ("parameters", f"{pipeline.parameter_sum[-1] / 1e9:.3f} GB"),
        ("largest cut", f"{profile.cut_bytes[:-1].max() / 1e6:.2f} MB"),
        ("smallest cut", f"{profile.cut_bytes[:-1].min() / 1e6:.2f} MB"),
        ("bubble-free step", f"{pipeline.bubble_free:.4f} s"),
        ("stages", f"{pipeline.stages}"),
        ("candidates of PipelineCut-v0", candidates),
    )
    return empty(f"chain of {pipeline.words}", "what", "value", rows=rows)


def compared(report: Report) -> dict[str, str]:
    """The columns of a plan in a table of several."""
    return {
        "step (s)": f"{report.length_seconds:.4f}",
        "simulated (s)": f"{report.simulated_seconds:.4f}",
        "hybrid (s)": report.price.cell if report.price else "",
        "1/L": f"{report.value:.4f}" if report.legal else "-1",
        "device cuts": " ".join(map(str, report.plan.device_cuts)),
    }
