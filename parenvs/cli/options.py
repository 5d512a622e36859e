"""The options that several commands share, and those of the tasks, made of the tasks' classes."""

from __future__ import annotations

import functools
import inspect
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from msgspec import Meta

from parenvs.core.registry import DEFAULT, TASKS, environments, task_of_name
from parenvs.core.task import FRAMEWORKS, PRESETS, Task
from parenvs.errors import ParenvsError
from parenvs.files import is_function, replacing
from parenvs.instances import GRAPH_SUFFIXES, READING, load_graph, names
from parenvs.view.commands import MORE, HelpAll, completed
from parenvs.view.commands import of as words_of
from parenvs.view.terminal import Step, check_range, note, say_json, say_text

if TYPE_CHECKING:
    from parenvs.core.request import Request
    from parenvs.graph.graph import Graph


def _selected_tasks(ctx: Any) -> list[Any]:
    given = ctx.params.get("task")
    names = given if isinstance(given, (list, tuple)) else [given]
    chosen = [TASKS[name] for name in names if name in TASKS]
    return chosen or list(TASKS.values())


def _instances(ctx: Any) -> Iterable[str]:
    words = dict.fromkeys(names())
    for task in _selected_tasks(ctx):
        words |= dict.fromkeys(task.own_names())
        words |= dict.fromkeys((*task.instances, *(f"{kind}/" for kind in task.drawn)))
        words |= dict.fromkeys(f"{name}/" for name in task.sets)
    return words


def _sets(ctx: Any) -> Iterable[str]:
    return (name for task in TASKS.values() for name in task.sets)


def _envs(ctx: Any) -> Iterable[str]:
    return (name for name in environments() if "/" not in name)


tasks = completed(lambda _: TASKS)
agents = completed(
    lambda ctx: dict.fromkeys(x for task in _selected_tasks(ctx) for x in task.planners)
)
instances = completed(_instances)
envs = completed(_envs)
trainable = completed(lambda ctx: (*_instances(ctx), *TASKS, *_sets(ctx), *_envs(ctx)))
sets = completed(_sets)
clusters = words_of(*PRESETS)
frameworks = words_of(*FRAMEWORKS)
devices = words_of("cpu", "cuda")


Instance = Annotated[
    str,
    typer.Argument(
        help="Shipped name, SET/NAME, path of a graph, profile or problem, or FILE.py:FUNCTION.",
        autocompletion=instances,
    ),
]
FunctionArguments = Annotated[
    str | None,
    typer.Option(
        "--args", help="What gives a function's arguments: NAME in its file, or FILE.py:NAME."
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        help=f"Task: {', '.join(TASKS)} (default: that of the instance's set, else {DEFAULT}).",
        autocompletion=tasks,
    ),
]
ClusterText = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Cluster: a preset, '4x8:v100,25Gbps', or a .json file (default: that of the task's "
        "environments).",
        autocompletion=clusters,
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        help="Environment steps of agents that learn or draw (default: 60,000).",
        rich_help_panel=MORE + "planners",
    ),
]
Given = Mapping[str, Any]
"""The options of tasks that a command line gives, by name."""
_MOST_LETTERS = 24
"""Of values that help lists in place of their type."""
PLACES = ("options", "search")
"""Classes of a task that options are made of: those of its problems and of its planners."""


