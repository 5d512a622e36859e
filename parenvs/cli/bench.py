"""The commands that measure: ``parenvs bench``, ``calibrate``, ``profile`` and ``run``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from parenvs.agents.names import TRAINED
from parenvs.cli import values
from parenvs.cli.options import FunctionArguments
from parenvs.errors import InfeasibleError, ParenvsError, did_you_mean, need_extra, shown
from parenvs.view.commands import Commands, of
from parenvs.view.terminal import (
    Address,
    Engine,
    Json,
    PlanFile,
    Step,
    check_range,
    note,
    say,
    say_json,
    say_progress,
    say_tables,
    say_text,
    written,
)

_Kind = Annotated[
    str,
    typer.Option(metavar="cpu|cuda", help="Kind of device.", autocompletion=values.devices),
]
_Repeats = Annotated[int, typer.Option(help="Runs of everything that count.")]
_Meet = Annotated[
    str, typer.Option(help="HOST:PORT of this machine where processes meet; 0: a free port.")
]
_Timeout = Annotated[float, typer.Option(help="Seconds in which they have to meet.")]
_HERE = "127.0.0.1:0"
BUDGET = 200_000
"""Environment steps of a run of ``bench agents``."""
BUDGETS = {"rainbow-paper": 10_000}
"""The same of an agent that updates after every turn of one environment."""
QUICK_STEPS = 1000
"""Environment steps of a run of ``bench agents --quick``."""


def add_bench(app: typer.Typer) -> None:
    """Add the commands that measure."""
    bench = Commands(
        help="Measure agents over the whole suite, its speed, and its costs beside published ones.",
    )
    bench.command()(agents)
    bench.command()(speed)
    bench.command()(hybrid)
    app.add_typer(bench, name="bench")
    app.command()(calibrate)
    app.command()(profile)
    app.command()(run)


def agents(
    agents: Annotated[
        str,
        typer.Option(help="Agents that train, with commas.", autocompletion=values.learners),
    ] = ",".join(TRAINED),
    envs: Annotated[
        str | None,
        typer.Option(
            help="Ids of environments (default: all with a known optimum).",
            show_default=False,
            autocompletion=values.envs,
        ),
    ] = None,
    instances: Annotated[
        str | None,
        typer.Option(
            help="Instances (default: those of the paper).",
            show_default=False,
            autocompletion=values.instances,
        ),
    ] = None,
    clusters: Annotated[
        str,
        typer.Option(help="Preset clusters of the pipelines.", autocompletion=values.clusters),
    ] = "A,B,C",
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0 on.")] = 5,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Environment steps of a run (default: 200000, of rainbow-paper 10000).",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    engine: Engine = "local",
    address: Address = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Small: one problem, two seeds, 1000 steps; nothing to compare."
        ),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Go on after the optimum.")] = False,
    folder: Annotated[Path, typer.Option("--out", help="Write the results to this folder.")] = Path(
        "bench"
    ),
    render_only: Annotated[
        bool, typer.Option("--render-only", help="Draw what is there, and run nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train agents on every problem: one line a run, a table, the learning curves.

    A second call runs only what is missing.
    """
    from parenvs.cli import tables

    for option, value in (("--seeds", seeds), ("--steps", steps), ("--jobs", jobs)):
        if value is not None:
            check_range(option, value, 1)
    from parenvs.agents.learning.ray_tasks import check_engine

    check_engine(engine, address)
    with need_extra("agents", "training"):
        from parenvs.agents.learning.algorithm import names as algorithms
        from parenvs.bench.agents import TrainingRun
        from parenvs.bench.problems import clusters_of, solve_problems, suites
    from parenvs.bench.agents_table import agents as measured
    from parenvs.bench.agents_table import totals
    from parenvs.shipped import PAPER, names

    known = suites()
    if quick:
        agents, envs, instances, clusters = "ppo", next(iter(known)), instances or "vgg-19", "B"
        seeds, steps = min(seeds, 2), steps or QUICK_STEPS
    shipped = names()
    chosen = _several("--agents", agents, algorithms())
    wanted = _several("--envs", envs or ",".join(known), list(known))
    graphs = _several("--instances", instances or ",".join(PAPER), shipped)
    presets = _several("--clusters", clusters, clusters_of(known))
    problems, skipped = solve_problems(wanted, graphs, presets)
    if not problems:
        raise InfeasibleError("; ".join(skipped.values()))
    runs = [
        TrainingRun(problem, agent, seed, steps or BUDGETS.get(agent, BUDGET), full)
        for seed in range(seeds)
        for problem in problems
        for agent in chosen
    ]
    command = (
        f"parenvs bench agents --agents {','.join(chosen)} --envs {','.join(wanted)} --instances "
        f"{','.join(graphs)} --clusters {','.join(presets)} --seeds {seeds}"
        f"{f' --steps {steps}' if steps else ''}{' --full' if full else ''}"
    )
    options = {"problems": problems, "skipped": skipped, "runs": runs, "agents": chosen}
    processes: Any = {"jobs": jobs, "engine": engine, "address": address}
    records = measured.run(folder, options, render_only, say=say_progress, **processes)
    measured.publish(records, folder, options, command, "")
    say_tables(tables.bench_totals(totals(problems, records, chosen)), as_json=as_json)
    if not as_json:
        files = "agents.jsonl, agents.md, agents_totals.md, curves.png"
        say(f"written to {folder}: {files}")


