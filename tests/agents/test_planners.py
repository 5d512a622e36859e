"""``plan`` and its answers: the same for every task and planner."""

import pytest
import toys
from cases import each

import parenvs
from parenvs.agents import planners
from parenvs.agents.learning.options import TRAINED
from parenvs.agents.partition.planners import PARTITION_PLANNERS
from parenvs.agents.pipeline.planners import PIPELINE_PLANNERS
from parenvs.cli.options import flags_of
from parenvs.core.registry import TASKS
from parenvs.errors import InfeasibleError, ParenvsError, TimeLimitError


def untrained(names):
    return [name for name in names if name not in TRAINED]


@pytest.fixture(scope="module")
def pipeline():
    return parenvs.problem("vgg-19", cluster="B")


@pytest.mark.parametrize("agent", untrained(PIPELINE_PLANNERS))
def test_solve__every_planner_of_pipelines(pipeline, agent):
    answer = planners.plan(pipeline, agent, steps=600)
    assert (answer.method, answer.plan.instance) == (agent, "vgg-19")
    assert answer.report.plan == answer.plan
    assert answer.report.length_seconds == pytest.approx(answer.cost)
    assert answer.proven == agent.startswith("exact")
    assert (answer.bound == answer.cost) == answer.proven
    assert (answer.bound is None) == (not answer.proven and agent != "search")
    if answer.report.legal:
        assert answer.value == answer.report.value
    assert agent in str(answer)


@pytest.mark.slow
@each("task", [name for name, task in TASKS.items() if {*TRAINED} & {*task.planners}])
def test_solve__no_episode_within_the_steps(task):
    for agent in TRAINED:
        with pytest.raises(TimeLimitError, match=f"{agent} ended no episode; give it more --steps"):
            planners.plan(parenvs.problem("vgg-19", "C", task=task), agent, steps=1)


@each("scope", ["inputs", "variables"])
@each("reward", ["paper", "step_time"])
def test_solve__every_planner_of_partitions(scope, reward):
    problem = parenvs.problem("vgg-19", task="partition", scope=scope, reward=reward)
    best = planners.plan(problem)
    assert best.proven
    for agent in untrained(PARTITION_PLANNERS):
        if (agent, scope) == ("expert", "inputs"):  # dense layers are split by their weights
            with pytest.raises(InfeasibleError, match="scope inputs does not decide them"):
                planners.plan(problem, agent)
            continue
        answer = planners.plan(problem, agent, steps=600)
        if agent in ("expert", "data-parallel") and (scope, reward) != ("variables", "step_time"):
            continue  # what they split is not all of it what the plan can name
        assert (answer.method, answer.plan.scope) == (agent, scope)
        assert answer.report.legal
        assert answer.report.value == pytest.approx(answer.value, rel=1e-12)
        assert answer.report.gap(best) >= -1e-12
        assert (answer.report.gap(best) < 1e-9) == (answer.value == pytest.approx(best.value))


@pytest.mark.thorough
def test_solve__agents_train_on_own_objects():
    pytest.importorskip("sb3_contrib")
    toy = toys.dense()
    answer = planners.plan(toy.pipeline, "ppo", steps=512)
    assert answer.report.legal
    assert answer.cost <= planners.plan(toy.pipeline, "even").cost * (1 + 1e-12)


@each(
    ("arguments", "options", "words"),
    [
        (("exat",), {}, "unknown agent 'exat'.*did you mean 'exact'.*known: exact, "),
        ((), {"time_limt": 1}, "has no option 'time_limt'.*did you mean 'time_limit'"),
        ((), {"memory_limit": 1e9}, "a plan of this problem has no option 'memory_limit'"),
    ],
)
def test_solve__errors(pipeline, arguments, options, words):
    with pytest.raises(ParenvsError, match=words):
        planners.plan(pipeline, *arguments, **options)


def test_solve__refuses_what_is_no_problem():
    with pytest.raises(ParenvsError, match="plan takes a problem, not 't5-3b'; make one with"):
        planners.plan("t5-3b")


def test_problem__errors():
    for arguments, options, words in (
        (("t5-3c",), {}, "unknown instance 't5-3c'.*did you mean 't5-3b'"),
        (("t5-3b", "C", "pipelines"), {}, r"unknown task 'pipelines' \(did you mean 'pipeline'"),
        (("t5-3b", "C", "pipeline-cut"), {}, "'pipeline-cut'; it is called task 'pipeline'$"),
        (("t5-3b", None, "data-parallel"), {}, "it is called task 'partition', scope 'inputs'$"),
        (("t5-3b",), {"stage": 3}, "task pipeline has no option 'stage'.*stages"),
        (("t5-3b",), {"stages": 0}, "stages must be a whole number from 1, not 0"),
        (("t5-3b",), {"stages": 99}, "only 32 devices"),
        (("t5-3b", None, "partition"), {"stages": 3}, "task partition has no option 'stages'"),
    ):
        with pytest.raises(ParenvsError, match=words):
            parenvs.problem(*arguments, **options)


def test_users__are_planners_and_options_of_the_task():
    for task in TASKS.values():
        kind = task.request_class()
        known = {"seed", "steps", *flags_of(task, ("search",)), "uneven", "stage-devices"}
        known.add("sequence-parallel")
        assert set(kind.users) <= known, task.name
        for flag, users in kind.users.items():
            assert set(users) <= set(kind.planners), (task.name, flag)


def test_compare__answers_and_errors_by_planner():
    problem = parenvs.problem("llama3-8b", "1x2:h100", task="hybrid", batch=2)
    answers = parenvs.compare(problem, ["rule-of-thumb", "random"])
    assert list(answers) == ["rule-of-thumb", "random"]
    assert all(isinstance(answer, InfeasibleError) for answer in answers.values())
    chain = parenvs.compare(parenvs.problem("vgg-19", "A"), ["even", "exact"])
    assert chain["exact"].cost < chain["even"].cost
    with pytest.raises(ParenvsError, match="no option 'speed'"):
        parenvs.compare(problem, speed=1)


def test_explain__a_plan_and_its_file(tmp_path):
    answer = parenvs.plan(parenvs.problem("vgg-19", "1x2:v100", task="partition"))
    path = tmp_path / "plan.json"
    answer.plan.save(path)
    words = parenvs.explain(path)
    assert parenvs.explain(answer.plan) == words
    one = answer.plan.partition.keys() & {*words.split()}
    assert len(parenvs.explain(path, pattern=min(one)).splitlines()) < len(words.splitlines())