@dataclass(frozen=True)
class Flag:
    """An option of commands that a task has.

    Attributes:
        kind: ``int``, ``float``, ``str``, ``bool``, or ``list`` of texts.
        read: makes the value of what the command line gives, or None.
        place: one of ``PLACES``, the field in it, and the field in the value of that one, if any.
        complete: values that shells complete, where there are others.
    """

    name: str
    words: str
    kind: type
    place: tuple[str, ...]
    read: Callable[[Any], Any] | None = None
    values: tuple[str, ...] = ()
    main: bool = False
    complete: tuple[str, ...] | Callable[..., Any] = ()
    default: Any = None
    least: int | None = None

    def value(self, given: Any) -> Any:
        """Return the value of what the command line gives, which may be a list of texts.

        Raises:
            ParenvsError: it does not parse.
        """
        # Where tasks disagree on an option's type, the command line takes it as a list of texts.
        if isinstance(given, list) and self.kind is not list:
            try:
                (text,) = given
                given = self.kind(text)
            except ValueError:
                kinds = {int: "a whole number", float: "a number"}
                expected = f"{kinds.get(self.kind, 'one text')}, given once"
                raise ParenvsError(f"--{self.name} must be {expected}, not {given[-1]!r}") from None
        if self.least is not None:
            check_range(f"--{self.name}", given, self.least)
        return given if self.read is None else self.read(given)


def flags_of(task: Task, classes: tuple[str, ...] = PLACES) -> dict[str, Flag]:
    """Return the options that a task has, by their names."""
    return {
        flag.name: flag
        for attribute in classes
        for flag in flags_in(getattr(task, attribute), (attribute,))
    }


@functools.cache
def flags_in(kind: type, owner: tuple[str, ...] = ()) -> tuple[Flag, ...]:
    """Return the options of a class whose fields are made with ``parenvs.core.task.option``."""
    hints = get_type_hints(kind, include_extras=True)
    flags: list[Flag] = []
    for item in fields(kind):
        about, inner = item.metadata, (*owner, item.name)
        if about.get("parts"):
            flags += flags_in(about["parts"], inner)
        elif about:
            types, bounds = _types(hints[item.name])
            known = next((x for x in types if x in (int, float, str, bool, Path)), str)
            kind = about["kind"] or known
            least = next((int(x.ge) for x in bounds if kind is int and x.ge is not None), None)
            given = ("read", "values", "main", "complete")
            more = {"default": item.default, "least": least, **{key: about[key] for key in given}}
            name = about["flag"] or item.name.replace("_", "-")
            flags.append(Flag(name, about["help"], kind, inner, **more))
    return tuple(flags)


def _types(hint: Any) -> tuple[list[Any], list[Meta]]:
    if hasattr(hint, "__metadata__"):
        return [hint.__origin__], [x for x in hint.__metadata__ if isinstance(x, Meta)]
    types: list[Any] = [hint]
    bounds: list[Meta] = []
    for part in get_args(hint):
        inner, more = _types(part)
        types, bounds = [*inner, *types], [*bounds, *more]
    return types, bounds


def values_for(task: Task, given: Given) -> dict[str, dict[str, Any]]:
    """Return options that a command line gives by place and field, for a task.

    Raises:
        ParenvsError: the task does not have one; the line names those that have it.
    """
    known = flags_of(task)
    for name in given:
        if name not in known:
            raise not_an_option(name, task, [x for x in TASKS.values() if name in flags_of(x)])
    return {**{attribute: {} for attribute in PLACES}, **_placed(known.values(), given)}


def values_in(kind: type, given: Given) -> dict[str, Any]:
    """Return options that a command line gives by field of a class; others are left out."""
    return _placed(flags_in(kind), given)


def without(given: Given, *kinds: type) -> dict[str, Any]:
    """Return the options that a command line gives and that are none of some classes."""
    names = {flag.name for kind in kinds for flag in flags_in(kind)}
    return {name: value for name, value in given.items() if name not in names}


def _placed(flags: Iterable[Flag], given: Given) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for flag in flags:
        if flag.name in given:
            *way, last = flag.place
            target = values
            for step in way:
                target = target.setdefault(step, {})
            target[last] = flag.value(given[flag.name])
    return values


def not_an_option(name: str, task: Task, owners: Iterable[Task]) -> ParenvsError:
    """Return the error for an option that a task does not have, but its owners."""
    others = ", ".join(other.name for other in owners)
    return ParenvsError(f"--{name} is not an option of --task {task.name}, but of {others}")


