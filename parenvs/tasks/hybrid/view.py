"""Hybrid plans in plain text: verdict, seconds by part, table of stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from parenvs.diff import Part
from parenvs.errors import ParenvsError, printable
from parenvs.tasks.hybrid.explain import HybridDiff
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.view.diff_text import parts_lines, plans_lines, verdict_line
from parenvs.view.tables import empty
from parenvs.view.words import (
    SEPARATOR,
    clip,
    duration,
    milliseconds,
    paint,
    plural,
    reason_lines,
    size,
)

if TYPE_CHECKING:
    from rich.table import Table

    from parenvs.core.plan import Answer
    from parenvs.tasks.hybrid.explain import Alternative, Shift
    from parenvs.tasks.hybrid.problem import Hybrid
    from parenvs.tasks.hybrid.report import HybridStageReport
    from parenvs.tasks.hybrid.space import NearBest

WIDTH = 110
"""Columns of the text."""
_BAR = 72  # columns of the bar of seconds
PARTS = {
    "forward": "forward",
    "backward": "backward",
    "recomputed": "recomputed",
    "exchange": "tensor exchange",
    "sends": "sends",
    "gathers": "gathers",
    "bubble": "bubble",
    "gradients": "gradients",
    "tied": "tied weights",
    "optimizer": "optimizer",
    "host": "host",
}
"""Part of a step's seconds -> its name."""
MEMORY_PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "working": "working",
}
"""Part of a device's bytes -> its name."""
_FILLS = "█▓▒░▚▞·╱╳▪▫"


def text(report: HybridReport | Hybrid, colour: bool = False) -> str:
    """A judged plan, or a problem without one, as text of at most 110 columns.

    Lines have no newline at the end: the verdict, the seconds of a step by part, and a table of the
    stages; equal neighbours share a row. ``colour`` colours stages with ANSI escapes.
    """
    lines = [clip(title(report), WIDTH), SEPARATOR.join(verdict(report))]
    if not isinstance(report, HybridReport):
        return "\n".join(lines)
    lines += reason_lines(report.reasons, WIDTH)
    if not report.stages:
        return "\n".join(lines)
    lines += [clip(words, WIDTH) for words in notes(report)]
    return "\n".join([*lines, "", *_seconds(report), "", *_table(report, colour)])


def title(report: HybridReport | Hybrid) -> str:
    """Instance, cluster, software, and the degrees of the plan where all stages share them."""
    if not isinstance(report, HybridReport):
        parts = [printable(f"{report.model.name} on {report.cluster}")]
        stack = f"{report.stack.name} {report.precision}"
        return SEPARATOR.join([*parts, f"batch {report.batch:,}", stack])
    plan, stages = report.plan, report.stages
    parts = [printable(f"{report.model.name} on {report.cluster}")]
    if stages:
        parts.append(", ".join([*layout(report), *(["offload"] if plan.offload else [])]))
        batches = plural(report.micro_batches, "micro-batch", "es")
        parts.append(f"{batches} of {plan.micro_batch}")
    return SEPARATOR.join([*parts, f"{report.machine.stack.name} {report.machine.precision}"])


def verdict(report: HybridReport | Hybrid) -> list[str]:
    """Legality, both lengths, the value and what the devices reach."""
    if not isinstance(report, HybridReport):
        best = f"at best {duration(report.bound_seconds)} a step"
        return ["no plan yet", plural(len(report.model), "layer"), best]
    if not report.stages:
        return ["illegal: malformed plan", f"value {report.value:g}"]
    simulated = report.simulated_seconds
    words = [] if report.legal else ["illegal"]
    words.append(f"L {duration(report.length_seconds)}")
    if simulated is not None:
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
    parts = [
        f"{duration(report.step_seconds)} a step",
        degrees(report),
        *([f"MFU {report.mfu:.1%}"] if report.flops else []),
        f"{held:.4g} of {report.memory_limit_bytes / 1e9:.4g} GB",
    ]
    return SEPARATOR.join(parts)


def layout(report: HybridReport) -> list[str]:
    """Stages and degrees as a product, and ZeRO where there is any."""
    plan, stages = report.plan, report.stages
    words = [plural(len(stages), "stage")]
    for name in ("dp", "tp"):
        values = {getattr(stage, name) for stage in stages}
        words.append(f"{name} {values.pop() if len(values) == 1 else 'mixed'}")
    given = (
        ("cp", plan.context),
        ("ep", plan.expert),
        ("chunks", plan.chunks),
        ("shard", plan.shard),
    )
    words += [f"{name} {value}" for name, value in given if value > 1]
    levels = sorted({stage.zero for stage in stages})
    zero = [f"ZeRO {'/'.join(map(str, levels))}"] if any(levels) else []
    return [" x ".join(words), *zero]


