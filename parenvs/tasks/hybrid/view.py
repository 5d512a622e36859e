"""Hybrid plans in plain text: verdict, seconds by part, table of stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from parenvs.errors import ParenvsError, printable
from parenvs.tasks.hybrid.report import PARTS as MEMORY_PARTS
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.view.tables import empty
from parenvs.view.words import (
    SEPARATOR,
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

    from parenvs.tasks.hybrid.explain import Alternative, Shift
    from parenvs.tasks.hybrid.problem import Hybrid
    from parenvs.tasks.hybrid.report import HybridStageReport

_BAR = 72  # columns of the bar of a whole step
_WORDS = {"exchange": "tensor exchange", "tied": "tied weights"}
PARTS = {
    name: _WORDS.get(name, name)
    for name in (
        "forward", "backward", "recomputed", "exchange", "sends", "gathers", "bubble", "gradients",
        "tied", "optimizer", "host",
    )
}  # fmt: skip
"""Part of a step's seconds -> its name."""
_COLUMNS = (
    "stage", "devices", "layers", "redone", "tp", "dp", "ZeRO", "compute", "waits", "memory",
)  # fmt: skip


def text(report: HybridReport | Hybrid, color: bool = False) -> str:
    """A judged plan, or a problem without one, as text of at most 110 columns.

    Lines have no newline at the end: the verdict, the seconds of a step by part, and a table of the
    stages; equal neighbors share a row. ``color`` colors stages with ANSI escapes.
    """
    lines = wrapped([title(report), SEPARATOR.join(verdict(report))])
    if isinstance(report, HybridReport):
        lines += reason_lines(report.reasons)
        if report.stages:
            lines += [*wrapped(notes(report)), "", *_seconds(report), "", *_table(report, color)]
    return "\n".join(line.rstrip() for line in lines)


def title(report: HybridReport | Hybrid) -> str:
    """Instance, cluster, software, and the degrees of the plan where all stages share them."""
    parts = [printable(f"{report.model.name} on {report.cluster}")]
    if not isinstance(report, HybridReport):
        parts.append(f"batch {report.batch:,}")
    elif report.stages:
        parts.append(", ".join([*layout(report), *["offload"] * report.plan.offload]))
        batches = plural(report.micro_batches, "micro-batch", "es")
        parts.append(f"{batches} of {report.plan.micro_batch}")
    machine = report.machine
    return SEPARATOR.join([*parts, f"{machine.stack.name} {machine.precision}"])


def verdict(report: HybridReport | Hybrid) -> list[str]:
    """Legality, both lengths, the value and what the devices reach."""
    if not isinstance(report, HybridReport):
        best = f"at best {duration(report.bound_seconds)} a step"
        return ["no plan yet", plural(len(report.model), "layer"), best]
    if not report.stages:
        return ["illegal: malformed plan", f"value {report.value:g}"]
    simulated = report.simulated_seconds
    words = [] if report.legal else ["illegal"]
    words.append(str(report.outlook or f"L {duration(report.length_seconds)}"))
    if simulated is not None and not report.outlook:
        words.append(f"simulated {duration(simulated)}")
    words.append(f"value {report.value:.4f}")
    if report.flops:
        words.append(f"{report.tflops['model']:.4g} TFLOP/s, MFU {report.mfu:.1%}")
    if report.tokens_per_second is not None:
        return [*words, f"{report.tokens_per_second:,.0f} tokens/s"]
    return [*words, f"{report.samples_per_second:,.4g} samples/s"]


def answer(report: HybridReport) -> str:
    """The step, the degrees, the throughput and the memory, in one line."""
    if not report.stages:
        return "malformed"
    held = max(stage.memory["total"] for stage in report.stages) / 1e9
    machine = report.machine
    parts = [
        str(report.outlook or f"{duration(report.step_seconds)} a step"),
        degrees(report),
        *([f"MFU {report.mfu:.1%}"] if report.flops else []),
        f"{held:.4g} of {report.memory_limit_bytes / 1e9:.4g} GB",
        f"stack {machine.stack.name} of {machine.stack.date} in {machine.precision}",
        *filter(None, [report.as_measured]),
    ]
    return SEPARATOR.join(parts)


def layout(report: HybridReport) -> list[str]:
    """Stages and degrees as a product, and ZeRO where there is any."""
    plan, stages = report.plan, report.stages
    words = [plural(len(stages), "stage")]
    for name in ("dp", "tp"):
        values = {getattr(stage, name) for stage in stages}
        words.append(f"{name} {values.pop() if len(values) == 1 else 'mixed'}")
    given = {"cp": plan.context, "ep": plan.expert, "chunks": plan.chunks, "shard": plan.shard}
    words += [f"{name} {value}" for name, value in given.items() if value > 1]
    levels = sorted({stage.zero for stage in stages})
    zero = [f"ZeRO {'/'.join(map(str, levels))}"] if any(levels) else []
    return [" x ".join(words), *zero]


