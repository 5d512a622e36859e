"""The commands ``parenvs train`` and ``parenvs evaluate``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from parenvs.agents.learning.options import TrainOptions
from parenvs.cli import options
from parenvs.core.registry import TASKS, environments
from parenvs.core.request import STEPS
from parenvs.core.task import ENGINES, option
from parenvs.errors import ParenvsError, need_extra
from parenvs.fields import Count, Index
from parenvs.view.terminal import Json, say, say_json, say_progress, say_tables, written

if TYPE_CHECKING:
    from parenvs.core.request import Request

DRAWN_STEPS = 100_000
"""Default environment steps of a training on drawn problems."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that its configuration does not have; the help of each says what it is."""

    panel: ClassVar[str] = "training"

    num_envs: Count | None = option(
        None, "Environments that are played at once (default: the agent's)."
    )
    env: list[str] | None = option(
        None, "Argument of the environment, NAME=VALUE like paper=true; may be repeated.", kind=list
    )
    engine: str | None = option(
        None,
        "Engine that starts the processes (default: ray where it is installed).",
        values=ENGINES,
    )
    address: str | None = option(
        None, "HOST:PORT of a cluster of Ray, or auto (default: Ray on this machine).", main=True
    )
    steps: Count | None = option(
        None,
        f"Environment steps (default: {STEPS:,}, {DRAWN_STEPS:,} on generated problems).",
        main=True,
    )
    out: Path | None = option(None, "Write the run to this folder (default: runs/...).", main=True)
    resume: bool = option(False, "Continue the run in the folder; --out alone will do.", main=True)
    until_optimal: bool = option(False, "Stop once the proven optimum is reached.")


@options.with_flags("options", "search", TrainOptions, RunOptions)
def train(
    given: options.Given,
    instance: Annotated[
        str | None,
        typer.Argument(
            help="What plan takes, a set, a tier, a task (its problems are generated), or the id "
            "of any Gymnasium environment with discrete actions.",
            autocompletion=options.trainable,
        ),
    ] = None,
    task: options.TaskName = None,
    cluster: options.ClusterText = None,
    as_json: Json = False,
) -> None:
    """Train an agent on an instance or generated problems; writes checkpoints, logs, best plan."""
    choices = RunOptions(**options.values_in(RunOptions, given))
    own = typed = options.values_in(TrainOptions, given)
    given = options.without(given, RunOptions, TrainOptions)
    engine, steps, folder, resume = choices.engine, choices.steps, choices.out, choices.resume
    if engine is not None or choices.address is not None:
        from parenvs.agents.learning.ray_tasks import LOCAL, check_engine

        check_engine(engine or LOCAL, choices.address)
    settings = {} if choices.num_envs is None else {"envs": choices.num_envs}
    kept = None
    if resume and folder is not None and not given and (instance, task, cluster) == (None,) * 3:
        with need_extra("agents", "training"):
            from parenvs.agents.learning.config import load_config
        kept = load_config(folder)
        own = {**{field.name: getattr(kept, field.name) for field in fields(TrainOptions)}, **own}
        settings = {**kept.settings, **settings}
    training = TrainOptions(**own)
    if {*typed} & {"actors", "learners"}:
        with need_extra("agents", "training"):
            from parenvs.agents.learning.config import refuse_ignored
        refuse_ignored(training.distribution, typed)
    run = _Run(training, choices, settings, as_json, dict(map(_argument, choices.env or ())))
    if kept is not None and folder is not None:
        run.train(folder, kept.env_id, kept.env_kwargs, steps or kept.steps)
        return
    if instance is not None and is_environment(instance):
        if task is not None or cluster is not None or given:
            raise ParenvsError(f"{instance}: an environment by its id takes no options of a task")
        run_folder = folder or run.folder(instance.replace("/", "-"))
        run.train(run_folder, instance, {}, steps or DRAWN_STEPS)
        return
    # The name of a task alone means its generated problems.
    if instance in TASKS and task in (None, instance):
        instance, task = None, instance
    if instance is None and task is None:
        raise ParenvsError(
            f"a model is needed, or a task, which generates problems: one of {', '.join(TASKS)}; "
            "--resume needs none with --out FOLDER, and no options of a task"
        )
    if task is None:
        task = next((name for name, other in TASKS.items() if instance in other.sets), None)
    model = options.Model.of(given, instance or "", task, cluster)
    stem = Path(instance or "drawn").stem
    environment = _environment(model, instance, given)
    if environment is not None:
        run_folder = folder or run.folder(stem, model.task.name)
        run.train(run_folder, *environment, steps or DRAWN_STEPS)
    else:
        request = model.request(training.seed, steps or STEPS, choosing=False)
        _train_on_problem(run, model, request, folder or run.folder(stem, request.label))


