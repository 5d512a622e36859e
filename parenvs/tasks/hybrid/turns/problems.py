"""Problems with all that episodes look up of them, and where an environment's come from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from parenvs.cluster import Cluster
from parenvs.core.problem import problem as load_problem
from parenvs.core.sets import family_named
from parenvs.core.source import ORDERS, Fixed, Members, Source, is_sequential
from parenvs.datasets.hybrid import drawing, servers
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shipped import problem_sets
from parenvs.tasks.hybrid.task import TASK
from parenvs.tasks.hybrid.turns import observe
from parenvs.tasks.hybrid.turns.actions import GLOBAL_CHUNKS, GLOBAL_MICRO_BATCH, GLOBAL_SHARED
from parenvs.tasks.hybrid.turns.columns import Columns
from parenvs.tasks.hybrid.turns.completable import Completable
from parenvs.tasks.hybrid.turns.rules import HETERO, Rules, TurnLimits

POOL = 2048
"""Seeds of a generator that are drawn by default."""
KEPT = 4096
"""Problems whose look-up tables are kept; a larger ``pool`` makes them again and again."""


class Setting:
    """A problem with what episodes on it look up.

    Attributes:
        problem: the problem.
        rules: what plans have in common.
        columns: the problem as arrays.
        shown: what is shown of it.
    """

    def __init__(self, problem: Hybrid, rules: Rules) -> None:
        """Look up everything.

        Raises:
            InfeasibleError: the problem is too large for turns.
        """
        self.problem, self.rules = problem, rules
        self.columns = Columns([problem], rules)
        self.shown = observe.shown(self.columns)

    @property
    def limits(self) -> TurnLimits:
        """What turns may choose."""
        return self.columns.limits[0]

    @cached_property
    def longest(self) -> np.ndarray:
        """(40,) largest end of a first stage that is not the last, by choice of the global turn."""
        longest = np.zeros(len(self.limits.opening), dtype=np.int64)
        for choice in np.flatnonzero(self.limits.opening).tolist():
            settings = (GLOBAL_MICRO_BATCH[choice], GLOBAL_CHUNKS[choice], GLOBAL_SHARED[choice])
            longest[choice] = self.limits.longest_first(*(x.item() for x in settings))
        return longest

    @cached_property
    def completable(self) -> Completable:
        """What still fits the memory."""
        return Completable(self.columns)


@lru_cache(maxsize=KEPT)
def setting_of(name: str, rules: Rules) -> Setting:
    """Return a drawn or shipped problem with its look-up tables, made once.

    Raises:
        ParenvsError: there is no such problem.
    """
    return Setting(load_problem(name, task=TASK.name), rules)


def source_of(
    rules: Rules,
    instance: Any = None,
    cluster: Any = None,
    pool: int = POOL,
    order: str = ORDERS[0],
    family: str | None = None,
    problem: Hybrid | None = None,
    **options: Any,
) -> Source:
    """Return the source of an environment's settings.

    The arguments are those of ``parenvs.tasks.hybrid.game.HybridPlan``.

    Raises:
        ParenvsError: an argument is impossible, or goes with no other.
    """
    sequential = is_sequential(order)
    if type(pool) is not int or not 1 <= pool <= 2**31:
        raise ParenvsError(f"pool must be a whole number from 1, not {shown(pool)}")
    if isinstance(cluster, str) and cluster == HETERO:
        instance, cluster = instance or f"{HETERO}-32", None
    instance = TASK.drawn[0] if instance is None else instance
    if problem is None and isinstance(instance, str) and instance in (*TASK.drawn, *TASK.sets):
        settings = options if cluster is None else {"cluster": cluster, **options}
        if settings:
            raise ParenvsError(
                f"{', '.join(settings)}: problems of {instance} have settings of their own; leave "
                "it out, or name one instance"
            )
        return Members(_members(instance, pool, family), partial(_member, instance, rules), order)
    for name, given in (("family", family is not None), ("order", sequential)):
        if given:
            raise ParenvsError(f"{name}: one problem is played; leave it out")
    if problem is None:
        return Fixed(named(rules, instance, cluster, **options))
    if not isinstance(problem, Hybrid):
        raise ParenvsError(f"problem must be a parenvs.Hybrid, not {shown(problem)}")
    return Fixed(Setting(problem, rules))


def named(rules: Rules, instance: Any, cluster: Any = None, **options: Any) -> Setting:
    """Return the setting of a problem's name or path, and its options.

    Raises:
        ParenvsError: there is no such problem, or it is too large for turns.
    """
    if cluster is None and not options and TASK.names(instance):
        return setting_of(str(instance), rules)
    if cluster is not None:
        cluster = Cluster.parse(cluster)
    return Setting(load_problem(instance, cluster, task=TASK.name, **options), rules)


def _member(place: str, rules: Rules, number: int) -> Setting:
    """Return a problem of a generator or a set by its number."""
    drawn = place in TASK.drawn
    return setting_of(
        f"{place}/{number}" if drawn else problem_sets()[place][number].instance, rules
    )


def _members(place: str, pool: int, family: str | None) -> Sequence[int]:
    """Return the numbers of a generator's or a set's problems, or of those of a family.

    Raises:
        ParenvsError: there are none of the family.
    """
    drawn = place in TASK.drawn
    count = pool if drawn else len(problem_sets()[place])
    if family is None:
        return range(count)
    if drawn:
        family_of = drawing.family_of if place == drawing.TIER else servers.family_of
        families = [family_of(number) for number in range(count)]
    else:
        families = [family_named(one.instance) for one in problem_sets()[place]]
    numbers = [number for number, one in enumerate(families) if one == family]
    if not numbers:
        known = sorted(set(families))
        raise ParenvsError(
            f"family: {place} has no {shown(family)}{did_you_mean(str(family), known)}; "
            f"known: {', '.join(known)}"
        )
    return numbers
