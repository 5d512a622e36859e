"""Searches of every task keep to their time limits on large problems, and prove nothing by them."""

import time

import pytest
from cases import each

import parenvs
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
            answer = parenvs.solve(problem, agent, time_limit=limit)
        except (TimeLimitError, InfeasibleError) as error:
            answer, proven = None, isinstance(error, InfeasibleError)
        else:
            proven = answer.proven
        taken = time.process_time() - begin
        assert taken <= limit + MARGIN, f"{taken:.2f} s of {limit}"
        if answer is not None:
            assert answer.status == ("optimal" if proven else "feasible")
            assert not proven or answer.gap == pytest.approx(0.0, abs=1e-6)


def test_budget__what_a_search_may_spend():
    for seconds in (None, float("inf")):
        assert Budget(5, seconds=seconds).left(2) == 3
        assert Budget(5, 9, seconds).left(2) == 7 and Budget(5, 9, seconds).left(12) == 0
    assert Budget(5, seconds=60).left(10**9) > 10**9 and Budget(5, 9, 60).left(2) == 7
    assert Budget(5, seconds=-1).left(0) == Budget(5, 9, 0).left(0) == 0
    halved = Budget(5, seconds=60)
    assert halved.end(0.5) == halved.begin + 30 and Budget(5).end(0.5) == float("inf")