def _train_on_problem(run: _Run, model: options.Model, request: Request, folder: Path) -> None:
    """Train on the problem of a request, up to its proven optimum if that is asked for."""
    from parenvs.files import locked

    best = request.optimum()
    with locked(folder):
        with need_extra("agents", "training"):
            from parenvs.agents.learning.config import check_free
        check_free(folder, run.choices.resume)
        request = _keep_graph(model, request, folder)
        run.train(
            folder, request.env_id, request.env_kwargs, request.steps, best, request.target(best),
            model.keeps_graph,
        )  # fmt: skip


def _argument(text: str) -> tuple[str, Any]:
    """Return the name and the value of ``NAME=VALUE``; a value that is not JSON is a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ParenvsError(f"--env {text}: expected NAME=VALUE, like paper=true")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


@dataclass(frozen=True)
class _Run:
    options: TrainOptions
    choices: RunOptions
    settings: dict[str, Any]
    as_json: bool
    arguments: dict[str, Any]

    def folder(self, *names: str) -> Path:
        return Path("runs") / "-".join([*names, self.options.agent, str(self.options.seed)])

    def train(
        self,
        folder: Path,
        env_id: str,
        env_kwargs: dict[str, Any],
        steps: int,
        best: float | None = None,
        target: float | None = None,
        kept: bool = False,
    ) -> None:
        """Train, and print the result; an interrupted training says how to go on.

        ``best`` is the optimum's return, ``target`` the least that counts as optimal, ``kept``
        whether the graph in the folder is the run's own.
        """
        from parenvs.cli import tables

        if self.arguments:
            # The known optimum is of the environment without them.
            env_kwargs, best, target = {**env_kwargs, **self.arguments}, None, None
        if self.choices.until_optimal and best is None:
            words = "which its task and its name tell, not generated problems"
            raise ParenvsError(f"--until-optimal needs one model, {words}: {env_id}")
        with need_extra("agents", "training"):
            from parenvs.agents.learning import trainer
            from parenvs.agents.learning.config import TrainConfig, check_env, claimed
        check_env(env_id, env_kwargs)
        config = TrainConfig(
            env_id=env_id, env_kwargs=env_kwargs, steps=steps, settings=self.settings,
            **vars(self.options),
        )  # fmt: skip
        # JSON alone goes to standard output.
        report = say_progress if self.as_json else say
        try:
            choices = self.choices
            result = trainer.train(
                config, folder, choices.resume, report, target, choices.until_optimal,
                choices.engine, choices.address,
            ).result  # fmt: skip
        except KeyboardInterrupt:
            if claimed(folder):
                raise KeyboardInterrupt(f"; continue with --resume --out {folder}") from None
            if kept:
                (folder / "graph.npz").unlink()
            with contextlib.suppress(OSError):  # something else is in it
                folder.rmdir()
            raise KeyboardInterrupt(" before the first checkpoint; nothing is kept") from None
        say_tables(tables.training(result, best, folder), as_json=self.as_json)


def is_environment(name: str) -> bool:
    """Return whether Gymnasium has an environment of this id, or of another version of it."""
    import gymnasium as gym

    base = name.rpartition("-v")[0]
    return name in gym.registry or any(
        base in (spec.name, f"{spec.namespace}/{spec.name}") for spec in gym.registry.values()
    )


def _environment(
    model: options.Model, instance: str | None, typed: options.Given
) -> tuple[str, dict[str, Any]] | None:
    """Return the environment of a training and its arguments; None: that of the request.

    Raises:
        ParenvsError: the task has no environment, or an option is not one of the environment.
    """
    task = model.task
    drawn = task.training(instance)
    if drawn is None:
        return None
    env_id, arguments, taken = drawn
    given = {**({} if model.cluster is None else {"cluster": model.cluster}), **model.options}
    known = options.flags_of(task)
    for flag in (*typed, *({"cluster"} & {*given})):
        if (known[flag].place[1] if flag in known else flag) not in taken:
            where = "drawn problems" if instance is None else instance
            raise ParenvsError(f"--{flag} is not an option of training on {where}")
    return env_id, {**arguments, **given}


def _keep_graph(model: options.Model, request: Request, run_folder: Path) -> Request:
    """Write the graph of a model beside its run, if its name alone would not give it.

    What evaluates the run later has nothing but its folder.

    Raises:
        ParenvsError: the folder holds a run on another graph.
    """
    from parenvs.agents.learning.config import claimed
    from parenvs.instances import load_graph

    if not model.keeps_graph:
        return request
    graph = run_folder / "graph.npz"
    # Before the first checkpoint nothing depends on an older graph.
    if not graph.exists() or not claimed(run_folder):
        model.graph().save(graph)
    elif load_graph(str(graph)).fingerprint != model.graph().fingerprint:
        raise ParenvsError(f"{run_folder}: holds a run on another graph than {model.instance}")
    return replace(request, problem=replace(request.problem, instance=str(graph)))


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of an evaluation; the help of each says what it is."""

    episodes: Count | None = option(None, "Sampled episodes (default: 100; not with --set).")
    seed: Index = option(0, "Seed of everything random.")
    set: str | None = option(None, "Play a set of problems: plan-test, ...", complete=options.sets)
    family: str | None = option(None, "With --set: problems of this family only.")
    against: list[str] | None = option(
        None, "With --set: folder of another agent's run, to compare; may be repeated.", kind=list
    )
    out: Path | None = option(None, "Write the returns on a --set to this .json file.")
    trust: bool = option(False, "Let a run on a Python function run the function's file.")


