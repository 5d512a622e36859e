"""What the command line says of hybrid plans: near-best plans, machines that differ, the map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.cli.report import out, say
from parenvs.errors import ParenvsError
from parenvs.view.words import duration

if TYPE_CHECKING:
    from rich.table import Table

    from parenvs.agents.hybrid.planners import HybridRequest

_PANEL = "Hybrid plans"
Stack = Annotated[
    str | None,
    typer.Option(
        help="Software that trains: megatron-2022, llama-2024, ...", rich_help_panel=_PANEL
    ),
]
TensorRanks = Annotated[
    int | None, typer.Option("--tp", help="Ranks that share matrices.", rich_help_panel=_PANEL)
]
Replicas = Annotated[int | None, typer.Option("--dp", help="Replicas.", rich_help_panel=_PANEL)]
Chunks = Annotated[
    int | None, typer.Option(help="Chunks a stage (interleaving).", rich_help_panel=_PANEL)
]
Context = Annotated[
    int | None, typer.Option(help="Ranks that share a sample's tokens.", rich_help_panel=_PANEL)
]
Expert = Annotated[
    int | None, typer.Option(help="Replicas that share experts.", rich_help_panel=_PANEL)
]
Zero = Annotated[
    str | None, typer.Option(help="ZeRO levels allowed: 0,1,2,3.", rich_help_panel=_PANEL)
]
MostMicroBatch = Annotated[
    int | None, typer.Option(help="Most samples of a micro-batch.", rich_help_panel=_PANEL)
]
PinnedLayers = Annotated[
    list[str] | None,
    typer.Option(
        "--pin", help="FIRST-LAST[:DEVICES]: layers that are a stage; again.",
        rich_help_panel=_PANEL,
    ),
]  # fmt: skip
Idle = Annotated[
    bool, typer.Option("--idle", help="Plans may leave devices free.", rich_help_panel=_PANEL)
]
ObjectiveName = Annotated[
    str | None, typer.Option("--objective", help="seconds, tokens, money.", rich_help_panel=_PANEL)
]
Price = Annotated[
    float | None, typer.Option(help="Of a device-hour, for money.", rich_help_panel=_PANEL)
]
Map = Annotated[
    Path | None,
    typer.Option("--map", help="Draw all uniform plans (.png, ...).", rich_help_panel=_PANEL),
]


def samples_of(batch: list[str] | None) -> int | None:
    """Return the samples of a step that ``--batch`` gives for a hybrid plan.

    Raises:
        ParenvsError: it is not given once, as a whole number from 1.
    """
    if batch is None:
        return None
    if len(batch) != 1 or not batch[0].isdecimal() or int(batch[0]) < 1:
        raise ParenvsError(
            f"--batch of a hybrid plan is the samples of a step, a whole number, not {batch[0]!r}"
        )
    return int(batch[0])


def constraints_of(**given: Any) -> dict[str, Any]:
    """Return the constraints that a command line gives, as ``Constraints`` takes them.

    Raises:
        ParenvsError: a list does not parse.
    """
    content = dict(given)
    if "zero" in content:
        levels = content["zero"].split(",")
        if not all(level.strip() in ("0", "1", "2", "3") for level in levels):
            raise ParenvsError(f"--zero must be some of 0,1,2,3, not {content['zero']!r}")
        content["zero"] = tuple(int(level) for level in levels)
    if "recompute" in content:
        content["recompute"] = tuple(x.strip() for x in content["recompute"].split(","))
    if "pinned" in content:
        content["pinned"] = tuple(_pinned(text) for text in content["pinned"])
    return content


def _pinned(text: str) -> tuple[int, int, int | None]:
    """Return first layer, end and devices of ``FIRST-LAST[:DEVICES]``."""
    layers, colon, devices = text.partition(":")
    first, dash, last = layers.partition("-")
    numbers = [first, last] + ([devices] if colon else [])
    if not dash or not all(number.isdecimal() for number in numbers) or int(last) < int(first):
        raise ParenvsError(f"--pin {text!r} does not parse; write it like 0-9 or 0-9:8")
    return int(first), int(last) + 1, int(devices) if colon else None


def print_alternatives(request: HybridRequest, report: Any) -> None:
    """Print plans that come close to the best one, and how a plan fares on other machines."""
    from parenvs.tasks.hybrid.space.objectives import near_best, robustness

    near = near_best(request.space, most=6, objective=request.goal)
    if len(near) > 1:
        out.print(_near_table(near))
    out.print(_shift_table(robustness(request.problem, report.plan, request.constraints)))


def write_map(request: HybridRequest, report: Any, path: Path | None, quiet: bool = False) -> None:
    """Draw the map of all uniform plans, with the plan of ``report`` marked, if asked for."""
    if path is None:
        return
    from parenvs.tasks.hybrid.view import plans_map
    from parenvs.view.page import write

    held = max(stage.memory["total"] for stage in report.stages)
    write(path, lambda: plans_map.draw(request.space, report.length_seconds, held))
    if not quiet:
        say(f"map written to {path}")


def comparison(rows: Any) -> Table:
    """Several hybrid plans of one problem side by side."""
    from parenvs.cli.tables import empty

    report = rows[0][1]
    head = f"{report.model.name} on {report.cluster}, {report.machine.stack.name}"
    found = empty(
        head, "agent", "step (s)", "over best", "plan", "GB each", "MFU", "proof", "found (s)"
    )
    best = min((r.length_seconds for _, r in rows if r.legal), default=float("nan"))
    for answer, report in rows:
        over = f"{100 * (report.length_seconds / best - 1):.2f} %" if report.legal else "illegal"
        held = max((stage.memory["total"] for stage in report.stages), default=float("nan"))
        found.add_row(
            answer.method, f"{report.length_seconds:.4g}", over, degrees(report),
            f"{held / 1e9:.1f}", "" if report.mfu is None else f"{report.mfu:.1%}", answer.claim,
            f"{answer.seconds:.2f}",
        )  # fmt: skip
    return found


def degrees(report: Any) -> str:
    """A plan in a few letters: ``pp 4 dp 8 tp 4 v 5 mb 1 z1``."""
    from parenvs.tasks.hybrid.space.explain import axes_of

    own = axes_of(report.plan)
    words = [f"{name} {'*' if own[name] is None else own[name]}" for name in ("pp", "dp", "tp")]
    words += [f"v {own['chunks']}"] if own["chunks"] > 1 else []
    words.append(f"mb {own['micro_batch']}")
    words += ["sp"] if own["sequence_parallel"] else []
    words += [f"z{own['zero']}"] if own["zero"] else []
    short = {"none": "", "selective": "sel", "full": "full", None: "rc *"}
    return " ".join([*words, short[own["recompute"]]]).strip()


def _near_table(near: Any) -> Table:
    from parenvs.cli.tables import empty

    found = empty("near the best: the best plan of each mesh", "over best", "plan")
    for row in near:
        found.add_row(f"{row.excess:.2%}", row.text)
    return found


def _shift_table(shifts: Any) -> Table:
    from parenvs.cli.tables import empty

    found = empty("if the machine differs", "what", "this plan", "over best", "best plan there")
    for shift in shifts:
        found.add_row(shift.what, duration(shift.seconds), f"{shift.excess:.2%}", shift.best)
    return found