def speed(
    folder: Annotated[Path, typer.Option("--out", help="Write the results to this folder.")] = Path(
        "bench"
    ),
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Small: problems of a few seconds; no times to compare."),
    ] = False,
    repeats: Annotated[
        int | None,
        typer.Option(help="Runs of everything (default: 5, quick 3).", show_default=False),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds of processor of a run (default: 0.5, quick 0.01).", show_default=False
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Leave out environments but these ids, with commas; their results stay.",
            show_default=False,
            autocompletion=values.envs,
        ),
    ] = None,
) -> None:
    """Time every environment beside CartPole, single and batched, solvers, readers and the judge.

    Writes all runs, their medians as tables, and a short table. Nothing else should run meanwhile.
    """
    from parenvs.bench.speed import FULL, QUICK, TIMED, bench_speed, former, renewed

    effort = QUICK if quick else FULL
    if repeats is not None:
        check_range("--repeats", repeats, 1)
        effort = replace(effort, repeats=repeats)
    if seconds is not None:
        if not 0 < seconds <= 3600:
            raise ParenvsError(f"--seconds must be over 0 and at most 3600, not {seconds:g}")
        effort = replace(effort, seconds=seconds)
    words = {"--quick": quick, f"--repeats {repeats}": repeats, f"--seconds {seconds}": seconds}
    command = " ".join(["parenvs bench speed", *(word for word, given in words.items() if given)])
    options: dict[str, Any] = {"effort": effort}
    if only is None:
        data = bench_speed.run(folder, options, say=say_progress)
    else:
        options["only"], content = _several("--only", only, TIMED), former(folder, effort)
        data = renewed(content, bench_speed.run(folder, options, say=say_progress))
    bench_speed.publish(data, folder, options, command)
    say_text((folder / "bench_speed_summary.md").read_text(encoding="utf-8"))
    files = "bench_speed.json, bench_speed.md, bench_speed_summary.md"
    say(f"written to {folder}: {files}")


