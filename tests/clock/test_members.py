"""Processes that work together: whose failure is told, and nobody left behind."""

import multiprocessing
import time

import pytest

from parenvs.clock.members import run_members
from parenvs.errors import ParenvsError

member_work = pytest.importorskip("member_work")


@pytest.mark.slow
def test_run_members__a_killed_one_is_named_and_ends_all(tmp_path):
    begin = time.perf_counter()
    with pytest.raises(ParenvsError, match=r"^process 1 of 2 was ended by SIGKILL$"):
        run_members(member_work.killed, [(rank, str(tmp_path)) for rank in range(2)])
    assert time.perf_counter() - begin < 60
    assert multiprocessing.active_children() == []


@pytest.mark.thorough
def test_run_members__the_cause_is_told_not_who_missed_it(tmp_path):
    with pytest.raises(ParenvsError, match=r"^process 1 of 2: the cause$"):
        run_members(member_work.missed, [(rank, str(tmp_path)) for rank in range(2)])