def degrees(report: HybridReport) -> str:
    """Stages, degrees, ZeRO, what is recomputed, and the samples of a micro-batch."""
    plan = report.plan
    modes = [mode for stage in plan.stages for mode in stage.modes]
    recomputed = [
        f"{mode} recomputation"
        + ("" if len(set(modes)) == 1 else f" of {modes.count(mode)} layers")
        for mode in ("selective", "full")
        if mode in modes
    ]
    return ", ".join([*layout(report), *recomputed, f"micro-batch {plan.micro_batch}"])


def notes(report: HybridReport) -> list[str]:
    """What is recomputed, guessed, left idle, and the TFLOP/s by the other ways of counting."""
    words = [recomputation(report)] if report.redone else []
    if report.is_guess:
        device, machine = report.cluster.device.name, report.machine
        words.append(
            f"guess: what {machine.stack.name} reaches on a {device} at {machine.precision} was "
            "never measured"
        )
    idle = report.cluster.devices - report.devices_used
    if idle:
        words.append(f"{plural(idle, 'device')} of {report.cluster.devices} left idle")
    ways = {"recomputed": "with what is recomputed", "tokens": "by 6 N a token"}
    counted = [
        f"{report.tflops[name]:.4g} {words_}"
        for name, words_ in ways.items()
        if name in report.flops and report.flops[name] != report.flops["model"]
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


def device_range(stage: HybridStageReport) -> str:
    """The devices of a stage, both ends included: ``8–15``."""
    last = stage.device_end - 1
    return f"{stage.device_first}–{last}" if last > stage.device_first else f"{last}"


def layer_ranges(stage: HybridStageReport, most: int = 3) -> str:
    """The layers of a stage, both ends included, some of them where there are many ranges."""
    ranges = [f"{a}–{b - 1}" if b > a + 1 else f"{a}" for a, b in stage.layers if b > a]
    if len(ranges) > most:
        ranges[most - 1 : -1] = ["…"]
    return ", ".join(ranges) or "none"


def _seconds(report: HybridReport) -> list[str]:
    """A bar in proportion to the parts of a step, and the parts in numbers."""
    parts = {name: x for name, x in report.seconds.items() if x > 0}
    total = sum(parts.values())
    fills = dict(zip(PARTS, _FILLS, strict=True))
    edges, passed, bar = [0], 0.0, ""
    for name, seconds in parts.items():
        passed += seconds
        edges.append(round(passed / total * _BAR))
        bar += fills[name] * (edges[-1] - edges[-2])
    lines = [f"step     {bar} {duration(total)}"]
    words = [
        f"{fills[name]} {PARTS[name]} {duration(x)} ({x / total:.1%})" for name, x in parts.items()
    ]
    line = ""
    for word in words:
        if line and len(line) + len(word) + 3 > WIDTH - 9:
            lines.append(f"{'':9}{line}")
            line = ""
        line = f"{line}   {word}" if line else word
    return [*lines, f"{'':9}{line}"]


def _table(report: HybridReport, colour: bool) -> list[str]:
    """A row for each stage; the equal ones between first and last share one."""
    limit = report.memory_limit_bytes
    redone = any(stage.redone for stage in report.stages)
    wide, narrow = (13, 6) if redone else (21, 7)
    parts = "".join(f"{words[: narrow - 1]:>{narrow}}" for words in MEMORY_PARTS.values())
    lines = [
        f"{'stage':<6}{'devices':<10}{'layers':<{wide}}"
        + f"{'redone':<10}" * redone
        + f"{'tp':>3}{'dp':>4}{'ZeRO':>5}{'compute':>9}{'waits':>8}{'memory':>9}{parts}",
        f"{'':{28 + wide + 10 * redone}}{'ms':>9}{'ms':>8}{f'of {limit / 1e9:.1f}':>9}"
        + f"{'GB':>{narrow}}" * len(MEMORY_PARTS),
    ]
    for first, last in _runs(report.stages):
        stage = report.stages[first]
        compute = stage.forward + stage.backward + stage.recomputed
        waits = stage.exchange + stage.sends + stage.gathers
        held = "".join(f"{_gigabytes(stage.memory[name]):>{narrow}}" for name in MEMORY_PARTS)
        number = f"{first}" if first == last else f"{first}–{last}"
        last_device = report.stages[last].device_end - 1
        devices = device_range(stage) if first == last else f"{stage.device_first}–{last_device}"
        layers = layer_ranges(stage) if first == last else f"{stage_layers(stage)} each"
        lines.append(
            paint(f"{number:<6}", first, colour)
            + f"{devices:<10}{clip(layers, wide - 1):<{wide}}"
            + f"{redone_layers(stage):<10}" * redone
            + f"{stage.tp:>3}{stage.dp:>4}{stage.zero:>5}"
            f"{milliseconds(compute):>9}{milliseconds(waits):>8}"
            f"{stage.memory['total'] / 1e9:>9.2f}{held}"
            f"{' !' if stage.memory['total'] > limit else ''}"
        )
    return lines


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g}" if count >= 5e5 else "·"


