"""Policies on nodes that come and go: task ``elastic``, whose entries are policies, not plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.agents.elastic.formats import Plans, RecordedRuns, Rule, play, read_policy, seeds
from parenvs.agents.elastic.policies import AHEAD, RULES, LookAhead, optimal
from parenvs.agents.learning.network import Network
from parenvs.core.leaderboard import (
    ONE,
    OPTIMAL,
    Description,
    Figure,
    Instances,
    Policies,
    Reference,
    TaskKind,
    TaskProblem,
)
from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError
from parenvs.tasks.elastic.problem import (
    Elastic,
    Policy,
    PolicyReport,
    Run,
    follow,
    hindsight,
    replay,
)
from parenvs.tasks.elastic.problems import (
    ELASTIC_SETS,
    MEASURED,
    TRACES,
    Markov,
    elastic_rows,
    load_elastic,
    load_library,
)

KIND = "elastic"
MEAN = "elastic-train"
"""The set whose mean chain the table ``mean-chain`` is optimal on."""


class ElasticProblem(TaskProblem):
    """Nodes that come and go; settings: tier, model, courses, seed, and of chains the optimum."""

    decisions = ()

    def views(self, report: PolicyReport) -> Sequence[Run]:
        return report.runs

    def empty_plan(self) -> Plan:
        """Raise an error: no plan file answers the problem.

        Raises:
            ParenvsError: always.
        """
        raise ParenvsError(f"{self.name}: a policy answers it, no plan does")

    @cached_property
    def head(self) -> dict[str, Any]:
        """What names the problem; there are no plan files."""
        return {"instance": self.instance, "fingerprint": self.fingerprint}

    @property
    def seed(self) -> int:
        """The checker's seed, which decides the courses."""
        return int(self.settings["seed"])

    @cached_property
    def courses(self) -> list[Any]:
        """The courses."""
        return [self.target.drawn(number) for number in seeds(self.target, self.seed)]

    @property
    def place(self) -> str:
        """Instance, courses and intervals, in words."""
        many = len(self.courses)
        return (
            f"{self.instance}, {many} course{'s' * (many > 1)} of {self.target.intervals} intervals"
        )

    def replayed(self, plans: Plans, policy: str) -> PolicyReport:
        """Judge what was chosen on each course.

        Raises:
            ValueError: a course is missing or too short, or a plan does not fit the nodes.
        """
        if len(plans) != len(self.courses):
            raise ValueError(f"{len(plans)} courses were played; there are {len(self.courses)}")
        runs = []
        for course, chosen in zip(self.courses, plans, strict=True):
            if len(chosen) != self.target.intervals:
                raise ValueError(f"{len(chosen)} of {self.target.intervals} intervals were played")
            runs.append(replay(self.target, course, chosen, policy))
        return PolicyReport(tuple(runs))

    def cost(self, report: PolicyReport) -> float:
        return 1.0 - report.share

    def decided(self, report: PolicyReport) -> Any:
        return [run.plans.tolist() for run in report.runs]

    def score(self, cost: float) -> float:
        """Return the share of the hindsight optimum's samples; 0 for less than nothing."""
        return min(max((1.0 - cost) / (1.0 - self.reference.cost), 0.0), 1.0)

    def trivial_cost(self) -> float:
        return 1.0

    def hindsight(self) -> PolicyReport:
        """Return the most that can be earned on the courses, each known beforehand."""
        return PolicyReport(tuple(hindsight(self.target, course) for course in self.courses))

    def played(self, policy: Policy) -> PolicyReport:
        """Return what a policy earns on the courses."""
        return PolicyReport(tuple(follow(self.target, course, policy) for course in self.courses))

    def solved(self, seconds: float) -> Reference:
        """See ``TaskProblem.solved``: the hindsight optimum, which no policy exceeds."""
        cost = self.cost(self.hindsight())
        return Reference(cost, cost, OPTIMAL, "hindsight")

    def found(self) -> dict[str, Any]:
        """See ``TaskProblem.found``: of a chain, what the optimal policy earns.

        ``expected`` is its proven expected return, ``optimal`` its share on these very courses.
        """
        if not isinstance(self.target.source, Markov):
            return {}
        best = optimal(self.target)
        shares = {"expected": best.value, "optimal": self.played(best).share}
        return {key: float(f"{value:.9g}") for key, value in shares.items()}

    def redrawn(self, seed: int) -> ElasticProblem:
        """Return the problem with the courses of another seed, and their hindsight optimum."""
        if seed == self.seed:
            return self
        settings = {k: v for k, v in self.settings.items() if k not in ("expected", "optimal")}
        other = replace(self, settings={**settings, "seed": seed})
        return replace(other, reference=other.solved(0.0))

    def words(self, cost: float) -> str:
        return f"{100 * cost:.2f} %"


def _of_optimal(pairs: list[tuple[TaskProblem, float | None]]) -> float | None:
    shares = [
        (1.0 - (1.0 if cost is None else cost)) / problem.settings["optimal"]
        for problem, cost in pairs
        if "optimal" in problem.settings
    ]
    return float(np.mean(shares)) if shares else None


OF_OPTIMAL = Figure(
    "of the optimal policy",
    "mean over the chains of samples / those of the proven optimal policy on the same courses; "
    "that policy is optimal in expectation, so a lucky one can have more than 1",
    _of_optimal,
)
"""The figure of chains, whose optimal policy is known."""