@options.with_flags(EvaluateOptions)
def evaluate(
    given: options.Given,
    folder: Annotated[
        list[Path], typer.Argument(help="Folder of a training run; with --set several seeds.")
    ],
    as_json: Json = False,
) -> None:
    """Evaluate a trained agent with masks, against the exact optimum, or on a set of problems."""
    choices = EvaluateOptions(**options.values_in(EvaluateOptions, given))
    from parenvs.cli import tables

    with need_extra("agents", "training"):
        from parenvs.agents.learning.play import one_thread
        from parenvs.agents.learning.trainer import load_config, player
    if choices.set is not None:
        if choices.episodes is not None:
            raise ParenvsError(
                "--episodes is not an option of --set, which plays each problem once"
            )
        _evaluate_set(folder, choices.set, choices, as_json)
        return
    if len(folder) > 1 or given.keys() & {"against", "family", "out"}:
        raise ParenvsError("several runs, --family, --against and --out are options of --set")
    import gymnasium as gym

    from parenvs.agents.evaluation.evaluate import evaluate as play
    from parenvs.agents.learning.config import building
    from parenvs.core.sets import validation_of

    run, trust = folder[0], choices.trust
    model, config = player(run, trust), load_config(run, trust)
    count, seed = choices.episodes or 100, choices.seed
    if model.env_id not in environments():
        with one_thread():
            returns = model.returns(config.env_id, config.env_kwargs, count, seed)
        if as_json:
            say_json({"env": config.env_id, "returns": returns.tolist()})
        else:
            spread = f"{returns.mean():.4g} +- {returns.std():.4g}"
            words = f"mean return {spread} of {count} episodes by the best actions"
            say(f"{config.env_id}: {words}")
        return
    with one_thread():
        with building(run):
            env = gym.make(config.env_id, **config.env_kwargs)
        if env.get_wrapper_attr("draws"):
            near = validation_of(model.env_id, config.env_kwargs)
            hint = "SET" if near is None else near.name.replace("validation", "test")
            raise ParenvsError(
                f"{run}: trained on drawn problems, of which no single one can be judged; "
                f"add --set {hint}"
            )
        say_tables(tables.evaluation(play(model, env, count, seed)), as_json=as_json)


def _player(run: Path, name: str, trust: bool) -> tuple[Any, dict[str, Any]]:
    from parenvs.agents.learning.trainer import load_config, player, rules_of
    from parenvs.core.sets import set_of

    policy = player(run, trust)
    try:
        set_of(name, policy.env_id)
    except ParenvsError as error:
        raise ParenvsError(f"{run}: {error}") from None
    return policy, rules_of(load_config(run, trust))


def _evaluate_set(
    folders: Sequence[Path], name: str, choices: EvaluateOptions, as_json: bool
) -> None:
    from parenvs.agents.evaluation.evaluate_set import evaluate_set
    from parenvs.agents.learning.play import one_thread
    from parenvs.cli import tables

    results = []
    for runs in filter(None, (folders, [*map(Path, choices.against or ())])):
        with one_thread():
            players = [_player(run, name, choices.trust) for run in runs]
            rules = players[0][1]
            for run, (_, rules_of_run) in zip(runs, players, strict=True):
                if rules_of_run != rules:
                    raise ParenvsError(
                        f"{run}: trained by other rules than {runs[0]}: {rules_of_run}"
                    )
            policies = [policy for policy, _ in players]
            result = evaluate_set(policies, name, choices.family, seed=choices.seed, settings=rules)
            results.append(result)
    result, other, scores = results[0], results[1] if choices.against else None, choices.out
    if scores is None:
        say_tables(tables.set_evaluation(result, other), as_json=as_json)
        return
    with written(lambda: result.save(scores), f"written: {scores}", quiet=as_json):
        say_tables(tables.set_evaluation(result, other), as_json=as_json)
