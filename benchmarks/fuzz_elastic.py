"""Readers of traces of nodes, of sets of elastic problems and of policies, for ``fuzz.py``."""

from __future__ import annotations

import json
from functools import cache

import numpy as np

from benchmarks.fuzz_readers import Reader, file_of, must, refusable
from parenvs.agents.elastic.formats import OWN
from parenvs.agents.elastic.play import play
from parenvs.agents.elastic.rules import RULES
from parenvs.agents.learning.elastic.network import first_weights
from parenvs.leaderboard.entry import Entry, load_entry
from parenvs.tasks.elastic.files import Row, read_set, save_set
from parenvs.tasks.elastic.library import Library
from parenvs.tasks.elastic.load import MEASURED, load_elastic, load_library
from parenvs.tasks.elastic.problem import Elastic
from parenvs.tasks.elastic.run import follow
from parenvs.tasks.elastic.trace import Trace, read_trace

EVENTS = """seconds,event,node
0,add,a
0,add,b
30,add,c
600,remove,a
1200.5,add,d
5000,remove,d
"""
COUNTS = "seconds,nodes\n0,4\n600,3\n1200.5,9\n9000,0\n"


@cache
def library() -> Library:
    """Return the plans of a measured model."""
    return load_library(MEASURED[0])


def check_trace(trace: Trace) -> None:
    """Check that a job on the nodes earns what is possible."""
    with refusable():
        check_problem(Elastic(library(), trace, 60.0, name="trace"))


def check_problem(problem: Elastic) -> None:
    """Check that a rule's plans fit the nodes, and earn no more than free changes would."""
    run = follow(problem, problem.drawn(0), RULES["fastest"]())
    nodes = problem.drawn(0).nodes
    must((nodes >= 0).all() and np.isfinite(run.total), "nodes or samples that are no numbers")
    must(-1e-9 <= run.share <= 1 + 1e-9, f"a share of {run.share}")


def _problems() -> bytes:
    """Return a set of two shipped problems."""
    names = [f"elastic-test/bulk-gpt-1.5b-00{number}" for number in range(2)]
    rows = {name: Row(MEASURED[0], 30, load_elastic(name).source) for name in names}
    return file_of(lambda path: save_set(path, rows), ".json")


def check_set(rows: dict[str, Row]) -> None:
    """Check that each problem can be played."""
    for name, row in rows.items():
        with refusable():
            check_problem(Elastic(library(), row.chain, 60.0, row.intervals, name=name))


def policies() -> list[bytes]:
    """Return an entry of each kind of policy."""
    layer = {"weights": [[0.1]] * OWN, "biases": [0.0], "activation": "none"}
    drawn = first_weights(np.random.default_rng(0))
    weights = {name: array.tolist() for name, array in drawn.items()}
    made = [
        {"kind": "rule", "rule": "fastest"},
        {"kind": "table", "tables": {MEASURED[0]: [[[0, 1], [1, 0]]] * 8}, "observation": 1},
        {"kind": "network", "layers": {"each": [layer]}, "observation": 1},
        {"kind": "ratings", "weights": weights, "observation": 1},
    ]
    entries = [Entry("elastic", "mine", ("Ada",), "By hand.", policy=policy) for policy in made]
    return [json.dumps(entry.to_json()).encode() for entry in entries]


def check_policy(entry: Entry) -> None:
    """Check that a policy can be played."""
    problem = "elastic-test/bulk-gpt-1.5b-000"
    with refusable():
        chosen = play({"policy": entry.policy, "problems": [problem], "seed": 0})[problem]
        must(all(0 <= plan < 64 for course in chosen for plan in course), "no plan was chosen")


ELASTIC: dict[str, Reader] = {
    "trace": Reader(".csv", 3, lambda: [EVENTS.encode(), COUNTS.encode()], read_trace, check_trace),
    "chains": Reader(
        ".json", 3, lambda: [_problems()], lambda path: read_set(path, MEASURED), check_set
    ),
    "policy": Reader(".json", 2, policies, load_entry, check_policy),
}
"""Name -> reader, with its share of ``fuzz_readers.READERS``."""
