"""Pictures of judged plans: the chain with its cuts, memory, and the simulated schedule.

Matplotlib is imported when a picture is asked for, and pyplot never: figures are plain objects with
an Agg canvas, so no display is needed and no global state is left changed.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.errors import ParenvsError
from parenvs.files import replacing
from parenvs.viewer_chain import (
    draw_chain,
    draw_cut_labels,
    draw_memory,
    draw_parameters,
    draw_strip,
)
from parenvs.viewer_page import DPI, HEIGHT, INK, LEFT, MEMORY, RED, RIGHT, WIDTH, Page, style
from parenvs.viewer_schedule import draw_schedule
from parenvs.viewer_text import printable, short_name, text, title, verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from parenvs.judge import Report
    from parenvs.pipeline import Pipeline

__all__ = ["ending", "figure", "rgb_array", "save", "text"]

METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


def figure(pipeline: Pipeline, report: Report | None) -> Figure:
    """A picture of a plan.

    Above, the chain: its width is the share of compute seconds, the curve is the bytes that a cut
    would send, the bands are the stages; beside it, memory per device against the limit. Below, the
    simulated 1F1B schedule with both lengths. Without a plan, or with a malformed one, the chain
    and its parameters.

    Args:
        pipeline: the problem.
        report: what the judge says of the plan, or None.
    """
    with style():
        return _draw(pipeline, report)


def rgb_array(pipeline: Pipeline, report: Report | None) -> np.ndarray:
    """The picture as a new array of shape (800, 1280, 3), uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with style():
        canvas = FigureCanvasAgg(_draw(pipeline, report))
        canvas.draw()
        return np.array(canvas.buffer_rgba())[..., :3].copy()


def save(path: str | os.PathLike[str], pipeline: Pipeline, report: Report | None) -> None:
    """Write the picture; equal plans give equal bytes, and a failure leaves the old file.

    Args:
        path: ends in ``.png``, ``.svg`` or ``.pdf``.
        pipeline: the problem.
        report: what the judge says of the plan, or None.

    Raises:
        ParenvsError: another ending.
    """
    suffix = ending(path)
    with style(), replacing(path) as stream:
        _draw(pipeline, report).savefig(
            stream, format=suffix[1:], dpi=1.5 * DPI, metadata=METADATA[suffix]
        )


def ending(path: str | os.PathLike[str]) -> str:
    """``".png"``, ``".svg"`` or ``".pdf"``.

    Raises:
        ParenvsError: another ending.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in METADATA:
        raise ParenvsError(f"{os.fspath(path)}: a picture ends in {', '.join(METADATA)}")
    return suffix


def _draw(pipeline: Pipeline, report: Report | None) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    page = Page(Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, facecolor="white"))
    FigureCanvasAgg(page.figure)
    top = _heading(page, pipeline, report)
    stages = report.stages if report is not None else ()
    width = WIDTH - LEFT - RIGHT
    if report is None or not stages:
        names = [str(x) for x in pipeline.profile.names]
        share = pipeline.seconds_sum[1:] / pipeline.seconds_sum[-1]
        places = [int(np.searchsorted(share, x)) for x in (0.0, 0.2, 0.4, 0.6, 0.8)]
        marks = [(float(share[p]) * 100, short_name(names[p])) for p in places]
        top = draw_cut_labels(page, top, width, marks)
        half = (HEIGHT - top - 1.25) / 2
        draw_chain(page, top, width, half, pipeline, stages, [x for x, _ in marks])
        draw_parameters(page, top + half + 0.55, width, half, pipeline)
        return page.figure
    width -= MEMORY + 0.45
    share = pipeline.seconds_sum / pipeline.seconds_sum[-1] * 100
    marks = [(float(share[s.end]), f"after {short_name(s.last_name)}") for s in stages[:-1]]
    top = draw_cut_labels(page, top, width, marks)
    draw_strip(page, top, width, share, stages, report.memory_limit_bytes)
    top += 0.42
    height = max(0.26 * (HEIGHT - top), 0.9)
    draw_chain(page, top, width, height, pipeline, stages, [])
    draw_memory(page, top, height, report)
    top += height + 1.05
    draw_schedule(page, top, HEIGHT - top - 0.5, report)
    return page.figure


def _heading(page: Page, pipeline: Pipeline, report: Report | None) -> float:
    """Title, verdict and reasons; returns where the rest may begin, inches from the top."""
    legal = report is None or report.legal
    page.text(0.3, 0.22, title(pipeline, report), size=14, weight="bold", color=INK)
    page.text(0.3, 0.56, verdict(pipeline, report), size=11, color=INK if legal else RED)
    top = 0.92
    lines = [
        line
        for reason in (report.reasons if report is not None else ())
        for line in textwrap.wrap(printable(reason), 150, subsequent_indent="   ")
    ]
    if len(lines) > 6:
        lines[5:] = [f"and {len(lines) - 5} lines more"]
    for line in lines:
        page.text(0.3, top, line, size=9, color=RED)
        top += 0.2
    return top + 0.12
