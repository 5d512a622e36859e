"""A driver that goes on from a journal: what that says is held against trace and plans."""

from types import SimpleNamespace

import elastic_toys
import numpy as np
import pytest
from cases import each

from parenvs.errors import ParenvsError
from parenvs.jobs.journal import Interval, Journal
from parenvs.tasks.elastic.problem import Course

pytest.importorskip("torch")
ROW = {"nodes": 3, "plan": 5, "event": 0}


def drive(tmp_path, choose, rows=(), nodes=3):
    """Go on from a journal of rows by a policy; no process is started."""
    from parenvs.jobs.driver import Driver
    from parenvs.jobs.member import Settings

    problem = elastic_toys.problem("calm", 2)
    course = Course.of_bits(nodes, np.zeros(2), np.zeros(2, np.uint64), 3)
    policy = SimpleNamespace(name="mine", start=lambda problem: None, choose=choose)
    fleet = SimpleNamespace(start=lambda node: None, end=lambda: None)
    intervals = [Interval(t, **row) for t, row in enumerate(rows)]
    given = Journal(tmp_path, 1.0, 0.0, intervals), Settings("", "", "", 1, 0, 0)
    Driver(problem, course, None, policy, *given, fleet=lambda *_: fleet).run()


def test_driver__goes_on_where_the_journal_ends(tmp_path):
    asked, rows = [], [ROW, {**ROW, "plan": 0, "event": 7}]
    drive(tmp_path, lambda moment, *_: asked.append(moment.plan) or 0, rows)
    assert asked == [0, 5]


@each(
    ("rows", "words"),
    [
        ([{**ROW, "plan": 6}], r"line 1: field 'plan' is 6; plans for 3 nodes are \[0, 1, 2, 3,"),
        ([ROW, {**ROW, "plan": 2**40}], "line 2: field 'plan' is 1099511627776; plans"),
        ([{**ROW, "nodes": 1}], "line 1: field 'nodes' is 1; the trace has 3"),
        ([{**ROW, "event": 8}], "line 1: field 'event' is 8; events are 0 to 7"),
        ([ROW, ROW, ROW], "line 3: field 'interval' is 2; there are 2; give another --out"),
    ],
)
def test_driver__a_journal_of_another_trace_or_of_other_plans(tmp_path, rows, words):
    with pytest.raises(ParenvsError, match=rf"intervals\.jsonl: {words}"):
        drive(tmp_path, lambda *_: 0, rows)


@each(
    ("chosen", "words"),
    [
        (6, "plan 6 is none of toy"),
        ("best", "plan 'best' is none of toy"),
        (5, "plan 5 takes 3 nodes, not 2"),
        (64, "there is no whole plan to write a checkpoint of"),
    ],
)
def test_driver__a_wrong_plan_of_a_policy(tmp_path, chosen, words):
    with pytest.raises(ParenvsError, match=f"^policy mine: interval 0: {words}$"):
        drive(tmp_path, lambda *_: chosen, nodes=2)
