"""Every answer keeps to what was asked, whatever the planner; what is proven is the best of all."""

from dataclasses import fields

import numpy as np
import pytest
from cases import slow
from drawn_hybrids import (
    best_of_free_stages,
    drawn_hetero,
    drawn_limits,
    drawn_problem,
    drawn_shape,
)

import parenvs
from parenvs.agents.hybrid.exact import exact, exact_hybrid
from parenvs.agents.hybrid.planners import HYBRID_PLANNERS
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.hybrid.space import Constraints

OF_SERVERS = ("subset-dp", "swap-search")


OF_PLAN = (
    "chunks", "context", "expert", "expert_tp", "shard", "schedule", "sequence_parallel",
)  # fmt: skip


def keeps(plan, limits, total):
    """Whether a plan keeps to constraints, asked one by one and not as planners do."""
    first = plan.stages[0]
    samples = plan.micro_batch * first.devices // (first.tp * plan.context)
    rows = []
    for stage in plan.stages:
        dp = stage.devices // (stage.tp * plan.context)
        rows.append(
            limits.tp in (None, stage.tp) and limits.dp in (None, dp)
            and stage.zero in limits.zero and set(stage.modes) <= set(limits.recompute)
            and samples == samples // dp * dp and limits.micro_batch in (None, samples // dp)
            and samples // dp <= limits.most_micro_batch
            and limits.stage_devices in (None, stage.devices)
            and not (limits.shard and stage.zero == 0)
            and not (limits.sequence_parallel and stage.tp == 1)
        )  # fmt: skip
    used = sum(stage.devices for stage in plan.stages)
    alone = [(*stage.layers, stage.devices) for stage in plan.stages]
    return (
        all(rows)
        and limits.pp in (None, len(plan.stages))
        and used == (limits.devices or used if limits.idle else limits.devices or total)
        and all(getattr(limits, name) in (None, getattr(plan, name)) for name in OF_PLAN)
        and all(
            any(found[:-1] == ((begin, end),) and devices in (None, found[-1]) for found in alone)
            for begin, end, devices in limits.pinned
        )
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("agent", "numbers"),
    [
        *((agent, range(12)) for agent in HYBRID_PLANNERS),
        *slow(*((agent, range(12, 100)) for agent in HYBRID_PLANNERS)),
    ],
)
def test_solve__every_planner_keeps_to_all_constraints(agent, numbers):
    answered = 0
    for number in numbers:
        rng = np.random.default_rng([number, 13])
        problem = drawn_hetero(rng, 3) if agent in OF_SERVERS else drawn_shape(rng)
        limits = drawn_limits(rng, problem) if number % 8 else Constraints()
        goal = {"objective": "money", "price": 2.0} if number % 5 == 1 else {}
        try:
            given = {"constraints": limits, "seed": number, "time_limit": 0.2, **goal}
            answer = parenvs.plan(problem, agent, **given)
        except ParenvsError as error:
            assert "its plan is refused" not in str(error), (number, limits, error)
            assert "needs -" not in str(error), error
            continue
        answered += 1
        assert answer.report.legal, (number, answer.report.reasons)
        assert keeps(answer.plan, limits, problem.cluster.devices), (number, limits, answer.plan)
        assert limits.faults(answer.plan) == []
    assert answered


@pytest.mark.parametrize("asked", [item.name for item in fields(Constraints)])
def test_faults__see_every_constraint(asked):
    """Plans that keep to other constraints break these ones, and that is seen."""
    seen = 0
    for number in range(25):
        rng = np.random.default_rng([number, 17])
        problem = drawn_shape(rng)
        try:
            plan = parenvs.plan(problem, "random", seed=number, constraints={"idle": True}).plan
        except InfeasibleError:
            continue
        for _ in range(20):
            limits = drawn_limits(rng, problem)
            chosen = Constraints(**{asked: getattr(limits, asked), "idle": True})
            assert keeps(plan, chosen, 0) == (not chosen.faults(plan)), (chosen, plan)
            seen += bool(chosen.faults(plan))
    assert seen or asked in ("idle", "uneven", "framework")


def draw(number):
    rng = np.random.default_rng([number, 11])
    problem = drawn_shape(rng) if number % 4 else drawn_problem(rng)
    return problem, drawn_limits(rng, problem) if number % 3 else Constraints()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "numbers",
    [
        *(range(k, k + 6) for k in range(0, 36, 6)),
        *slow(*(range(k, k + 50) for k in range(0, 1000, 50))),
    ],
)
def test_exact_hybrid__nothing_beats_it_with_any_constraints(numbers):
    """Sequence parallelism, context and experts among them; stages of tp 1 may share nothing."""
    for number in numbers:
        problem, limits = draw(number)
        best = best_of_free_stages(problem, limits)
        try:
            answer = exact_hybrid(problem, limits)
        except InfeasibleError as error:
            assert best == np.inf, (number, limits, str(error))
            continue
        assert answer.cost == pytest.approx(best, rel=1e-9), (number, limits)
        assert answer.proven and answer.bound == pytest.approx(best, rel=1e-9)
        assert answer.report.legal and keeps(answer.plan, limits, problem.cluster.devices)
        assert exact(problem, limits, simulate=False).cost <= best * (1 + 1e-9)


def test_solve__pins_of_what_is_not_there():
    problem = parenvs.problem("bert-large", "1x4:v100", task="hybrid", batch=16)
    for pin, words in (((0, 25, None), "has layers 0 to 23"), ((0, 2, 8), "v100 has 4 devices")):
        with pytest.raises(ParenvsError, match=words):
            parenvs.plan(problem, constraints={"pinned": (pin,)})
    with pytest.raises(InfeasibleError, match="no plan within memory is one of the 1F1B plans"):
        parenvs.plan(problem, constraints={"pinned": ((0, 2, 3),)})
    whole = parenvs.plan(problem, constraints={"pinned": ((0, 24, 4),), "micro_batch": 4})
    assert [stage.layers for stage in whole.plan.stages] == [((0, 24),)]
    assert whole.plan.stages[0].devices == 4