def stage_layers(stage: HybridStageReport) -> int:
    """Number of layers of a stage."""
    return sum(end - first for first, end in stage.layers)


def _runs(stages: tuple[HybridStageReport, ...]) -> list[tuple[int, int]]:
    """First and last of each run of stages that differ in place alone."""
    runs: list[tuple[int, int]] = []
    for number, stage in enumerate(stages):
        if runs and _figures(stage) == _figures(stages[runs[-1][0]]):
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _figures(stage: HybridStageReport) -> tuple[object, ...]:
    """What the table shows of a stage besides its place, as it shows it."""
    compute = stage.forward + stage.backward + stage.recomputed
    waits = stage.exchange + stage.sends + stage.gathers
    held = tuple(f"{stage.memory[name]:.3g}" for name in MEMORY_PARTS)
    degrees = (stage.tp, stage.dp, stage.zero, stage_layers(stage), redone_layers(stage))
    return (*degrees, milliseconds(compute), milliseconds(waits), held)


def diff_lines(diff: HybridDiff, names: tuple[str, str]) -> list[str]:
    """The difference as lines of at most 110 columns; see ``parenvs.view.diff_text.text``."""
    a, b = diff.a, diff.b
    lines = [clip(f"{a.model.name} on {a.cluster}, batch {a.batch:,}", WIDTH)]
    lines += plans_lines(names, (a, b), [_diff_figures(report) for report in (a, b)])
    if diff.seconds is None:
        lines.append("a malformed plan has no length; nothing to compare but what is decided")
    else:
        lines.append(verdict_line(diff.seconds, a.length_seconds))
    if not diff.changes:
        return [*lines, "the plans decide the same"]
    lines += ["", f"{plural(len(diff.changes), 'decision')} of the plans differ"]
    for change in diff.changes:
        words = " → ".join(map(_words, (change.a, change.b)))
        lines.append(clip(f"  {change.field.replace('_', ' '):<20}{words}", WIDTH))
    if diff.seconds is None:
        return lines
    lines += ["", *parts_lines("where the seconds are", _named(diff.parts, PARTS), "L")]
    memory = _named(diff.memory, MEMORY_PARTS)
    return [*lines, "", *parts_lines("bytes of the fullest stage", memory, "in all", size)]


def _named(parts: tuple[Part, ...], names: dict[str, str]) -> list[Part]:
    return [Part(names[part.name], part.a, part.b) for part in parts if part.a or part.b]


def _words(value: Any) -> str:
    """A decision in words; equal neighbours of a list as one: ``40 x 1``."""
    if isinstance(value, dict):
        return " ".join(f"{name} {count}" for name, count in value.items()) or "none"
    if not isinstance(value, (list, tuple)):
        return str(value)
    runs = [(word, len(list(run))) for word, run in groupby(map(_words, value))]
    joined = ", ".join(word if count == 1 else f"{count} x {word}" for word, count in runs)
    return joined if len(runs) == 1 else f"[{joined}]"


def _diff_figures(report: HybridReport) -> list[str]:
    if not report.stages:
        return ["malformed"]
    words = [f"L {duration(report.length_seconds)}"]
    if report.simulated_seconds is not None:
        words.append(f"simulated {duration(report.simulated_seconds)}")
    held = max(stage.memory["total"] for stage in report.stages)
    return [*words, plural(len(report.stages), "stage"), f"{size(held)} a device at most"]


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
    chosen = report.plan.axes
    axes = [
        {
            "axis": axis,
            "value": chosen[axis],
            "others": [_fields(x) for x in others if x.axis == axis],
        }
        for axis in dict.fromkeys(alternative.axis for alternative in others)
    ]
    return explanation_text(report, others), {"axes": axes}


