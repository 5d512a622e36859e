"""Where the problems of ``HybridPlan-v1`` come from: banks, sets, fresh draws, names."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from parenvs.core.game import Drawn, Fixed, Members, Mixed, Source, Stream, is_sequential
from parenvs.core.registry import problem as problem_of
from parenvs.core.sets import family_named
from parenvs.datasets.hybrid.named import BANKS, family_of, start_of
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shipped import problem_sets
from parenvs.tasks.hybrid.starts import Start
from parenvs.tasks.hybrid.task import HybridTask

KEPT_STARTS = 2048
"""Problems that are kept with what is looked up of them."""
MOST_SEED = 2**31
"""Seeds of fresh draws are below it."""


def source_of(
    instance: Any, family: str | None, fresh: bool, order: str, problem: Hybrid | Start | None,
    **settings: Any,
) -> Source:  # fmt: skip
    """Return the source of problems that the arguments of ``HybridImprovement`` name.

    Raises:
        ParenvsError: an argument is wrong, or goes with no other.
    """
    if isinstance(instance, (list, tuple)) and problem is None:
        unknown = [place for place in instance if place not in HybridTask.drawn]
        if unknown or not instance:
            raise ParenvsError(
                f"instance: of several banks there is no {shown(unknown[0] if unknown else None)}; "
                f"known: {', '.join(HybridTask.drawn)}"
            )
        return Mixed([source_of(x, family, fresh, order, None, **settings) for x in instance])
    instance = HybridTask.drawn[0] if instance is None else instance
    is_set = problem is None and isinstance(instance, str) and instance in HybridTask.sets
    is_bank = problem is None and isinstance(instance, str) and instance in HybridTask.drawn
    for name, is_given, words in (
        ("order", is_sequential(order) and not is_set, "of a set, like 'hybrid-test'"),
        ("family", family is not None and not (is_set or is_bank), "of a set or a bank"),
        ("fresh", fresh and not is_bank, "of problems that are drawn"),
    ):
        if is_given:
            raise ParenvsError(f"{name}: it is {words}; leave it out")
    if isinstance(problem, Start):
        return Fixed(problem)
    if problem is not None:
        if not isinstance(problem, Hybrid):
            raise ParenvsError(f"problem must be a parenvs.Hybrid, not {shown(problem)}")
        return Fixed(Start(problem))
    if not (is_set or is_bank):
        return Fixed(named(instance, **settings))
    if settings:
        raise ParenvsError(
            f"{', '.join(settings)}: problems of {instance} have settings of their own; leave it "
            "out, or name one instance"
        )
    if is_set:
        return Members(_of_family(instance, family), _kept, order)
    if fresh:
        known_family(instance, family)
        return Drawn(partial(_fresh, instance, family))
    return Members(_of_family(instance, family), _kept)


def named(instance: Any, **settings: Any) -> Start:
    """Return the start of a problem of a set or a bank, or of a name or path with its settings.

    Raises:
        ParenvsError: there is no such problem, or no uniform plan of it fits.
    """
    if isinstance(instance, str) and instance in (*HybridTask.sets, *HybridTask.drawn):
        raise ParenvsError(f"'instance' must name one problem of {instance}, not all of them")
    if HybridTask().names(instance) and not settings:
        return _kept(str(instance))
    cluster = settings.pop("cluster", None)
    return Start(problem_of(instance, cluster, task=HybridTask.name, **settings))


@lru_cache(maxsize=KEPT_STARTS)
def _kept(name: str) -> Start:
    return start_of(name)


def known_family(place: str, family: str | None) -> None:
    """Raise an error if a generator or a set has no problem of a family.

    Raises:
        ParenvsError: it has none; the line names those that it has.
    """
    if family is not None:
        known = sorted({family_of_name(name) for name in _names(place)})
        if family not in known:
            raise ParenvsError(
                f"family: {place} has no {shown(family)}{did_you_mean(str(family), known)}; "
                f"known: {', '.join(known)}"
            )


def family_of_name(name: str) -> str:
    """Return the family of a problem of a set or a bank."""
    place, _, number = name.partition("/")
    return family_of(place, int(number)) if place in BANKS else family_named(name)


def _names(place: str) -> list[str]:
    """Return the names of a set's problems, or of a bank's."""
    if place in BANKS:
        return [f"{place}/{number}" for number in range(BANKS[place])]
    return [problem.instance for problem in problem_sets()[place]]


def _of_family(place: str, family: str | None) -> list[str]:
    known_family(place, family)
    return [name for name in _names(place) if family in (None, family_of_name(name))]


def _fresh(place: str, family: str | None, stream: Stream) -> Start:
    while True:
        seed = int(stream.rng.integers(BANKS[place], MOST_SEED))
        if family in (None, family_of(place, seed)):
            return start_of(f"{place}/{seed}")
