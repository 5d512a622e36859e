"""What arXiv 2007.04069 says of operator partitioning, on the shipped graphs."""

import re
from dataclasses import replace
from functools import cache

import pytest
from cases import slow
from expert_names import expert_dimensions

from parenvs import from_jax
from parenvs.agents.partition.exact import exact_partition
from parenvs.cluster import choose_cluster
from parenvs.errors import InfeasibleError
from parenvs.instances import PAPER
from parenvs.tasks.partition.classes import RULE_SETS
from parenvs.tasks.partition.game import PartitionSpace
from parenvs.tasks.partition.problem import Partitioning, load_partitioning

SIX = "t5 6+6"
T5 = ("t5-base", "t5-3b", "t5-11b", SIX)
OPTIMA = {  # partitioned variable dimensions: shardy, automap
    "vgg-19": (29, 27),
    "t5-base": (343, 218),
    "t5-3b": (679, 434),
    "t5-11b": (679, 434),
    "bert-48": (486, 484),
    SIX: (175, 110),
}
EXPERT = {"t5-base": 216, "t5-3b": 432, "t5-11b": 432, SIX: 108}
TABLE_3 = {
    **{f"{block}/{key}": 1 for block in ("self", "cross") for key in "qkv"},
    "self/o": 0,
    "cross/o": 0,
    "conv1/kernel": 1,
    "conv1/bias": 0,
    "conv2/kernel": 0,
}
POSITIONS = {"encoder/positions": 1, "decoder/positions": 1}
TABLE_4 = {
    "fc1/kernel": 1,
    "fc1/bias": 0,
    "fc2/kernel": 0,
    "predictions/kernel": 1,
    "predictions/bias": 0,
}


@cache
def problem(name, rules="shardy"):
    if name != SIX:
        return load_partitioning(name, choose_cluster(), rules)
    pytest.importorskip("jax")
    return Partitioning.build(six_layers(), choose_cluster(), rules)


@cache
def six_layers():
    from parenvs.datasets.models import t5, train_step

    function, args = train_step(t5(6))
    return from_jax(function, *args, name=SIX)


@cache
def best(name, rules="shardy"):
    """The optimum of the paper's reward."""
    return exact_partition(problem(name, rules))


def partition_of(name, rules="shardy"):
    return problem(name, rules).partition(best(name, rules).report.chosen, "variables")


def judged(problem, partition, complete=True):
    """What the judge says of variables, with what belongs to their classes if ``complete``."""
    chosen = problem.chosen(partition)
    plan = problem.plan(chosen)
    whole = {**partition, **(plan.partition if complete else {}), **partition}
    return problem.report(replace(plan, partition=whole))


def table_3(problem):
    """Path -> dimension of the variables of Table 3, in every layer."""
    found = {}
    for path in (problem.graph.paths[i] for i in problem.graph.variables):
        match = re.fullmatch(r"(?:encoder|decoder)/layer_\d+/(.+)", path)
        if match and match[1] in TABLE_3:
            found[path] = TABLE_3[match[1]]
    return found


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("name", ["vgg-19", "t5-base", *slow("t5-3b", "t5-11b", "bert-48", SIX)])
def test_optimum__partitioned_dimensions(name, rules):
    answer, dims = best(name, rules), len(problem(name, rules).dimensions("variables"))
    split = OPTIMA[name][RULE_SETS.index(rules)]
    assert answer.status == "optimal"
    assert answer.value == pytest.approx(0.1 * dims + 0.3 * split)
    assert answer.bound == pytest.approx(answer.value)
    report = judged(problem(name, rules), partition_of(name, rules))
    assert report.legal
    assert report.partitioned_dimensions == report.variables == split
    assert report.gap(answer) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", [T5[0], *slow(*T5[1:])])
def test_t5__automap_optimum_is_the_expert_plan(name):
    """Table 3 and the relative-position tables, and nothing else."""
    named = table_3(problem(name, "automap"))
    assert len(named) == EXPERT[name]
    assert partition_of(name, "automap") == {**named, **POSITIONS}


@pytest.mark.parametrize("name", [T5[0], *slow(*T5[1:])])
def test_t5__shardy_optimum_splits_the_residual_width(name):
    """The reward does not prefer the expert plan: none of it is in the optimum."""
    found, named = partition_of(name), table_3(problem(name))
    assert not found.items() & named.items()
    assert found["embedding"] == found["encoder/layer_0/conv2/kernel"] == 1
    assert found["encoder/layer_0/self/q"] == found["decoder/norm/scale"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("name", ["t5-base", *slow(SIX)])
def test_table_3__every_variable_is_legal(name, rules):
    one = problem(name, rules)
    for path, dimension in table_3(one).items():
        assert one.legal(one.chosen({path: dimension})), path


def test_table_4__dense_part_is_legal():
    report = judged(problem("vgg-19"), TABLE_4, complete=False)
    assert report.legal, report.reasons
    assert report.variables == 5
    assert TABLE_4.items() <= partition_of("vgg-19").items()


def test_table_4__fc2_bias_is_a_conflict():
    one = problem("vgg-19")
    report = judged(one, {**TABLE_4, "fc2/bias": 0}, complete=False)
    assert len(report.reasons) == 2
    for reason, name, rival in zip(
        report.reasons,
        ("fc2", "predictions"),
        ("dimension 1 of fc1/kernel", "dimension 1 of predictions/kernel"),
        strict=True,
    ):
        assert rival in reason
        assert "dimension 0 of fc2/bias" in reason
        assert f"dot (jit(step)/jvp({name})/dot_general) would split both" in reason


def test_table_4__automap_blocks_the_classes_of_the_softmax():
    one = problem("vgg-19", "automap")
    legal = {p for p, d in TABLE_4.items() if judged(one, {p: d}).legal}
    assert legal == {"fc1/kernel", "fc1/bias", "fc2/kernel"}
    assert judged(one, {p: TABLE_4[p] for p in legal}).legal
    (reason,) = judged(one, {"predictions/bias": 0}, complete=False).reasons
    assert re.search(r"reduce \(.*log_softmax.*\) cannot split dimension 1 of f32", reason)


@pytest.mark.thorough
@pytest.mark.parametrize("rules", RULE_SETS)
def test_bert__optimum_contains_megatron(rules):
    found, named = partition_of("bert-48", rules), expert_dimensions(problem("bert-48").graph)
    assert len(named) == 480
    assert named.items() <= found.items()
    more = {"embeddings/types", "next_sentence/kernel", "pooler/bias", "pooler/kernel"}
    if rules == "shardy":
        more |= {"embeddings/words", "mlm/output_bias"}
    assert found.keys() - named.keys() == more


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*PAPER, *slow(SIX)])
def test_table_6__the_batch_dimension_of_every_input(name):
    one = replace(problem(name), scope="inputs")
    answer = exact_partition(one)
    inputs = {one.graph.paths[i]: 0 for i in one.inputs}
    assert one.partition(answer.report.chosen) == inputs
    plan = answer.plan
    assert plan.partition == inputs
    assert one.report(plan).legal


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["t5-base", "bert-48"])
def test_table_6__automap_has_no_batch_dimension(name):
    """The loss is a mean over the batch, a reduce."""
    with pytest.raises(InfeasibleError, match="no dimension of any batch input"):
        PartitionSpace.of(replace(problem(name, "automap"), scope="inputs"), False)