def hybrid(
    rows: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of published rows (default: the shipped ones).", show_default=False
        ),
    ] = None,
    steps: Annotated[
        list[Path] | None,
        typer.Option(
            "--measured",
            help="JSON file of measured steps, judged beside the shipped ones; may be repeated.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="rows|steps",
            help="Leave out the other half.",
            show_default=False,
            autocompletion=of("rows", "steps"),
        ),
    ] = None,
    leave_out: Annotated[
        bool,
        typer.Option("--leave-out", help="Judge every source by constants fitted without it, too."),
    ] = False,
    search: Annotated[
        bool,
        typer.Option(
            "--search", help="Name measured steps that beat the best plan by their stack (minutes)."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every row.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Write hybrid.md and hybrid.json to this folder.", show_default=False
        ),
    ] = None,
) -> None:
    """Hold the costs of hybrid plans against published rows and measured steps.

    One line a table: number of figures, mean absolute error, worst, rank correlation, and what
    other tools are recorded to predict for the same rows.
    """
    from parenvs.bench.hybrid.page import hybrid as measured

    if only not in (None, "rows", "steps"):
        raise ParenvsError(f"--only must be rows or steps, not {only!r}")
    options: dict[str, Any] = {"rows": rows, "steps": steps or [], "only": only}
    options |= {"leave_out": leave_out, "search": search}
    words = [f"--rows {rows}"] * (rows is not None) + [f"--measured {x}" for x in steps or ()]
    words += (
        [f"--only {only}"] * (only is not None)
        + ["--leave-out"] * leave_out
        + ["--search"] * search
    )
    command = " ".join(["parenvs bench hybrid", *words])
    data = measured.run(Path(), options)
    if folder is None:
        text = measured.shown(data, Path(), options, command, "")["hybrid"]
    else:
        text = measured.publish(data, folder, options, command, "")
    content = measured.content(data, command, measured.commits(data), options)
    say_text(json.dumps(content, indent=1) if as_json else text)
    if folder is not None and not as_json:
        say(f"written to {folder}: hybrid.md, hybrid.json")


def _several(option: str, text: str, known: Sequence[str]) -> list[str]:
    """The names in a list with commas, each once.

    Raises:
        ParenvsError: a name is not among the ``known`` ones, or there is no name.
    """
    names = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for word in names:
        if word not in known:
            raise ParenvsError(
                f"{option}: unknown {word!r}{did_you_mean(word, known)}; known: {', '.join(known)}"
            )
    if not names:
        raise ParenvsError(f"{option}: name at least one of {', '.join(known)}")
    return names


def calibrate(
    path: Annotated[
        Path, typer.Option("--out", help="Write the cluster to this .json file.")
    ] = Path("machine.json"),
    framework: Annotated[
        str,
        typer.Option(
            metavar="torch|jax",
            help="Framework that measures.",
            autocompletion=of(*values.RUNNERS),
        ),
    ] = "torch",
    device: _Kind = "cpu",
    processes: Annotated[
        int,
        typer.Option(help="Processes here (of JAX: devices), each with a GPU or some cores."),
    ] = 2,
    repeats: _Repeats = 20,
    largest: Annotated[
        float, typer.Option(help="Largest array of collectives in MB, from 0.004.")
    ] = 67.2,
    meet: _Meet = _HERE,
    timeout: _Timeout = 60.0,
    as_json: Json = False,
) -> None:
    """Measure this machine with PyTorch or JAX: products, memory, collectives; write a cluster.

    Every command takes the file as --cluster.
    """
    from parenvs.cli import tables
    from parenvs.clock.calibration import SIZES, calibrated

    _check_framework(framework)
    check_range("--repeats", repeats, 1)
    check_range("--processes", processes, 1)
    _check_ending(path, ".json")
    sizes = [size for size in SIZES if size <= 1e6 * largest]
    if len(sizes) < 2:
        raise ParenvsError(
            f"--largest must be at least 0.0041 MB, not {largest:g}; two sizes are needed"
        )
    _check_timeout(timeout)
    with Step(f"measuring {processes} x {device}"):
        if framework == "jax":
            from parenvs.clock.xla.calibration import calibrated as measured

            calibration = measured(device, processes, repeats, sizes)
        else:
            calibration = calibrated(device, processes, repeats, sizes, meet=meet, seconds=timeout)
    words = f"written to {path}; give it as --cluster {path}"
    with written(lambda: calibration.save(path), words, quiet=as_json):
        say_tables(tables.calibration(calibration.rows), as_json=as_json)
        for words in calibration.missing:
            note(f"not measured: {words}")