def problems(instances: Instances = None) -> Iterator[ElasticProblem]:
    """Yield the problems without references: all of the test set, and the traces."""
    rows = elastic_rows(ELASTIC_SETS[2])
    named = [
        (f"{ELASTIC_SETS[2]}/{name}", name.split("-")[0], row.model) for name, row in rows.items()
    ]
    named += [(f"{trace}/{model}", "traces", model) for trace in TRACES for model in MEASURED]
    for name, tier, model in named:
        if instances is not None and name not in instances:
            continue
        target = load_elastic(name)
        settings = {"tier": tier, "model": model, "courses": len(seeds(target, 0)), "seed": 0}
        bare = ElasticProblem(name, KIND, "", name, "", settings, trivial=1.0)
        yield replace(bare, fingerprint=bare.fingerprint_of(target))


AGENTS: dict[str, Description] = {
    "keep-degrees": Description(
        "Elastic data parallelism: tensor and pipeline degrees stay those of the first choice.",
        "",
        ONE,
    ),
    "fastest": Description("The fastest plan that fits, whatever the change costs.", "", ONE),
    "myopic": Description("The plan that earns most in this interval, with its change.", "", ONE),
    "hysteresis": Description("Changes if it must, or to a plan that is a tenth faster.", "", ONE),
    "look-ahead": Description(
        f"The most samples over {AHEAD} intervals, as Parcae looks ahead, with nodes as the last "
        "hour's trend predicts them and departures from a prior. Recorded runs of the rule.",
        "https://www.usenix.org/conference/nsdi24/presentation/duan",
        f"{AHEAD} intervals ahead",
    ),
    "mean-chain": Description(
        f"A table: the optimal policy on the mean chain of {MEAN}, half an episode from the end.",
        "",
        "value iteration beforehand",
    ),
    "optimal": Description(
        "Reference: on each chain its proven optimal policy, which knows the chain; on traces, "
        "which have none, look-ahead. Recorded runs.",
        "",
        "value iteration on each problem",
    ),
    "hindsight": Description(
        "Reference: the most that can be earned on each course, known beforehand. Recorded runs.",
        "",
        "dynamic programming on each course",
    ),
}
"""The project's policies: heuristics, a table, and two references."""


def _mean_chain() -> dict[str, Any]:
    chains = [row.chain for row in elastic_rows(MEAN).values()]
    # Means of the training set; a bulk preemption counts as its expected departures.
    leave = np.mean([np.mean(chain.leave) + chain.bulk * chain.severity for chain in chains])
    join = np.mean([np.mean(chain.join) for chain in chains])
    nodes = max(chain.nodes for chain in chains)
    mean = Markov(nodes, nodes // 2, (float(leave),), (float(join),))
    tables = {}
    for model in MEASURED:
        library = load_library(model)
        best = optimal(Elastic(library, mean, name=f"mean/{model}"))
        half = best.problem.intervals // 2
        choice = best.change[half].astype(int)
        keeps = best.stays[half, :, :, 0]
        choice[0] = np.where(keeps, np.arange(len(library)), choice[0])
        tables[library.name] = choice.tolist()
    return {"kind": "table", "tables": tables}


def _recorded(
    play: Callable[[ElasticProblem], PolicyReport], rule: str | None = None
) -> dict[str, Any]:
    plans = {
        problem.name: [run.chosen.tolist() for run in play(problem).runs] for problem in problems()
    }
    return {"kind": "recorded", "seed": 0, "rule": rule, "plans": plans}


def _best_policy(problem: ElasticProblem) -> PolicyReport:
    target = problem.target
    is_chain = isinstance(target.source, Markov)
    return problem.played(optimal(target) if is_chain else LookAhead())


def policy(agent: str) -> dict[str, Any]:
    """Return one of the project's policies as JSON types; see ``TaskKind.policy``."""
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "mean-chain": _mean_chain,
        "look-ahead": lambda: _recorded(lambda x: x.played(LookAhead()), "look-ahead"),
        "optimal": lambda: _recorded(_best_policy),
        "hindsight": lambda: _recorded(ElasticProblem.hindsight),
    }
    return makers[agent]() if agent in makers else {"kind": "rule", "rule": agent}


def trained(path: Path) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """Return the policy of a trained network, a ``.npz`` file; see ``Policies``.

    Raises:
        ParenvsError: the file cannot be read, or its weights are wrong.
    """
    weights = Network.load(path).weights
    lists = {name: array.astype(float).round(7).tolist() for name, array in weights.items()}
    policy = {"kind": "network", "weights": lists}
    return policy, "A trained network that rates the candidates.", (f"other: {MEAN}",)


def chosen(policy: Any, problems: list[Any], seed: int) -> dict[str, Any] | str:
    """Return what a policy chooses; see ``Policies.choose``."""
    if isinstance(policy, RecordedRuns) and policy.seed == seed:
        return dict(policy.plans)
    if isinstance(policy, RecordedRuns):
        if policy.rule is None:
            return f"it is recorded for seed {policy.seed}, not {seed}"
        policy = Rule(policy.rule)
    return play(policy, {problem.instance: problem.target for problem in problems}, seed)


assert set(RULES) <= set(AGENTS)
TASKS = {
    KIND: TaskKind(
        title="Choose plans for a job on nodes that come and go, with a policy (docs/elastic.md).",
        kind=KIND,
        cost="share of the ideal samples that is lost, the ideal being the fastest plan with free "
        "changes",
        trivial="to wait: nothing is trained",
        problem=ElasticProblem,
        problems=problems,
        agents=AGENTS,
        figures=(OF_OPTIMAL,),
        docs="elastic",
        policy=policy,
        policies=Policies(read_policy, chosen, trained),
        mean="arithmetic",
        scoring="The reference is the hindsight optimum of the same courses. Score of a problem: "
        "samples / those of the reference, 0 if that is less than nothing; of the task: the "
        "arithmetic mean.",
    )
}