def tasks_with(method: Callable[..., Any]) -> list[Task]:
    """Return the tasks that implement an optional method, such as ``Task.tables``."""
    return [task for task in TASKS.values() if task.supports(method)]


def require(command: str, task: Task, method: Callable[..., Any]) -> None:
    """Raise an error for a command that needs a method which a task does not implement."""
    if not task.supports(method):
        others = ", ".join(other.name for other in tasks_with(method))
        raise ParenvsError(f"{command} is not for task {task.name}, but for {others}")


def print_result(result: Any, as_json: bool) -> None:
    """Print what has ``text()`` and ``to_json()``."""
    if as_json:
        say_json(result.to_json())
    else:
        say_text(result.text())


class TaskCommand:
    """A command that takes the options of all tasks behind its own.

    They are made when the command is parsed, as tasks may come later.
    """

    def __init__(
        self, function: Callable[..., None], sources: tuple[str | type, ...], plans: bool = False
    ) -> None:
        functools.update_wrapper(self, function, ("__module__", "__name__", "__doc__"), ())
        self._function, self._sources, self._plans = function, sources, plans
        self.__annotations__: dict[str, Any] = {}  # the signature holds them

    @property
    def __signature__(self) -> inspect.Signature:
        """The function's own parameters and one for each option of a task."""
        # The first parameter takes the options together and is none itself.
        first = list(inspect.signature(self._function, eval_str=True).parameters.values())[1:]
        parameters = [_parameter(name, of, self._plans) for name, of in self._merged().items()]
        has_more = any(source in PLACES for source in self._sources)
        if self._reads:
            panel = MORE + "of several tasks" if has_more else None
            words = "Lower a model anew, and do not keep it."
            default = typer.Option(False, "--no-cache", help=words, rich_help_panel=panel)
            parameters.append(_keyword(_NO_CACHE, bool, default))
        if has_more:
            parameters.append(_HELP_ALL)
        return inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in (*first, *parameters)])

    def __call__(self, **values: Any) -> None:
        """Run the command."""
        from parenvs.graph import cache

        values.pop(_HELP_ALL.name, None)
        keeps = self._reads and not values.pop(_NO_CACHE)
        taken = {name: values.pop(_identifier(name)) for name in self._merged()}
        # None is what typer gives for an option that was not typed.
        given = {name: x for name, x in taken.items() if x is not None}
        with cache.enabled() if keeps else nullcontext():
            self._function(given, **values)

    @property
    def _reads(self) -> bool:
        return "args" in self._merged()

    def _merged(self) -> dict[str, dict[str, Flag]]:
        merged: dict[str, dict[str, Flag]] = {}
        for source in self._sources:
            if isinstance(source, str):
                for task in TASKS.values():
                    for name, flag in flags_of(task, (source,)).items():
                        merged.setdefault(name, {})[task.name] = flag
            else:
                panel = getattr(source, "panel", "")
                merged |= {flag.name: {panel: flag} for flag in flags_in(source)}
        return merged


def with_flags(
    *sources: str | type, plans: bool = False
) -> Callable[[Callable[..., None]], TaskCommand]:
    """Return a decorator that gives a command the options of all tasks, see ``TaskCommand``."""
    return lambda function: TaskCommand(function, sources, plans)


