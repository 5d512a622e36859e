"""``Task``: the whole of what the rest of the house knows of a task.

What takes its time to import is named by a text, ``"package.module:attribute"``, and is imported
when it is first used, as Gymnasium's entry points are. So a list of all tasks costs next to
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any

from parenvs.errors import ParenvsError, did_you_mean


def late(entry_point: str) -> Any:
    """Import what a text like ``"package.module:attribute"`` names."""
    module, _, name = entry_point.partition(":")
    return getattr(import_module(module), name)


class LateModule:
    """A module that is imported when something of it is first asked for."""

    def __init__(self, name: str) -> None:
        """Take the module's name."""
        self._name = name

    def __getattr__(self, name: str) -> Any:
        """Import the module, and return what it has of this name."""
        return getattr(import_module(self._name), name)


def option(
    default: Any,
    words: str,
    flag: str = "",
    kind: type | None = None,
    read: Callable[[Any], Any] | None = None,
    parts: str = "",
    implies: bool = False,
    values: tuple[str, ...] = (),
    main: bool = False,
) -> Any:
    """Return a field of a dataclass of options, which commands take too.

    Args:
        default: its value where it is not given; None where the default depends on other things.
        words: what it is, and its default, in a line of a command's help.
        flag: its name on the command line (default: that of the field, with dashes).
        kind: what commands take: ``int``, ``float``, ``str``, ``bool``, or ``list`` of texts that
            are given one by one (default: by the annotation).
        read: makes its value of what a command takes; it raises a ParenvsError for what it cannot
            read (default: that is the value).
        parts: class of options, named by a text; commands take each of them, and the value is an
            object of those that are given.
        implies: whether giving it says which task is meant.
        values: texts that commands take, which shells complete (default: they are not few).
        main: whether the short help of commands has it.
    """
    about: dict[str, Any] = {"help": words, "flag": flag, "kind": kind, "read": read}
    about |= {"parts": parts, "implies": implies, "values": values, "main": main}
    return field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """Options of problems that are named and have settings of their own, and of planners."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A kind of problem: how it is named, loaded, judged, solved and shown.

    Attributes:
        name: its name, one word.
        words: what is planned, in a sentence.
        options: frozen dataclass of the options of ``parenvs.problem``, made with ``option``.
        search: the same of the options of its planners, which its requests have, too.
        load: function ``(source, cluster or None, options) -> problem``. ``source`` is a name, a
            path, an object that problems are made of, or a problem whose settings the options
            change (default: problems are found by name alone).
        judge: function ``(plan, target or None, cluster or None) -> report``; the target is a
            problem or what problems are made of, by default what the plan names (default: it is
            a problem).
        plan: class of its plans; empty if no plan file answers its problems.
        request: class of the requests that its planners answer, see
            ``parenvs.core.request.Request``; empty if there are none.
        planners: their names, so that commands know them without importing them.
        sets: names of its shipped sets; a problem of one is called ``SET/NAME``.
        drawn: first words of the names of drawn problems, like ``"hybrid"`` of ``"hybrid/7"``.
        instances: further names that are of this task alone.
        find: function ``name -> problem`` for problems of ``sets`` and ``drawn``.
        envs: id of an environment -> its game.
        text: function ``(report or problem, colour) -> text``.
        answer: function ``(report) -> text``, the plan and its cost in one line.
        figure: function ``(report or problem) -> matplotlib figure``.
        hooks: what a room of the house needs of the task, by the name of the room.
    """

    name: str
    words: str
    options: type = NoOptions
    search: type = NoOptions
    load: str = "parenvs.core.problem:load_found"
    judge: str = "parenvs.core.judge:judge_found"
    plan: str = ""
    request: str = ""
    planners: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    find: str = ""
    envs: Mapping[str, str] = field(default_factory=dict)
    text: str = "parenvs.core.report:plain"
    answer: str = "parenvs.core.report:answer"
    figure: str = ""
    hooks: Mapping[str, str] = field(default_factory=dict)

    @property
    def option_names(self) -> tuple[str, ...]:
        """Names of the options of ``parenvs.problem``."""
        return tuple(each.name for each in fields(self.options))

    def names(self, instance: object) -> bool:
        """Return whether a name is of this task alone: of a set, a drawn problem, or its own."""
        if not isinstance(instance, (str, os.PathLike)):
            return False
        text = os.fspath(instance)
        kind, slash, _ = text.partition("/")
        if kind in self.instances or kind in self.drawn:
            return True
        return bool(slash) and kind in self.sets

    def found(self, instance: object) -> Any:
        """Return the problem of a shipped set, or the drawn one, of a name; None if it is neither.

        Raises:
            UnknownInstanceError: the set has no such problem.
        """
        if not isinstance(instance, (str, os.PathLike)) or not self.find:
            return None
        text = os.fspath(instance)
        kind, slash, _ = text.partition("/")
        is_known = kind in self.drawn or (slash and kind in self.sets)
        return late(self.find)(text) if is_known else None

    def settings(self, given: Mapping[str, Any]) -> Any:
        """Return options of ``parenvs.problem`` as an object of ``options``.

        Raises:
            ParenvsError: one is unknown.
        """
        known = self.option_names
        for name in given:
            if name not in known:
                raise ParenvsError(
                    f"{name!r} is not an option of task {self.name}{did_you_mean(name, known)}; "
                    f"known: {', '.join(known) or 'none, the instance says all'}"
                )
        return self.options(**given)

    def hook(self, room: str) -> Callable[..., Any]:
        """Return what a room needs of the task.

        Raises:
            ParenvsError: the task has nothing for it.
        """
        if room not in self.hooks:
            raise ParenvsError(f"task {self.name} has no {room}")
        function: Callable[..., Any] = late(self.hooks[room])
        return function


def given(options: Any) -> dict[str, Any]:
    """Return the options of an object that are not None, by name."""
    named = {each.name: getattr(options, each.name) for each in fields(options)}
    return {name: value for name, value in named.items() if value is not None}


def refuse_settings(source: Any, cluster: Any, options: Any) -> Any:
    """Return a problem that has settings of its own.

    Raises:
        ParenvsError: a cluster or an option is given nevertheless.
    """
    changed = [each.name for each in fields(options) if getattr(options, each.name) != each.default]
    for name in (*(["cluster"] if cluster is not None else []), *changed):
        raise ParenvsError(f"{name}: {source.instance} has settings of its own; leave it out")
    return source
