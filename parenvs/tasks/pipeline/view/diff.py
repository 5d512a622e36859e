"""The difference of two pipeline plans in plain text."""

from __future__ import annotations

from collections.abc import Sequence

from parenvs.tasks.pipeline.diff import MAX_MOVES, Move, PipelineDiff, pivot_stage
from parenvs.tasks.pipeline.problem import Report, Stage
from parenvs.tasks.pipeline.view import text as pipeline_text
from parenvs.tasks.pipeline.view.cut_names import AFTER, cut_labels
from parenvs.view.diff_text import (
    MAX_ROWS,
    WIDTH,
    change_words,
    parts_lines,
    plans_lines,
    verdict_line,
)
from parenvs.view.words import clip, duration, milliseconds, plural


def diff_lines(diff: PipelineDiff, names: tuple[str, str]) -> list[str]:
    """The difference as lines of at most 110 columns; see ``parenvs.view.diff_text.text``."""
    a, b = diff.a, diff.b
    lines = [clip(pipeline_text.title(a.pipeline, None), WIDTH)]
    lines += plans_lines(names, (a, b), [_figures(report) for report in (a, b)])
    if diff.seconds is None:
        lines.append("a malformed plan has no length; nothing to compare but the cuts")
    else:
        others = plural(a.pipeline.micro_batches - 1, "other")
        lines += [
            verdict_line(diff.seconds, a.length_seconds),
            "",
            f"L = the first micro-batch up to the end of the pivot stage + the {others} through it "
            "+ all-reduce not hidden",
            *parts_lines("where the seconds are", diff.parts, "L"),
        ]
    lines += ["", *_moves(diff)]
    if diff.seconds is not None:
        lines += ["", *_stages(a, b)]
    return lines


def _figures(report: Report) -> list[str]:
    if not report.stages:
        return ["malformed"]
    return [
        f"L {duration(report.length_seconds)}",
        f"simulated {duration(report.simulated_seconds)}",
        f"{plural(len(report.stages), 'stage')}, pivot {pivot_stage(report)}",
    ]


def _moves(diff: PipelineDiff) -> list[str]:
    """The cuts that differ, those that cost or save most first."""
    if not diff.moves:
        return ["the plans cut the same pivots and devices"]
    head = "cuts that differ (0|1: between stages 0 and 1)"
    if diff.attributed:
        head = "what moving each cut costs (0|1: between stages 0 and 1), mean over all orders"
    elif len(diff.moves) > MAX_MOVES and len(diff.a.stages) == len(diff.b.stages):
        head += f", {len(diff.moves)}: too many to tell what each costs"
    lines, scale = [head], diff.a.length_seconds
    moves = sorted(diff.moves, key=lambda move: -abs(move.seconds or 0.0))
    for move in moves[:MAX_ROWS]:
        cost = "" if move.seconds is None else change_words(move.seconds, scale)
        border = f"{'pivots' if move.kind == 'cut' else 'devices'} {move.stage}|{move.stage + 1}"
        lines.append(f"{cost:>11}  {border:<13} {_positions(move):<26} {_names(diff, move)}")
    hidden = moves[MAX_ROWS:]
    if hidden:
        others = sum(move.seconds or 0.0 for move in hidden)
        cost = change_words(others, scale) if diff.attributed else ""
        lines.append(f"{cost:>11}  and {len(hidden)} more")
    if diff.attributed:
        lines.append(f"{change_words(diff.seconds or 0.0, scale):>11}  in all")
    return lines


def _positions(move: Move) -> str:
    if move.a is None or move.b is None:
        only, position = ("b", move.b) if move.a is None else ("a", move.a)
        return f"{position:,}, only in {only}"
    return f"{move.a:,} → {move.b:,} ({move.b - move.a:+,})"


def _names(diff: PipelineDiff, move: Move) -> str:
    """Where the cuts are."""
    if not (move.after_a or move.after_b):
        return ""
    cuts = [cut for cut, name in ((move.a, move.after_a), (move.b, move.after_b)) if name]
    labels = cut_labels(diff.a.pipeline.profile, [cut for cut in cuts if cut is not None], 25)
    if all(label.startswith(AFTER) for label in labels):
        return AFTER + " → ".join(label.removeprefix(AFTER) for label in labels)
    return " → ".join(labels)


def _stages(a: Report, b: Report) -> list[str]:
    """Every stage in both plans; where there are many, those whose seconds change most."""
    count = max(len(a.stages), len(b.stages))
    rows = [tuple(x[k] if k < len(x) else None for x in (a.stages, b.stages)) for k in range(count)]

    def change(number: int) -> float:
        seconds = [s.forward_seconds + s.backward_seconds if s else 0.0 for s in rows[number]]
        return abs(seconds[1] - seconds[0])

    shown = sorted(sorted(range(count), key=change, reverse=True)[:MAX_ROWS])
    lines = [
        f"{'stage':<6}{'devices':<16}{'compute, ms':>19}{'transfer, ms':>19}{'all-reduce, ms':>19}"
        f"{f'memory of {a.memory_limit_bytes / 1e9:.1f} GB':>19}"
    ]
    for number in shown:
        pair = rows[number]
        cells = (
            _arrow([pipeline_text.device_range(s) if s else None for s in pair]),
            _arrow([milliseconds(s.forward_seconds + s.backward_seconds) if s else None
                    for s in pair]),
            _arrow([milliseconds(s.transfer_seconds) if s else None for s in pair]),
            _arrow([milliseconds(s.all_reduce_seconds) if s else None for s in pair]),
            _arrow([_gigabytes(s, report) if s else None
                    for s, report in zip(pair, (a, b), strict=True)]),
        )  # fmt: skip
        devices, compute, transfer, reduce, memory = cells
        lines.append(f"{number:<6}{devices:<16}{compute:>19}{transfer:>19}{reduce:>19}{memory:>19}")
    if count > len(shown):
        lines.append(f"and {count - len(shown)} more")
    return lines


def _gigabytes(stage: Stage, report: Report) -> str:
    over = stage.memory_bytes > report.memory_limit_bytes
    return f"{stage.memory_bytes / 1e9:.2f}{'!' if over else ''}"


def _arrow(pair: Sequence[str | None]) -> str:
    """``0–7 → 0–8``; once where both are equal; a dash where a plan has no such stage."""
    first, second = (word if word is not None else "-" for word in pair)
    return first if first == second else f"{first} → {second}"
