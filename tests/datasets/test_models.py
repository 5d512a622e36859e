"""The shipped models: published sizes, files, roles and phases, and plans of them."""

from collections import Counter

import numpy as np
import pytest
from cases import each, slow
from published_models import published

from parenvs import Pipeline, judge, load_graph, load_profile, problem
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.pipeline.exact import exact_full
from parenvs.cluster import Cluster
from parenvs.errors import InfeasibleError
from parenvs.graph.checks import ELEMENT_TYPES
from parenvs.graph.graph import Phase, Role
from parenvs.instances import PAPER, manifest, names
from parenvs.tasks.partition.problem import load_partitioning

pytestmark = pytest.mark.thorough

MODERN = [name for name in names() if name not in PAPER]
PLANNED = ("llama3-8b", "mixtral-8x7b-scanned", "resnet-50", "unet-sd1", "big-lstm", "dlrm-criteo")
"""Of each kind one."""
TOO_LARGE = ("mixtral-8x7b-scanned", "dlrm-criteo")
"""Models that are too large for two servers: of DLRM one table with its gradient for a device."""
LARGE = [name for name in MODERN if "70b" in name or "175b" in name]
SIZED = [*(name for name in MODERN if name not in LARGE), *slow(*LARGE)]


def entry(name):
    return manifest()["instances"][name]


@each("name", names())
def test_models__published_sizes(name):
    """Parameters and FLOPs of the files against those of papers and model cards."""
    known, graphs = published(name), entry(name)["graphs"]
    for graph in graphs.values():
        assert graph["parameters"] == pytest.approx(known.parameters, rel=known.tolerance)
    one = graphs["forward"]["flops"] / entry(name)["batch_size"]
    assert one == pytest.approx(known.flops, rel=known.flops_tolerance)
    # Three forward passes, and what the backward pass computes again.
    assert 2.95 < graphs["train"]["flops"] / graphs["forward"]["flops"] < 3.15
    assert entry(name)["source"]
    assert name in PAPER or entry(name)["trained_as"]


@pytest.mark.parametrize("name", SIZED)
def test_models__roles_and_phases(name):
    """Every input is what it stands for, and float32 where it is kept from step to step."""
    graph = load_graph(name)
    roles = dict(zip(graph.paths, graph.parameter_role.tolist(), strict=True))
    kinds = graph.element_type[graph.parameter_tensor].tolist()
    counts = Counter(roles.values())
    arguments = graph.parameter_argument.tolist()
    moments = {"adam": 2, "adamw": 2, "momentum": 1, "adagrad": 1, "descent": 0}
    expected = moments[entry(name)["optimizer"]]
    roles_of = zip(arguments, graph.parameter_role.tolist(), kinds, graph.paths, strict=True)
    first = arguments[0]
    for argument, role, kind, path in roles_of:
        assert (argument == first) == (role == Role.VARIABLE), path
        if role in (Role.VARIABLE, Role.OPTIMIZER, Role.STATISTICS):
            assert ELEMENT_TYPES[kind][0] == "f32", path
    variables = len(graph.variables)
    assert Counter(graph.parameter_role.tolist())[Role.OPTIMIZER] == expected * variables
    assert (counts[Role.STATISTICS] > 0) == (manifest()["instances"][name]["family"] == "resnet")
    assert graph.batch_size == entry(name)["batch_size"]
    assert set(graph.phase.tolist()) == set(Phase)
    assert not graph.notes
    forward = load_graph(name, "forward")
    assert [forward.paths[i] for i in forward.variables] == [
        graph.paths[i] for i in graph.variables
    ]
    assert set(forward.phase.tolist()) == {Phase.FORWARD}
    # Products are bfloat16: those of the forward pass, by FLOPs, but for what is written otherwise.
    dots = np.flatnonzero(np.isin(forward.opcode, [forward.opcodes.index("dot")]))
    _, made = forward.makes(dots)
    kind = np.array([ELEMENT_TYPES[k][0] for k in forward.element_type[made]])
    assert forward.flops[dots][kind != "bf16"].sum() <= 0.001 * forward.total_flops


@pytest.mark.parametrize("name", SIZED)
def test_models__casts_cross_no_cut(name):
    """The bfloat16 copies that are made at the start are not sent from stage to stage.

    Only the weight that the model reads first belongs to its cast, which stands right before.
    """
    profile = load_profile(name, "C")
    casts = np.flatnonzero(["/cast/" in text for text in profile.names])
    assert casts.tolist() == list(range(len(casts)))
    own = profile.parameter_bytes[casts]
    assert (own > 0).sum() <= 1
    scale = profile.micro_batch / entry(name)["batch_size"]
    assert profile.cut_bytes[casts].max() <= own.max() / 2 * scale
    assert profile.parameter_bytes.sum() == 4 * entry(name)["graphs"]["train"]["parameters"]


@pytest.mark.parametrize(
    "name",
    [
        x
        if x in ("resnet-50", "big-lstm", "dlrm-criteo")
        else pytest.param(x, marks=pytest.mark.slow)
        for x in PLANNED
    ],
)
def test_models__exact_plans(name):
    """A partition of one server is proven, legal and faster than none; so is a pipeline."""
    partitioning = load_partitioning(name, "1x8:a100", reward="step_time")
    answer = exact_partition(partitioning)
    report = answer.report
    assert answer.proven
    assert report.legal
    assert report.step_seconds < 0.5 * partitioning.replicate_seconds
    pipeline = problem(name, "2x8:a100")
    if name in TOO_LARGE:
        with pytest.raises(InfeasibleError, match="memory"):
            exact_full(pipeline, time_limit=60)
        return
    answer = exact_full(pipeline, time_limit=60)
    report = judge(answer.plan, pipeline)
    assert answer.status == "optimal"
    assert report.legal


def test_models__a_tied_table_is_held_where_it_is_read_twice():
    """GPT-3's embedding is also its head; the paper's instances count theirs once."""
    profile = load_profile("gpt3-175b-scanned", "C")
    assert [reads.size for reads in profile.tied] == [4 * 50257 * 12288]
    cluster = Cluster.parse("C")
    assert problem("t5-base", cluster).tied == "once"
    assert problem("big-lstm", cluster).tied == "held"
    assert problem(load_graph("big-lstm"), cluster).tied == "held"
    assert problem(load_graph("t5-base"), cluster).tied == "once"
    assert isinstance(problem("resnet-50", cluster), Pipeline)