def profile(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A PyTorch module or JAX function: FILE.py:NAME.")
    ],
    arguments: FunctionArguments = None,
    path: Annotated[Path, typer.Option("--out", help="Write the chain to this .csv file.")] = Path(
        "chain.csv"
    ),
    device: _Kind = "cpu",
    repeats: _Repeats = 20,
    warm_up: Annotated[int, typer.Option(help="Runs before those.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of PyTorch on a CPU.")] = 1,
    processes: Annotated[
        int, typer.Option(help="Processes of PyTorch that measure at once, as stages will run.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Measure the layers of a model; write the chain that pipelines are planned on.

    Layers are a PyTorch module's submodules, or the named scopes of a JAX function.
    """
    from parenvs.cli import tables
    from parenvs.graph.python_source import is_torch
    from parenvs.graph.sources import is_function

    for option, value, minimum in (("--repeats", repeats, 1), ("--warm-up", warm_up, 0),
                                 ("--threads", threads, 1),
                                 ("--processes", processes, 1)):  # fmt: skip
        check_range(option, value, minimum)
    _check_ending(path, ".csv")
    if not is_function(model):
        raise ParenvsError(
            f"profile takes a PyTorch module or a JAX function, FILE.py:NAME, not {shown(model)}"
        )
    given = (model, arguments, path.stem, repeats, warm_up, device)
    with Step(f"measuring {model}"):
        if is_torch(model):
            with need_extra("torch", "profiling"):
                from parenvs.clock.layers import profiled
            measured_profile = profiled(*given, threads, processes)
        else:
            from parenvs.clock.xla.profile import profiled as scopes

            measured_profile = scopes(*given)
    head = [f"parenvs profile {model} on {device}", *measured_profile.comments()]
    with written(
        lambda: measured_profile.profile.to_csv(path, head),
        f"written to {path}; plan it with --micro-batch {measured_profile.samples}",
        quiet=as_json,
    ):
        say_tables(tables.layers(measured_profile), as_json=as_json)


def run(
    file: PlanFile,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The model that it is for: FILE.py:NAME.")
    ],
    arguments: FunctionArguments = None,
    repeats: Annotated[int, typer.Option(help="Runs of everything that count: timed steps.")] = 20,
    processes: Annotated[
        int | None, typer.Option(help="Processes, or devices of JAX (default: the plan's).")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="File of parenvs calibrate, to predict seconds by.")
    ] = None,
    device: _Kind = "cpu",
    loss: Annotated[
        str | None,
        typer.Option(help="Output of a JAX step that is the loss, where several may be: 1/loss."),
    ] = None,
    meet: _Meet = _HERE,
    timeout: _Timeout = 60.0,
    as_json: Json = False,
) -> None:
    """Run a plan here, in local processes of PyTorch or on virtual devices of JAX, and compare.

    Losses and state beside one device; collectives, memory and seconds beside what is predicted.
    Exit status 2 if they are not those of one device, or anything is not finite.
    """
    from parenvs.clock.runs.run import run as running
    from parenvs.graph.sources import is_function

    check_range("--repeats", repeats, 1)
    if processes is not None:
        check_range("--processes", processes, 1)
    _check_timeout(timeout)
    if not is_function(model):
        raise ParenvsError(f"run takes a model FILE.py:NAME, not {shown(model)}")
    with Step(f"running {file}"):
        outcome = running(
            file, model, arguments, repeats, processes, calibration, device, meet, timeout, loss
        )
    if as_json:
        say_json(outcome.to_json())
    else:
        say_text(outcome.text())
    if not outcome.agrees:
        raise ParenvsError(f"{file}: {'; '.join(outcome.faults)}")


def _check_framework(name: str) -> None:
    """Refuse an unknown framework."""
    known = ("torch", "jax")
    if name not in known:
        raise ParenvsError(
            f"--framework {shown(name)} is unknown{did_you_mean(name, known)}; known: "
            f"{', '.join(known)}"
        )


def _check_timeout(seconds: float) -> None:
    """Refuse a limit that means nothing."""
    if not 0 < seconds <= 3600:
        raise ParenvsError(f"--timeout must be more than 0 and at most 3600, not {seconds:g}")


def _check_ending(path: Path, ending: str) -> None:
    """Refuse a file that commands would not take for what it is.

    Raises:
        ParenvsError: it ends otherwise.
    """
    if path.suffix != ending:
        raise ParenvsError(f"--out must end in {ending}, not {shown(str(path))}")
