"""Readers of traces of nodes and of sets of elastic problems, for ``fuzz.py``."""

from __future__ import annotations

from functools import cache

import numpy as np
from fuzz_readers import Reader, file_of, must, refusable

from parenvs.agents.elastic.rules import RULES
from parenvs.elastic.files import Row, read_set, save_set
from parenvs.elastic.library import Library
from parenvs.elastic.problem import Elastic
from parenvs.elastic.run import follow
from parenvs.elastic.trace import Trace, read_trace
from parenvs.shipped import MEASURED, load_elastic, load_library

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


ELASTIC: dict[str, Reader] = {
    "trace": Reader(".csv", 4, lambda: [EVENTS.encode(), COUNTS.encode()], read_trace, check_trace),
    "chains": Reader(
        ".json", 4, lambda: [_problems()], lambda path: read_set(path, MEASURED), check_set
    ),
}
"""Name -> reader, with its share of ``fuzz_readers.READERS``."""