def _fields(alternative: Alternative) -> dict[str, Any]:
    """Return the fields of an alternative but its axis; what is infinite is null."""
    fields = alternative._asdict()
    del fields["axis"]
    for key in ("length", "excess"):
        fields[key] = fields[key] if math.isfinite(fields[key]) else None
    return fields


def explanation_text(report: HybridReport, found: Sequence[Alternative]) -> str:
    """Text of at most 110 columns: the plan, and under each axis the other values of it."""
    values = report.plan.axes
    lines = [clip(title(report), WIDTH), SEPARATOR.join(verdict(report)), ""]
    lines.append("Why not otherwise? The best uniform plan with another value on one axis:")
    for axis in dict.fromkeys(alternative.axis for alternative in found):
        chosen = "different by stage" if values[axis] is None else values[axis]
        lines += ["", f"{_NAMES[axis]} ({axis.replace('_', '-')}): {chosen}"]
        lines += [clip(_line(x), WIDTH) for x in found if x.axis == axis]
    return "\n".join(lines)


def _line(alternative: Alternative) -> str:
    """One value: its seconds and why it is slower, or why it does not fit."""
    start = f"  {alternative.value!s:<10}"
    if alternative.missing_bytes > 0:
        largest = MEMORY_PARTS.get(alternative.largest, alternative.largest)
        return (
            f"{start}does not fit: the smallest needs {size(alternative.missing_bytes)} more, most "
            f"of it {largest}"
        )
    start += f"{duration(alternative.length):>9} {alternative.excess:>+7.1%}"
    words = [f"{PARTS[part]} +{duration(x)}" for part, x in alternative.slower[:_MOST_PARTS]]
    words += [f"{PARTS[part]} -{duration(x)}" for part, x in alternative.faster[:_MOST_PARTS]]
    return f"{start}  {', '.join(words) or 'as fast'}"


def comparison(answers: Sequence[Answer]) -> Table:
    """Several hybrid plans of one problem side by side."""
    reports = [answer.report for answer in answers]
    report = reports[0]
    head = f"{report.model.name} on {report.cluster}, {report.machine.stack.name}"
    table = empty(
        head, "agent", "step (s)", "over best", "plan", "GB each", "MFU", "proof", "found (s)"
    )
    best = min((r.length_seconds for r in reports if r.legal), default=float("nan"))
    for answer, report in zip(answers, reports, strict=True):
        over = f"{100 * (report.length_seconds / best - 1):.2f} %" if report.legal else "illegal"
        held = max((stage.memory["total"] for stage in report.stages), default=float("nan"))
        table.add_row(
            answer.method, f"{report.length_seconds:.4g}", over, _degrees(report),
            f"{held / 1e9:.1f}", "" if report.mfu is None else f"{report.mfu:.1%}", answer.claim,
            f"{answer.seconds:.2f}",
        )  # fmt: skip
    return table


def _degrees(report: Any) -> str:
    """A plan in a few letters: ``pp 4 dp 8 tp 4 v 5 mb 1 z1``."""
    values = report.plan.axes
    words = [
        f"{name} {'*' if values[name] is None else values[name]}" for name in ("pp", "dp", "tp")
    ]
    words += [f"v {values['chunks']}"] if values["chunks"] > 1 else []
    words.append(f"mb {values['micro_batch']}")
    words += ["sp"] if values["sequence_parallel"] else []
    words += [f"z{values['zero']}"] if values["zero"] else []
    short = {"none": "", "selective": "sel", "full": "full", None: "rc *"}
    return " ".join([*words, short[values["recompute"]]]).strip()


def near_best(near: Sequence[NearBest]) -> Table:
    """Plans that come close to the best one."""
    table = empty("near the best: the best plan of each mesh", "over best", "plan")
    for row in near:
        table.add_row(f"{row.excess:.2%}", row.text)
    return table


def other_machines(shifts: Sequence[Shift]) -> Table:
    """How a plan fares if constants move in their plausible ranges, or under other stacks."""
    worst = max((shift.excess for shift in shifts), default=0.0)
    title = f"if the machine differs: at most {worst:.2%} over the best plan there"
    table = empty(title, "what", "this plan", "over best", "best plan there")
    for shift in shifts:
        table.add_row(shift.what, duration(shift.seconds), f"{shift.excess:.2%}", shift.best)
    return table
