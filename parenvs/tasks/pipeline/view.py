"""Pipeline plans in plain text: verdict, chain, table of stages, coarse Gantt chart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
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
    clip,
    columns,
    duration,
    kind_of,
    milliseconds,
    paint,
    plural,
    reason_lines,
    size,
)

if TYPE_CHECKING:
    from rich.table import Table

    from parenvs.tasks.pipeline.profile import StageProfile

AFTER = "after "
"""How the name of a cut begins that comes after what it names."""
_INDEX = re.compile(r"\[?\d+\]?")


def cut_labels(profile: StageProfile, cuts: Iterable[int], width: int = 36) -> list[str]:
    """The shortest names by which both sides of each cut are told apart.

    A cut is named after the outermost scope that it ends, ``after layers/3``, or begins, ``before
    head``; inside a scope after the instruction, ``after layers/3/mlp/dot 2``; where
    scopes have no numbers, after the variable that is read next, ``before layers/3/q``. A scope is
    written from its last number on, and from further left where scopes elsewhere end alike.

    Args:
        profile: the chain.
        cuts: first pivot after each cut; the length of the chain stands for its end.
        width: most characters of a name, ``after`` not counted.

    Returns:
        A name for each cut; different cuts have different names.
    """
    chain, pivots = _Chain(profile), list(cuts)
    words = {}
    for cut in pivots:
        label = printable(chain.label(cut))
        prefix = AFTER if label.startswith(AFTER) else ""
        words[cut] = prefix + _shortened(label.removeprefix(prefix), width)
    # Shortening may have made two names equal; those cuts are named by their pivots.
    count = Counter(words.values())
    return [words[cut] if count[words[cut]] == 1 else f"{AFTER}pivot {cut - 1}" for cut in pivots]


class _Chain:
    """The scopes of a chain of n pivots.

    ``paths`` are the scopes that each stands in, ``operations`` the names of instructions (empty in
    a measured chain); ``spans`` has the first and the last pivot of each scope.
    """

    def __init__(self, profile: StageProfile) -> None:
        self.profile = profile
        names = [str(name) for name in profile.names]
        parsed = {name: scopes_of(name, bool(profile.source)) for name in dict.fromkeys(names)}
        self.paths, self.operations = zip(*(parsed[name] for name in names), strict=True)
        self.spans: dict[Path, list[int]] = {}
        for pivot, path in enumerate(self.paths):
            for depth in range(1, len(path) + 1):
                self.spans.setdefault(path[:depth], [pivot, pivot])[1] = pivot

    @cached_property
    def variables(self) -> dict[int, Path]:
        """Pivot -> path of the variable that it is the first to read."""
        reads = self.profile.reads if self.profile.reads is not None else ()
        return {pivot: tuple(path.split("/")) for pivot, path in enumerate(reads) if path}

    @cached_property
    def prefixes(self) -> set[Path]:
        """What the paths of the variables begin with."""
        paths = self.variables.values()
        return {path[: k + 1] for path in paths for k in range(len(path))}

    def label(self, cut: int) -> str:
        """The name of a cut; no other cut of the chain has it."""
        if cut == len(self.paths):
            return "end"
        before, after = self.paths[cut - 1], self.paths[cut]
        ending = self._outermost(before, 1, cut - 1)
        starting = self._outermost(after, 0, cut)
        if ending and not (starting and len(starting) < len(ending)):
            return f"{AFTER}{_suffix(ending, self.spans)}"
        if starting:
            return f"before {_suffix(starting, self.spans)}"
        reader = min((pivot for pivot in self.variables if pivot >= cut), default=None)
        if reader is not None and not _numbered(before):
            variable = _suffix(self.variables[reader], self.prefixes, least=2)
            distance = f"{plural(reader - cut, 'pivot')} " if reader > cut else ""
            return f"{distance}before {variable}"
        return f"{AFTER}{self._occurrence(cut - 1)}"

    def _outermost(self, path: Path, end: int, pivot: int) -> Path:
        """The outermost scope of a path that starts (``end`` 0) or ends (1) at a pivot, or ()."""
        scopes = (path[:depth] for depth in range(1, len(path) + 1))
        return next((scope for scope in scopes if self.spans[scope][end] == pivot), ())

    def _occurrence(self, pivot: int) -> str:
        """The pivot's scope and instruction, and which of those of that name it is."""
        path, operation = self.paths[pivot], self.operations[pivot]
        pairs = zip(self.paths, self.operations, strict=True)
        namesakes = [other for other, pair in enumerate(pairs) if pair == (path, operation)]
        parts = (_suffix(path, self.spans), operation)
        number = f" {namesakes.index(pivot) + 1}" if len(namesakes) > 1 else ""
        return "/".join(part for part in parts if part) + number


def _numbered(path: Path) -> bool:
    return any(NUMBERED.search(part) for part in path)