def degrees(report: HybridReport) -> str:
    """Stages, degrees, ZeRO, what is recomputed, and the samples of a micro-batch."""
    modes = [mode for stage in report.plan.stages for mode in stage.modes]
    some = len(set(modes)) > 1
    recomputed = [
        f"{mode} recomputation" + (f" of {modes.count(mode)} layers" if some else "")
        for mode in ("selective", "full")
        if mode in modes
    ]
    return ", ".join([*layout(report), *recomputed, f"micro-batch {report.plan.micro_batch}"])


def notes(report: HybridReport) -> list[str]:
    """What is recomputed, guessed, left idle, and the TFLOP/s by the other ways of counting."""
    words, cluster = [recomputation(report)] if report.redone else [], report.cluster
    if report.is_guess:
        machine = report.machine
        words.append(
            f"guess: what {machine.stack.name} reaches on a {cluster.device.name} at "
            f"{machine.precision} was never measured"
        )
    if cluster.measured is not None:
        words.append(f"{report.as_measured}: {printable(cluster.measured.source)}")
    if idle := cluster.devices - report.devices_used:
        words.append(f"{plural(idle, 'device')} of {cluster.devices} left idle")
    ways = {"recomputed": "with what is recomputed", "tokens": "by 6 N a token"}
    flops, tflops = report.flops, report.tflops
    counted = [
        f"{tflops[name]:.4g} {way}"
        for name, way in ways.items()
        if name in flops and flops[name] != flops["model"]
    ]
    if counted:
        words.append(f"TFLOP/s a device count every product once; {', '.join(counted)}")
    return words


def recomputation(report: HybridReport) -> str:
    """The recomputed layers by kind: ``recomputed: 4 full, 16 selective, of 80 layers``."""
    counted = ", ".join(f"{count} {mode}" for mode, count in report.redone.items())
    counted = f"{counted}," if counted else "none"
    return f"recomputed: {counted} of {plural(len(report.model), 'layer')}"


def redone_layers(stage: HybridStageReport) -> str:
    """The recomputed layers of a stage by kind: ``4 full 16 sel.``."""
    short = {"selective": "sel."}
    return " ".join(f"{count} {short.get(mode, mode)}" for mode, count in stage.redone.items())


def _span(first: int, last: int) -> str:
    """Numbers from one to another, both ends included: ``8–15``."""
    return f"{first}–{last}" if last > first else f"{last}"


def _layer_ranges(stage: HybridStageReport) -> str:
    """The layers of a stage, both ends included; of many chunks their number and the span."""
    ranges = [(first, end - 1) for first, end in stage.layers if end > first]
    if len(ranges) > 2:
        return f"{len(ranges)} in {_span(ranges[0][0], ranges[-1][1])}"
    return ", ".join(_span(*ends) for ends in ranges) or "none"


def _seconds(report: HybridReport) -> list[str]:
    """A line for each part of a step, with a bar."""
    parts = {name: x for name, x in report.seconds.items() if x > 0}
    total = sum(parts.values())
    return [
        f"{PARTS[name]:<16}{duration(x):>9}{x / total:>7.1%}  {'█' * round(_BAR * x / total)}"
        for name, x in parts.items()
    ]


def _table(report: HybridReport, color: bool) -> list[str]:
    """A row for each stage; equal neighbors share one."""
    limit = report.memory_limit_bytes
    short = [name if len(name) < 8 else f"{name[:5]}." for name in MEMORY_PARTS]
    units = ["ms", "ms", f"of {limit / 1e9:.1f}", *["GB"] * len(short), ""]
    rows, firsts = [[*_COLUMNS, *short, ""], [*[""] * 7, *units]], []
    for (count, figures), run in groupby(enumerate(report.stages), key=lambda x: _figures(x[1])):
        (first, stage), *others = run
        last, end = others[-1] if others else (first, stage)
        layers = f"{count} each" if others else _layer_ranges(stage)
        devices = _span(stage.device_first, end.device_end - 1)
        full = "!" if stage.memory["total"] > limit else ""
        rows.append([_span(first, last), devices, layers, *figures, full])
        firsts.append(first)
    head, second, *lines = columns(rows, 4)
    painted = (paint(x[:5], k, color) + x[5:] for k, x in zip(firsts, lines, strict=True))
    return [head, second, *painted]


