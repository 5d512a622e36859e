"""Searches of every task keep to their time limits on large problems, and prove nothing by them."""

import time
from dataclasses import replace
from functools import cache

import pytest
from cases import each

import parenvs
from parenvs.agents.pipeline import exact
from parenvs.core.registry import TASKS
from parenvs.core.request import Budget
from parenvs.errors import InfeasibleError, TimeLimitError

MARGIN = 3.0
"""Processor seconds that preparation, a step of a search and the judge may take beyond a limit,
without compiled loops, too."""
SEARCHES = {  # task -> a large problem, and the planners that search until their time is up
    "partition": ({"source": "t5-11b", "reward": "step_time"}, ("exact",)),
    "pipeline": ({"source": "bert-48", "cluster": "64x8:h100"}, ("exact", "search")),
    "sharding": ({"source": "intra-op-outside/mesh-000"}, ("exact",)),
}


@pytest.mark.slow
@each(
    ("task", "agent"),
    [(task, agent) for task, (_, planners) in SEARCHES.items() for agent in planners],
)
def test_time_limits__are_kept(task, agent):
    problem = parenvs.problem(task=task, **SEARCHES[task][0])
    for limit in (1.0, 0.05):
        begin = time.process_time()
        try:
            answer = parenvs.plan(problem, agent, time_limit=limit)
        except (TimeLimitError, InfeasibleError) as error:
            answer, proven = None, isinstance(error, InfeasibleError)
        else:
            proven = answer.proven
        taken = time.process_time() - begin
        assert taken <= limit + MARGIN, f"{taken:.2f} s of {limit}"
        if answer is not None:
            assert answer.status == ("optimal" if proven else "feasible")
            assert not proven or answer.gap == pytest.approx(0.0, abs=1e-6)


@each(
    ("task", "source"),
    [
        ("partition", "vgg-19"), ("pipeline", "vgg-19"), ("hybrid", "hybrid/7"),
        ("sharding", "intra-op-test/mesh-003"), ("elastic", "elastic-test/bulk-gpt-1.5b-000"),
    ],
)  # fmt: skip
def test_time_limits__are_shared_by_the_searches_of_a_command(task, source):
    kind, problem = TASKS[task].request_class(), parenvs.problem(source, task=task)
    if not hasattr(kind, "time_limit"):
        assert kind(problem).shared(kind(problem).planners) == kind(problem)
        return
    request = kind(problem, time_limit=0.8)
    searching = [x for x in request.planners if x in kind.users["seconds"]]
    for count in range(1, len(searching) + 1):
        one = request.shared([*searching[:count], "random"])
        assert one.time_limit * count == pytest.approx(0.8)
    assert request.shared(["random"]) == request
    assert kind(problem).shared(searching).time_limit is None
    if task == "pipeline":  # an open shape is searched by ``exact``, before the planner searches
        opened = replace(request, clusters=(problem.cluster,))
        assert opened.shared(["search"]).time_limit == pytest.approx(0.4)
        assert opened.shared(["exact"]).time_limit == pytest.approx(0.8)


def test_budget__what_a_search_may_spend():
    for seconds in (None, float("inf")):
        assert Budget(5, seconds=seconds).left(2) == 3
        assert Budget(5, 9, seconds).left(2) == 7 and Budget(5, 9, seconds).left(12) == 0
    assert Budget(5, seconds=60).left(10**9) > 10**9 and Budget(5, 9, 60).left(2) == 7
    assert Budget(5, seconds=-1).left(0) == Budget(5, 9, 0).left(0) == 0
    halved = Budget(5, seconds=60)
    assert halved.end(0.5) == halved.begin + 30 and Budget(5).end(0.5) == float("inf")


@each("stages", [None, 2])
def test_time_limits__leave_out_what_is_compiled(monkeypatch, stages):
    for module in (exact.labels, exact.searches):
        monkeypatch.setattr(module, "prepare", cache(lambda: time.sleep(2.0)))
    problem = parenvs.problem("vgg-19", "A", stages=stages)
    clusters = () if stages else (problem.cluster,)
    request = TASKS["pipeline"].request_class()(problem, clusters=clusters, time_limit=2.0)
    settled, choice = request.settled(["exact"])
    assert choice.answer.proven if choice else settled.run("exact").proven
