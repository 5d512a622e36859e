"""The options that several commands share, and those of the tasks, made of the tasks' classes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args, get_type_hints

import typer

from parenvs.cli import values
from parenvs.core.registry import DEFAULT, TASKS
from parenvs.core.task import Task
from parenvs.errors import ParenvsError
from parenvs.view.commands import MORE, HelpAll
from parenvs.view.commands import of as words_of

Instance = Annotated[
    str,
    typer.Argument(
        help="Shipped name, SET/NAME, path of a graph, profile or problem, or FILE.py:FUNCTION.",
        autocompletion=values.instances,
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
        autocompletion=values.tasks,
    ),
]
ClusterText = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Cluster: a preset, '4x8:v100,25Gbps', or a .json file (default: that of the task's "
        "environments).",
        autocompletion=values.clusters,
    ),
]
Steps = Annotated[
    int,
    typer.Option(
        help="Environment steps of agents that learn or draw.", rich_help_panel=MORE + "planners"
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
        name: its name, without dashes.
        words: its help.
        kind: ``int``, ``float``, ``str``, ``bool``, or ``list`` of texts.
        read: makes the value of what the command line gives, or None.
        place: one of ``PLACES``, the field in it, and the field in the value of that one, if any.
        implies: whether giving it says which task is meant.
        values: that shells complete; none: they are not few.
        main: whether the short help of commands has it.
    """

    name: str
    words: str
    kind: type
    read: Callable[[Any], Any] | None
    place: tuple[str, ...]
    implies: bool = False
    values: tuple[str, ...] = ()
    main: bool = False

    def value(self, given: Any) -> Any:
        """Return the value of what the command line gives, which may be a list of texts.

        Raises:
            ParenvsError: it does not parse.
        """
        if isinstance(given, list) and self.kind is not list:
            try:
                (text,) = given
                given = self.kind(text)
            except ValueError:
                kinds = {int: "a whole number", float: "a number"}
                wanted = f"{kinds.get(self.kind, 'one text')}, given once"
                raise ParenvsError(f"--{self.name} must be {wanted}, not {given[-1]!r}") from None
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
    hints = get_type_hints(kind)
    flags: list[Flag] = []
    for each in fields(kind):
        about, inner = each.metadata, (*owner, each.name)
        if about.get("parts"):
            flags += flags_in(about["parts"], inner)
        elif about:
            taken = (*get_args(hints[each.name]), hints[each.name])
            known = next((x for x in taken if x in (int, float, str, bool)), str)
            name = about["flag"] or each.name.replace("_", "-")
            more = (about["implies"], about["values"], about["main"])
            kind_, read = about["kind"] or known, about["read"]
            flags.append(Flag(name, about["help"], kind_, read, inner, *more))
    return tuple(flags)


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


def _placed(flags: Iterable[Flag], given: Given) -> dict[str, Any]:
    """Return the values of flags that are given, each where it belongs."""
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


def not_for_task(command: str, task: Task, method: Callable[..., Any]) -> ParenvsError:
    """Return the error for a command that needs a method which a task does not implement."""
    others = ", ".join(other.name for other in tasks_with(method))
    return ParenvsError(f"{command} is not for task {task.name}, but for {others}")


class TaskCommand:
    """A command that takes the options of all tasks behind its own.

    They are made when the command is parsed, as tasks may come later.

    Args:
        function: the command; its first argument is ``Given``.
        sources: of ``PLACES``, or classes of options.
        plans: whether it plans, so that its short help has the options that are asked for first.
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
        own = list(inspect.signature(self._function, eval_str=True).parameters.values())[1:]
        parameters = [_parameter(name, of, self._plans) for name, of in self._merged().items()]
        has_more = any(source in PLACES for source in self._sources)
        if self._reads:
            parameters.append(_no_cache(MORE + "of several tasks" if has_more else None))
        if has_more:
            parameters.append(_HELP_ALL)
        return inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *parameters)])

    def __call__(self, **values: Any) -> None:
        """Run the command."""
        from parenvs.graph import cache

        values.pop(_HELP_ALL.name, None)
        keeps = self._reads and not values.pop(_NO_CACHE)
        taken = {name: values.pop(_identifier(name)) for name in self._merged()}
        given = {name: x for name, x in taken.items() if x is not None}
        with cache.keeping() if keeps else nullcontext():
            self._function(given, **values)

    @property
    def _reads(self) -> bool:
        """Whether it reads models, so that it takes what gives their arguments."""
        return "args" in self._merged()

    def _merged(self) -> dict[str, dict[str, Flag]]:
        """Return the options by name, each by the names of the tasks that have it."""
        merged: dict[str, dict[str, Flag]] = {}
        for source in self._sources:
            if isinstance(source, str):
                for task in TASKS.values():
                    for name, flag in flags_of(task, (source,)).items():
                        merged.setdefault(name, {})[task.name] = flag
            else:
                merged |= {flag.name: {"": flag} for flag in flags_in(source)}
        return merged


def with_flags(
    *sources: str | type, plans: bool = False
) -> Callable[[Callable[..., None]], TaskCommand]:
    """Return a decorator that gives a command the options of all tasks, see ``TaskCommand``."""
    return lambda function: TaskCommand(function, sources, plans)


_HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=HelpAll,
)


_NO_CACHE = "no_cache"


def _no_cache(panel: str | None) -> inspect.Parameter:
    """Return the parameter of the option that keeps no model."""
    words = "Lower a model anew, and do not keep it."
    return inspect.Parameter(
        _NO_CACHE,
        inspect.Parameter.KEYWORD_ONLY,
        default=typer.Option(False, "--no-cache", help=words, rich_help_panel=panel),
        annotation=bool,
    )


def _identifier(name: str) -> str:
    return "task_" + name.replace("-", "_")


def _metavar(known: tuple[str, ...]) -> str | None:
    """Return what help shows as the value of an option, if it is one of a few; else None."""
    words = "|".join(known)
    return words if 0 < len(words) <= _MOST_LETTERS else None


def _parameter(name: str, of: Mapping[str, Flag], plans: bool) -> inspect.Parameter:
    """Return the parameter of an option; ``of`` has it by the names of the tasks."""
    words: dict[str, list[str]] = {}
    for task, flag in of.items():
        words.setdefault(flag.words, []).append(task)
    alone = len(of) == 1
    lines = [text if alone else f"{', '.join(tasks)}: {text}" for text, tasks in words.items()]
    panel = f"{MORE}of task {next(iter(of))}" if alone else f"{MORE}of several tasks"
    known = tuple(dict.fromkeys(value for flag in of.values() for value in flag.values))
    is_main = "" in of or (plans and any(flag.main for flag in of.values()))
    kinds = {flag.kind for flag in of.values()}
    kind: Any = kinds.pop() if len(kinds) == 1 else list
    return inspect.Parameter(
        _identifier(name),
        inspect.Parameter.KEYWORD_ONLY,
        default=typer.Option(
            None,
            f"--{name}",
            help=" ".join(lines)
            + (f" {', '.join(known)}." if known and not _metavar(known) else ""),
            metavar=_metavar(known),
            autocompletion=words_of(*known) if known else None,
            rich_help_panel=None if is_main else panel,
        ),
        annotation=(list[str] if kind is list else kind) | None,
    )