def _figures(stage: HybridStageReport) -> tuple[int, list[str]]:
    """The number of layers, and what the table shows of a stage besides its place."""
    compute = milliseconds(stage.forward + stage.backward + stage.recomputed)
    waits = milliseconds(stage.exchange + stage.sends + stage.gathers)
    held = [stage.memory[name] for name in MEMORY_PARTS]
    return sum(end - first for first, end in stage.layers), [
        redone_layers(stage) or "none", f"{stage.tp}", f"{stage.dp}", f"{stage.zero}", compute,
        waits, f"{stage.memory['total'] / 1e9:.2f}",
        *(f"{x / 1e9:.3g}" if x >= 5e5 else "·" for x in held),
    ]  # fmt: skip


_NAMES = {
    "tp": "tensor parallel ranks", "pp": "stages", "dp": "replicas",
    "micro_batch": "samples of a micro-batch", "chunks": "chunks a stage",
    "sequence_parallel": "sequence parallel", "zero": "ZeRO level", "recompute": "recomputation",
    "schedule": "order of passes",
}  # fmt: skip
_MOST_PARTS = 2


def of_plan(report: HybridReport, pattern: str | None = None) -> tuple[str, dict[str, Any]]:
    """Report what other values on each axis of a plan would cost, as text and as JSON types.

    The latter have for each axis the plan's own value (None where stages differ) and the
    alternatives: fields of ``Alternative``, null for the seconds where none fits. ``pattern`` must
    be None, as a hybrid plan decides nothing by variable; else a ParenvsError is raised.
    """
    from parenvs.tasks.hybrid.explain import alternatives

    if pattern is not None:
        raise ParenvsError("--variable is an option for plans of partitions")
    others = alternatives(report) if report.stages else []
    axes: dict[str, dict[str, Any]] = {}
    for other in others:
        fields = other._asdict()
        axis = fields.pop("axis")
        for key in ("length", "excess"):  # JSON has no infinity
            fields[key] = fields[key] if math.isfinite(fields[key]) else None
        chosen = {"axis": axis, "value": report.plan.axes[axis], "others": []}
        axes.setdefault(axis, chosen)["others"].append(fields)
    return explanation_text(report, others), {"axes": list(axes.values())}


def explanation_text(report: HybridReport, others: Sequence[Alternative]) -> str:
    """Text of at most 110 columns: the plan, and under each axis the other values of it."""
    lines = [*wrapped([title(report), SEPARATOR.join(verdict(report))]), ""]
    found = "The best uniform plan with another value on one axis:"
    lines.append(f"Why not otherwise? {found if others else 'No uniform plan fits beside it.'}")
    values = report.plan.axes
    for axis, alternatives in groupby(others, key=lambda other: other.axis):
        chosen = "different by stage" if values[axis] is None else values[axis]
        lines += ["", f"{_NAMES[axis]} ({axis.replace('_', '-')}): {chosen}"]
        lines += wrapped(map(_line, alternatives))
    return "\n".join(lines)


def _line(alternative: Alternative) -> str:
    """One value: its seconds and why it is slower, or why it does not fit."""
    start = f"  {alternative.value!s:<10}"
    if alternative.missing_bytes > 0:
        return (
            f"{start}does not fit: the smallest needs {size(alternative.missing_bytes)} more, most "
            f"of it {alternative.largest}"
        )
    start += f"{duration(alternative.length):>9} {alternative.excess:>+7.1%}"
    words = [f"{PARTS[part]} +{duration(x)}" for part, x in alternative.slower[:_MOST_PARTS]]
    words += [f"{PARTS[part]} -{duration(x)}" for part, x in alternative.faster[:_MOST_PARTS]]
    return f"{start}  {', '.join(words) or 'as fast'}"


def compared(report: HybridReport) -> dict[str, str]:
    """The columns of a plan in a table of several."""
    held = max((stage.memory["total"] for stage in report.stages), default=math.nan)
    x = report.outlook
    between = f" ({x.low:.4g} to {x.high:.4g})" if x else ""
    return {
        "step (s)": f"{report.length_seconds:.4g}{between}",
        "plan": report.plan.words,
        "GB each": f"{held / 1e9:.1f}",
        "MFU": "" if report.mfu is None else f"{report.mfu:.1%}",
    }


def near_best(near: Sequence[tuple[float, str]]) -> Table:
    """Plans that come close to the best one."""
    rows = [(f"{excess:.2%}", text) for excess, text in near]
    return empty("near the best: the best plan of each mesh", "over best", "plan", rows=rows)


def other_machines(shifts: Sequence[Shift]) -> Table:
    """How a plan fares if constants move in their plausible ranges, or under other stacks."""
    worst = max((shift.excess for shift in shifts), default=0.0)
    title = f"if the machine differs: at most {worst:.2%} over the best plan there"
    heads = ("what", "this plan", "over best", "best plan there")
    rows = [(x.what, duration(x.seconds), f"{x.excess:.2%}", x.best) for x in shifts]
    return empty(title, *heads, rows=rows)
