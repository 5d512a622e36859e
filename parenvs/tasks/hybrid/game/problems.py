"""Where the problems of ``HybridPlan-v0`` come from: a name, a set, or a generator's seeds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from parenvs.cluster import Cluster
from parenvs.core.problem import problem as load_problem
from parenvs.core.sets import family_named
from parenvs.datasets.hybrid import drawing
from parenvs.datasets.hybrid.servers import TIERS
from parenvs.datasets.hybrid.servers import family_of as hetero_family_of
from parenvs.envs.base import PLAYED, is_sequential
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shipped import problem_sets
from parenvs.tasks.hybrid.turns.game import Setting
from parenvs.tasks.hybrid.turns.rules import Rules

GENERATORS = (drawing.TIER, *TIERS)
"""Names of generators; their problems are called ``NAME/SEED``."""
HETERO = "hetero"
"""Value of ``cluster`` that stands for the generator ``hetero-32``."""
POOL = 2048
"""Seeds of a generator that are drawn by default."""
KEPT = 4096
"""Problems whose look-up tables are kept; a larger ``pool`` makes them again and again."""

_kept: OrderedDict[tuple[str, Rules], Setting] = OrderedDict()


def setting_of(name: str, rules: Rules, problem: Hybrid | None = None) -> Setting:
    """Return a drawn or shipped problem's look-up tables, made once.

    Args:
        name: of the problem.
        rules: what plans have in common.
        problem: the problem itself, if it is at hand.
    """
    key = (name, rules)
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key]
    found = Setting(load_problem(name, task="hybrid") if problem is None else problem, rules)
    _kept[key] = found
    while len(_kept) > KEPT:
        _kept.popitem(last=False)
    return found


class HybridProblems:
    """The problems of one environment.

    Attributes:
        source: a generator or a set that is drawn from, or empty.
        fixed: the only problem, or None.
        sequential: whether problems are played in their order.
        numbers: numbers of the source's problems that are drawn.
    """

    def __init__(
        self,
        rules: Rules,
        instance: Any = None,
        cluster: Any = None,
        pool: int = POOL,
        order: str = PLAYED[0],
        family: str | None = None,
        problem: Hybrid | None = None,
        **options: Any,
    ) -> None:
        """Find out what is meant, and load what is fixed; see ``HybridPlanEnv`` for the arguments.

        Raises:
            ParenvsError: an argument is impossible, or goes with no other.
        """
        self.rules, self.source = rules, ""
        self.sequential = is_sequential(order)
        self.numbers: Sequence[int] = range(1)
        self.fixed: Setting | None = None
        if type(pool) is not int or not 1 <= pool <= 2**31:
            raise ParenvsError(f"pool must be a whole number from 1, not {shown(pool)}")
        if isinstance(cluster, str) and cluster == HETERO:
            instance, cluster = instance or f"{HETERO}-32", None
        if problem is not None:
            if not isinstance(problem, Hybrid):
                raise ParenvsError(f"problem must be a parenvs.Hybrid, not {shown(problem)}")
            self._check_drawing(family)
            self.fixed = Setting(problem, rules)
            return
        instance = drawing.TIER if instance is None else instance
        if isinstance(instance, str) and (instance in GENERATORS or instance in problem_sets()):
            given = {key: value for key, value in {"cluster": cluster, **options}.items()
                     if value is not None}  # fmt: skip
            if given:
                raise ParenvsError(
                    f"{', '.join(given)}: problems of {instance} have settings of their own; leave "
                    "it out, or name one instance"
                )
            self.source = instance
            self.numbers = self._numbers(pool, family)
            return
        self._check_drawing(family)
        self.fixed = self.named(instance, cluster, **options)

    def named(self, instance: Any, cluster: Any = None, **options: Any) -> Setting:
        """Return a problem by its name or path, with its settings."""
        if cluster is not None:
            cluster = Cluster.parse(cluster)
        return Setting(load_problem(instance, cluster, task="hybrid", **options), self.rules)

    def draw(self, rng: np.random.Generator, played: int) -> Setting:
        """Return the fixed problem, or draw one.

        Args:
            rng: generator of the environment.
            played: problems since the last seed, by which a set is played in its order.
        """
        if self.fixed is not None:
            return self.fixed
        return self.numbered(self.number(rng, played))

    def number(self, rng: np.random.Generator, played: int) -> int:
        """Draw the number of a problem of the source; arguments as of ``draw``."""
        place = played % len(self) if self.sequential else int(rng.integers(len(self)))
        return self.numbers[place]

    def numbered(self, number: int) -> Setting:
        """Return a problem of the source by its number."""
        if self.source in GENERATORS:
            return setting_of(f"{self.source}/{number}", self.rules)
        problem = problem_sets()[self.source][number]
        return setting_of(problem.instance, self.rules, problem)

    def __len__(self) -> int:
        """Return the number of problems that can be drawn."""
        return len(self.numbers)

    def _numbers(self, pool: int, family: str | None) -> Sequence[int]:
        """Return the numbers of the source's problems, or of those of a family.

        Raises:
            ParenvsError: there are none of the family.
        """
        drawn = self.source in GENERATORS
        count = pool if drawn else len(problem_sets()[self.source])
        if family is None:
            return range(count)
        if drawn:
            name = drawing.family_of if self.source == drawing.TIER else hetero_family_of
            families = [name(number) for number in range(count)]
        else:
            families = [family_named(one.instance) for one in problem_sets()[self.source]]
        numbers = [number for number, one in enumerate(families) if one == family]
        if not numbers:
            known = sorted(set(families))
            raise ParenvsError(
                f"family: {self.source} has no {shown(family)}{did_you_mean(str(family), known)}; "
                f"known: {', '.join(known)}"
            )
        return numbers

    def _check_drawing(self, family: str | None) -> None:
        """Raise an error for arguments about drawing, as the problem is fixed.

        Raises:
            ParenvsError: one is given.
        """
        for name, given in (("family", family is not None), ("order", self.sequential)):
            if given:
                raise ParenvsError(f"{name}: one problem is played; leave it out")
