"""Policies as data: a decision table, a network, a heuristic by name, or recorded runs.

Nothing in them is code, and every size is checked before arrays are built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import numpy as np

from parenvs.agents.elastic.planners import AgentPolicy, of_network
from parenvs.agents.elastic.policies import RULES
from parenvs.agents.learning.network import WEIGHTS, Network
from parenvs.core.leaderboard import PolicyError
from parenvs.errors import ParenvsError, refuse_unknown, shown
from parenvs.fields import Index, one_of, read, words
from parenvs.tasks.elastic.game import ElasticChoice
from parenvs.tasks.elastic.library import EVENTS, MAX_PLANS
from parenvs.tasks.elastic.problem import MAX_INTERVALS, MAX_NODES, Elastic, Moment, Policy, follow
from parenvs.tasks.elastic.problems import MEASURED, load_library

COURSES = 2
"""Courses of a random problem; all policies have the same."""
REFERENCES = ("hindsight", "look-ahead", "optimal")
"""Entries that may be recorded runs: references with knowledge that no policy has, and a slow
heuristic."""
MAX_WIDTH = 256
"""Largest width of a network."""
Plans = list[list[int]]
"""Plans of each course of a problem, interval by interval."""
# Largest weight, so that no sum leaves float32.
_LARGEST = 1e6


@dataclass(eq=False)
class DecisionTable:
    """A decision table: the next plan by event, nodes, and the current plan.

    Attributes:
        choices: name of a library -> (EVENTS, N+1, K) int64, the plan; more nodes than N count as
            N, and plans that need more nodes than there are become 0, to wait.
    """

    choices: Mapping[str, np.ndarray]
    name: str = field(default="table", init=False)
    problem: Elastic = field(init=False)

    def start(self, problem: Elastic) -> None:
        self.problem = problem

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        fits = self.problem.fits(moment.nodes)
        choices = self.choices.get(self.problem.library.name)
        if choices is None or moment.plan >= choices.shape[2]:
            return 0
        nodes = min(moment.nodes, choices.shape[1] - 1)
        plan = int(choices[moment.event, nodes, moment.plan])
        return plan if plan < len(fits) and fits[plan] else 0


RuleName = Annotated[str, one_of(*RULES)]
_Plan = Annotated[int, words(f"a plan from 0 to {MAX_PLANS - 1}", ge=0, lt=MAX_PLANS)]
_Course = Annotated[list[_Plan], words("a list of plans", max_length=MAX_INTERVALS)]
_Courses = Annotated[list[_Course], words("a list of 1 to 64 courses", min_length=1, max_length=64)]


@dataclass(frozen=True)
class Rule:
    """A heuristic of ``parenvs.agents.elastic.policies``, by its name."""

    rule: RuleName


@dataclass(frozen=True)
class RecordedRuns:
    """The choices on the courses of one seed, for references that are no policies.

    Attributes:
        rule: the heuristic that chose them, which plays the courses of other seeds; None if none.
        plans: name of a problem -> plans of each course.
    """

    seed: Index
    rule: RuleName | None
    plans: dict[str, _Courses]


@dataclass(frozen=True)
class _Tables:
    tables: Annotated[
        dict[str, Any], words("an object of 1 to 16 libraries", min_length=1, max_length=16)
    ]


@dataclass(frozen=True)
class _Weights:
    weights: Any


Data: TypeAlias = DecisionTable | AgentPolicy | Rule | RecordedRuns
_KINDS = {"table": _Tables, "network": _Weights, "rule": Rule, "recorded": RecordedRuns}


def read_policy(content: Any, entry: object = None) -> Data:
    """Return the policy of the field ``policy`` of an entry, of unchecked JSON types.

    Raises:
        PolicyError: it is damaged.
    """
    if not isinstance(content, dict):
        raise PolicyError(f"must be an object, not {shown(content)}")
    kind: Any = content.get("kind")
    refuse_unknown("field 'kind' is", kind, _KINDS, PolicyError)
    if kind == "recorded" and entry not in REFERENCES:
        raise PolicyError(
            f"field 'kind' is 'recorded', which is for {', '.join(REFERENCES)}; enter a table, "
            "a network or a rule"
        )
    try:
        policy: Any = read(_KINDS[kind], {key: content[key] for key in content if key != "kind"})
    except ParenvsError as error:
        raise PolicyError(str(error)) from None
    if isinstance(policy, _Tables):
        return _table(policy.tables)
    return _network(policy.weights) if isinstance(policy, _Weights) else policy


def _table(tables: dict[str, Any]) -> DecisionTable:
    choices, known = {}, [load_library(model).name for model in MEASURED]
    for name, rows in tables.items():
        where = f"field 'tables.{name[:60]}'"
        refuse_unknown("field 'tables' is of no library that is played:", name, known, PolicyError)
        array = _numbers(rows, "i", where)
        shape = array.shape
        if array.ndim != 3 or not (
            shape[0] == EVENTS and 1 <= shape[1] <= MAX_NODES + 1 and 1 <= shape[2] <= MAX_PLANS
        ):
            sizes = " x ".join(map(str, shape))
            raise PolicyError(
                f"{where} has {sizes} numbers; it must have {EVENTS} x nodes x plans, at most "
                f"{EVENTS} x {MAX_NODES + 1} x {MAX_PLANS}"
            )
        if array.min() < 0 or array.max() >= shape[2]:
            raise PolicyError(f"{where} names plans out of 0 to {shape[2] - 1}")
        choices[name] = array.astype(np.int64)
    return DecisionTable(choices)


def _network(weights: Any) -> AgentPolicy:
    if not isinstance(weights, dict) or set(weights) != set(WEIGHTS):
        raise PolicyError(f"field 'weights' must have exactly {', '.join(WEIGHTS)}")
    arrays = {}
    for name in WEIGHTS:
        array = _numbers(weights[name], "if", f"field 'weights.{name}'")
        if max(array.shape, default=1) > 4 * MAX_WIDTH:
            raise PolicyError(f"field 'weights.{name}' is wider than a network of {MAX_WIDTH}")
        arrays[name] = array.astype(np.float32)
    try:
        network = Network(arrays, "field 'weights'")
    except (ParenvsError, IndexError, ValueError) as error:
        raise PolicyError(str(error)) from None
    seen = (len(ElasticChoice.columns),), (len(ElasticChoice.contexts),)
    if (network.features, network.contexts) != seen:
        raise PolicyError(
            "field 'weights': the network is not one of ElasticPlan-v2 with its default features"
        )
    return of_network(network)


def _numbers(content: Any, kinds: str, where: str) -> np.ndarray:
    """Return a number, or nested lists of equal lengths, as float64; ``kinds`` are NumPy's."""
    try:
        array = np.array(content)
    except ValueError:
        array = np.empty(0)  # lists of different lengths
    is_known = array.dtype.kind in kinds and array.ndim <= 3 and array.size
    if not is_known or not (np.abs(array) <= _LARGEST).all():
        raise PolicyError(
            f"{where} must be lists of equal length, up to three deep, of finite numbers of at "
            f"most {_LARGEST:g}"
        )
    return array.astype(np.float64)


def seeds(problem: Elastic, seed: int) -> range:
    """Return the seeds of a problem's courses for the checker's ``seed``; see ``Elastic.drawn``."""
    count = COURSES if problem.is_random else 1  # a trace has one course
    return range(seed * COURSES, seed * COURSES + count)


def play(
    policy: DecisionTable | AgentPolicy | Rule, problems: dict[str, Elastic], seed: int
) -> dict[str, Any]:
    """Return the plans that a policy chooses on the courses of each problem, by the problem's name.

    Args:
        policy: the policy.
        problems: name -> problem.
        seed: the checker's seed, which selects the courses.
    """
    player: Policy = RULES[policy.rule]() if isinstance(policy, Rule) else policy
    choices = {}
    for name, problem in problems.items():
        runs = [follow(problem, problem.drawn(x), player) for x in seeds(problem, seed)]
        choices[name] = [run.chosen.tolist() for run in runs]
    return choices