def _suffix(path: Path, rivals: Collection[Path], least: int = 1) -> str:
    """The path from its last numbered part on, and from further left as long as that is ambiguous.

    It is ambiguous if one of the ``rivals`` ends alike up to that part, whatever the numbers, below
    other scopes: ``layers/3`` of an encoder where a decoder has layers too. It has at least
    ``least`` parts, if there are as many.
    """
    numbered = [index for index, part in enumerate(path) if NUMBERED.search(part)]
    start = numbered[-1] if numbered else max(len(path) - 1, 0)
    stop = start + 1
    while start > 0:
        ends_alike = (
            [*map(kind_of, rival[start - stop :])] == [*map(kind_of, path[start:stop])]
            and rival[: start - stop] != path[:start]
            for rival in rivals
        )
        if not (_INDEX.fullmatch(path[start]) or any(ends_alike)):
            break
        start -= 1
    return "/".join(path[max(min(start, len(path) - least), 0) :])


def _shortened(label: str, width: int) -> str:
    """A label in at most ``width`` characters.

    The word pivots and the words between two numbers go first, ``stages/2/layers/3`` becomes
    ``stages/2/3``; then the end goes.
    """
    if len(label) <= width:
        return label
    label = re.sub(r"^(\d+) pivots? ", r"\1 ", label)
    label = re.sub(r"(?<=/)(\d+)/[^/\d]+/(?=\d+(?:/|$))", r"\1/", label)
    return clip(label, width)


WIDTH = 100
"""Columns of the text."""
_TRACK = 90  # columns of the bar and of the Gantt chart
_MARKS = (" ░█╱", " ›‹ ")  # compute stage, link: idle, forward, backward, all-reduce
_FIGURES = ("compute", "transfer", "all-reduce", "memory", "busy")
_LEGEND = "stage: ░ forward  █ backward  ╱ all-reduce   link: › forward  ‹ backward"
_MOST_LETTERS = 40  # of a list in the line of an answer


def text(viewable: Report | Pipeline, color: bool = False) -> str:
    """A judged plan as text of at most 100 columns.

    Args:
        viewable: what the judge says of the plan, or the problem to show the chain alone.
        color: whether to color stages with ANSI escapes.

    Returns:
        Lines without a newline at the end: the verdict, the chain, and, unless the plan is
        malformed, a table of its stages and a coarse Gantt chart.
    """
    pipeline, report = problem_and_report(viewable)
    lines = [clip(title(pipeline, report), WIDTH), SEPARATOR.join(verdict(pipeline, report))]
    if report is not None:
        lines += reason_lines(report.reasons, WIDTH)
        lines += [clip(f"  {remark}", WIDTH) for remark in report.remarks]
    stages = report.stages if report is not None else ()
    lines += ["", *_bar(pipeline, stages, color)]
    if report is not None and stages:
        lines += ["", *_table(pipeline, report, color), "", *_gantt(report, color)]
    return "\n".join(lines)


def problem_and_report(viewable: Report | Pipeline) -> tuple[Pipeline, Report | None]:
    """The problem, and the report if there is one."""
    return (viewable.pipeline, viewable) if isinstance(viewable, Report) else (viewable, None)


def title(pipeline: Pipeline, report: Report | None) -> str:
    """Instance, cluster, stages and micro-batches."""
    parts = [printable(f"{pipeline.profile.name} on {pipeline.cluster}")]
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
        f"{plural(len(report.stages), 'stage')} on {clip(counts, _MOST_LETTERS)} devices",
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


def _bar(pipeline: Pipeline, stages: tuple[Stage, ...], color: bool) -> list[str]:
    share = pipeline.seconds_sum / pipeline.seconds_sum[-1]
    ends = np.rint(share[[stage.end for stage in stages] or [-1]] * _TRACK).astype(int)
    parts = []
    for number, width in enumerate(np.diff(ends, prepend=0).tolist()):
        # The last column of a stage is the bar of the cut behind it.
        inside = max(width - (number < len(ends) - 1), 0)
        label = f" {number} " if stages else " no cut "
        segment = (label if len(label) <= inside else "").center(inside, "━")
        if width:
            parts.append(paint(segment, number, color and bool(stages)))
    line = "┃".join(parts)
    ruler = "".join(f"{x} %".ljust(_TRACK // 4) for x in (0, 25, 50, 75))
    return [f"chain    {line}", f"{'':9}{ruler[: _TRACK - 5]}100 %"]


def _table(pipeline: Pipeline, report: Report, color: bool) -> list[str]:
    limit = report.memory_limit_bytes
    ends = cut_labels(pipeline.profile, (stage.end for stage in report.stages), 27)
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
    head, units, *lines = columns(rows, 4, WIDTH)
    return [head, units, *(paint(x[:2], k, color) + x[2:] for k, x in enumerate(lines))]


def _gantt(report: Report, color: bool) -> list[str]:
    """One row per compute stage and link; each column shows what fills most of it."""
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
    return empty(f"chain of {profile.name} on {pipeline.cluster}", "what", "value", rows=rows)


def compared(report: Report) -> dict[str, str]:
    """The columns of a plan in a table of several."""
    return {
        "step (s)": f"{report.length_seconds:.4f}",
        "simulated (s)": f"{report.simulated_seconds:.4f}",
        "hybrid (s)": report.price.cell if report.price else "",
        "1/L": f"{report.value:.4f}" if report.legal else "-1",
        "device cuts": " ".join(map(str, report.plan.device_cuts)),
    }