def _keyword(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


_HELP_ALL = _keyword("help_all", HelpAll, False)
_NO_CACHE = "no_cache"


def _identifier(name: str) -> str:
    return "task_" + name.replace("-", "_")


def _parameter(name: str, flags: Mapping[str, Flag], plans: bool) -> inspect.Parameter:
    """Return the parameter of an option; ``of`` has it by the names of the tasks, or by a panel."""
    words: dict[str, list[str]] = {}
    for task, flag in flags.items():
        words.setdefault(flag.words, []).append(task)
    alone = len(flags) == 1
    lines = [text if alone else f"{', '.join(tasks)}: {text}" for text, tasks in words.items()]
    owner, first = next(iter(flags.items()))
    is_shared = owner not in TASKS  # an option of the command's own class
    several = f"of task {owner}" if alone else "of several tasks"
    panel = MORE + (owner if is_shared else several)
    known = tuple(dict.fromkeys(value for flag in flags.values() for value in flag.values))
    completions: Any = known or first.complete or None
    if isinstance(completions, tuple):
        completions = words_of(*completions)
    is_main = owner == "" or ((plans or is_shared) and any(flag.main for flag in flags.values()))
    if is_shared and first.default not in (None, 0):
        lines.append(f"(default: {first.default})")
    # Few values are shown in place of the option's type, many behind its words.
    is_short = 0 < len("|".join(known)) <= _MOST_LETTERS
    if known and not is_short:
        lines.append(f"{', '.join(known)}.")
    kinds = {flag.kind for flag in flags.values()}
    kind: Any = kinds.pop() if len(kinds) == 1 else list
    default = typer.Option(
        None,
        f"--{name}",
        help=" ".join(lines),
        metavar="|".join(known) if is_short else None,
        autocompletion=completions,
        rich_help_panel=None if is_main else panel,
    )
    return _keyword(_identifier(name), (list[str] if kind is list else kind) | None, default)


_SLOW = 2.0  # seconds from which reading a file is told


def task_named(word: str | None, instance: str | None, given: Iterable[str] = ()) -> Task:
    """Return the task of a word; without one that of the instance's name or of the options.

    The options say the first task that has all of them.
    """
    if word is not None:
        return TASKS.named(word)
    named = task_of_name(instance)
    if named is not None:
        return named
    wanted, default = set(given), TASKS[DEFAULT]
    ordered = (default, *TASKS.values())
    return next((task for task in ordered if wanted <= {*flags_of(task)}), default)


def task_to_plan(word: str | None, instance: str, given: Given) -> Task:
    """Return the task that plans an instance: without a word one that has its name, if any does."""
    if word is None and task_of_name(instance) is None:
        for task in TASKS.values():
            if instance in task.own_names():
                return task
    return task_named(word, instance, given)


def found_cluster(model: Model) -> str | None:
    """Return the cluster that is given for a model, or else the GPUs of this machine.

    Returns:
        The cluster; None if the problem says what it runs on.

    Raises:
        ParenvsError: this machine has no GPUs.
    """
    if not model.is_placed_here:
        return model.cluster
    from parenvs.cluster import Cluster

    machine = Cluster.here()
    if machine is None:
        raise ParenvsError(
            "--cluster is missing, and this machine has no GPU to plan for: give a preset "
            f"({', '.join(PRESETS)}), servers x devices like 16x8:h100, or a .json file"
        )
    return f"{machine.servers}x{machine.devices_per_server}:{machine.device.name}"


@dataclass(frozen=True)
class Model:
    """An instance of a task as the command line names it.

    Attributes:
        instance: shipped name, ``SET/NAME``, path, or a JAX function.
    """

    task: Task
    instance: str
    cluster: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Given, instance: str, task: str | None, cluster: str | None) -> Model:
        """Read what a command line gives.

        Raises:
            ParenvsError: the task is unknown, or does not have an option.
        """
        chosen = task_named(task, instance, given)
        return cls(chosen, instance, cluster, **values_for(chosen, given))

    @property
    def is_placed_here(self) -> bool:
        """Whether what it runs on is not said, by a cluster, an option or the problem itself."""
        # A problem of a set, or one that is no graph, says what it runs on.
        has_own = not self.task.supports(Task.reading) or self.task.names(self.instance)
        return self.cluster is None and not has_own and "devices" not in self.options

    @cached_property
    def graph_arguments(self) -> dict[str, Any] | None:
        """Arguments of ``load_graph`` for the graph; None if the problem is made of none."""
        if not self.task.supports(Task.reading) or self.task.names(self.instance):
            return None
        return self.task.reading(self.instance, self.options)

    @property
    def keeps_graph(self) -> bool:
        """Whether its graph is written beside a plan, as its name alone would not give it."""
        if self.graph_arguments is None:
            return False
        return is_function(self.instance) or any(
            self.graph_arguments.get(k) is not None for k in READING
        )

    def graph(self) -> Graph:
        """Load the graph."""
        assert self.graph_arguments is not None
        return load_graph(self.instance, **self.graph_arguments)

    def read(self) -> Graph:
        """Load the graph; tell what takes long, and what the reader assumed."""
        if is_function(self.instance):
            from parenvs.graph import python_source

            with Step(f"lowering {self.instance}") as step:
                if python_source.lower(self.instance, self.options.get("arguments")).kept:
                    step.result = "kept from the last time (--no-cache lowers it anew)"
        with Step(
            f"reading {self.instance}", min_seconds=0.0 if self.keeps_graph else _SLOW
        ) as step:
            graph = self.graph()
            step.result = f"{len(graph.opcode):,} instructions"
        for words in graph.notes:
            note(words)
        return graph

    def problem(self) -> Any:
        """Make the problem."""
        from parenvs.core.registry import problem

        return problem(self.instance, self.cluster, self.task.name, **self.options)

    def request(
        self, seed: int, steps: int, choosing: bool = True, here: bool = False, **own: Any
    ) -> Request:
        """Make what planners answer.

        Raises:
            ParenvsError: no plan can solve the problem, or the task has no planners.
        """
        from parenvs.agents.planners import request_of

        if self.graph_arguments is not None:
            for words in self.task.assumptions(self.read(), self.options):
                note(words)
        placed = replace(self, cluster=found_cluster(self)) if here else self
        task, name, search = self.task, self.instance, self.search
        if choosing and task.supports(Task.open_problem) and not task.names(name):
            problem, search = task.open_problem(name, placed.cluster, self.options, search)
        else:
            problem = placed.problem()
        return request_of(problem, seed=seed, steps=steps, **search, **own)

    def check_out(self, path: Path | None) -> None:
        """Raise an error if the graph kept beside a plan would overwrite what it was read from.

        Raises:
            ParenvsError: it would; the line names both files.
        """
        if path is None or not self.keeps_graph:
            return
        sidecar = path.with_suffix(".npz")
        if sidecar == path or _same(sidecar, self.instance):
            raise ParenvsError(
                f"{path}: the plan's graph is written beside it and would overwrite {sidecar}; "
                "choose another --out"
            )

    def named(self, report: Any, path: Path | None) -> Any:
        """Return a report whose plan names the graph that ``save`` writes beside ``path``."""
        if path is None or not self.keeps_graph:
            return report
        return replace(report, plan=replace(report.plan, instance=str(path.with_suffix(".npz"))))

    def save(self, path: Path | None) -> None:
        """Write the graph, and its module if there is one, beside a plan's file.

        Nothing is written if the instance alone gives the graph.
        """
        if path is None or not self.keeps_graph:
            return
        self.graph().save(path.with_suffix(".npz"))
        if is_function(self.instance):
            from parenvs.graph import python_source

            with replacing(path.with_suffix(".pb")) as stream:
                lowered = python_source.lower(self.instance, self.options.get("arguments"))
                stream.write(lowered.proto)
        elif self.instance not in names() and self.instance.endswith(GRAPH_SUFFIXES[1:]):
            module = path.with_suffix(Path(self.instance).suffix)
            if not _same(module, self.instance):
                with replacing(module) as stream, Path(self.instance).open("rb") as source:
                    shutil.copyfileobj(source, stream)


def _same(path: Path, instance: str) -> bool:
    return path.exists() and Path(instance).exists() and path.samefile(instance)
