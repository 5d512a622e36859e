"""The commands ``parenvs iopddl add|list|show|judge|export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parenvs.core.task import PRESETS
from parenvs.errors import ParenvsError
from parenvs.view import terminal
from parenvs.view.commands import Commands, of

Problem = Annotated[
    str, typer.Argument(metavar="FILE", help="A problem's .json or .json.gz, or an added name.")
]


def add(app: typer.Typer) -> None:
    """Add the commands on problems of the contest's format."""
    group = Commands(
        help="Intra-operator parallelism: problems in the format of the ASPLOS 2025 contest."
    )
    for command, name, line in (
        (add_files, "add", "add asplos-2025-iopddl-A.json.gz"),
        (list_, "list", "list"),
        (show, "show", "show problem.json"),
        (judge, "judge", "judge strategies.json problem.json"),
        (export, "export", "export t5-base --cluster 1x8:v100 --out problem.json"),
    ):
        group.command(name, epilog=terminal.example(f"iopddl {line}"))(command)
    app.add_typer(group, name="iopddl")


def add_files(files: Annotated[list[Path], typer.Argument(metavar="FILE...")]) -> None:
    """Check files of problems and keep copies, so that their names are enough."""
    from parenvs.tasks.sharding import files as sharding_files

    for path in files:
        problem, copy, same = sharding_files.add(path)
        check = "the contest's file by its SHA-256" if same else "its SHA-256 is not listed"
        terminal.say(
            f"{problem.name}: {len(problem):,} nodes, {len(problem.ends):,} edges; {check}; {copy}"
        )


def list_(as_json: terminal.Json = False) -> None:
    """List the added problems, with what is known of the contest's."""
    from parenvs.tasks.sharding import files
    from parenvs.view import tables

    columns = ("name", "model", "limit (s)", "best of the contest", "best known", "bound known")
    table = tables.empty("added IOPDDL problems", *columns)
    for name in files.added():
        record = files.contest_record(name)
        row = [f"{x:,}" if isinstance(x, int) else x for x in record] if record else [""] * 5
        table.add_row(name, *row)
    terminal.say_tables(table, as_json=as_json, folder=str(files.folder()))
    if not as_json:
        terminal.say(f"folder: {files.folder()}")


def show(target: Problem, as_json: terminal.Json = False) -> None:
    """Show a problem's sizes, and those that the exact reduction leaves."""
    from parenvs.tasks.sharding import files
    from parenvs.tasks.sharding.problem import reduce
    from parenvs.view import tables

    problem = files.find(target)
    with terminal.Step("reducing"):
        core = reduce(problem)
    title = f"{problem.name}: at most {problem.limit:,} in use at any time"
    columns = ("", "nodes", "edges", "strategies", "costs of edges")
    table = tables.empty(title, *columns)
    for name, part in (("whole", problem), ("reduced", core)):
        counts = len(part), len(part.ends), len(part.costs), len(part.edge_costs)
        table.add_row(name, *(f"{count:,}" for count in counts))
    terminal.say_tables(table, as_json=as_json, fingerprint=problem.fingerprint)


def judge(
    plan: Annotated[
        Path, typer.Argument(metavar="LIST", help="A list of strategies (.json), or a plan file.")
    ],
    target: Problem,
    as_json: terminal.Json = False,
) -> None:
    """Judge an answer in exact integers, as the contest does. Exit status 2 if it is illegal."""
    from parenvs.tasks.sharding import files

    problem = files.find(target)
    report = problem.report(files.load_strategies(plan, problem))
    if as_json:
        terminal.say_json(report.to_json())
    else:
        terminal.print_report(report)
    terminal.refuse_illegal(report, f"{plan}: illegal")


def export(
    instance: Annotated[str, typer.Argument(help="A graph: a shipped name, or a file.")],
    path: Annotated[
        Path, typer.Option("--out", help="Write the problem to this .json or .json.gz file.")
    ],
    cluster: Annotated[
        str, typer.Option(help="Cluster of its devices.", autocompletion=of(*PRESETS))
    ] = "A",
    answer: Annotated[
        Path | None,
        typer.Option(help="A plan of such a file: write the partition that it means instead."),
    ] = None,
) -> None:
    """Write the memory-limited partitioning of a graph as a problem of the contest's format.

    Costs are nanoseconds of a step, usages bytes of a device. With --answer a solution of the
    problem is read back and written as a partition plan.
    """
    from parenvs.tasks.partition.problem import load_partitioning
    from parenvs.tasks.sharding.files import Exchange, load_strategies, save_iopddl

    suffixes = (".json",) if answer else (".json", ".json.gz")
    if not path.name.endswith(suffixes):
        raise ParenvsError(f"--out must end with {' or '.join(suffixes)}, not {path}")
    partitioning = load_partitioning(instance, cluster, reward="step_time")
    exchange = Exchange.of(partitioning)
    if answer is None:
        save_iopddl(exchange.problem, path)
        nodes, edges = len(exchange.problem), len(exchange.problem.ends)
        terminal.say(f"problem of {nodes:,} nodes and {edges:,} edges written to {path}")
        return
    chosen = exchange.chosen(load_strategies(answer, exchange.problem))
    plan = partitioning.plan(chosen)
    report = partitioning.report(plan)
    terminal.refuse_illegal(report, f"{answer}: illegal")
    plan.save(path)
    terminal.say(f"partition of {report.step_seconds:.6g} s a step written to {path}")
