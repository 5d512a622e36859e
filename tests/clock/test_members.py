"""Processes that work together: whose failure is told, and nobody left behind."""

import pytest

from parenvs.clock.members import run_members
from parenvs.errors import ParenvsError

member_work = pytest.importorskip("member_work")


@pytest.mark.thorough
def test_run_members__the_cause_is_told_not_who_missed_it(tmp_path):
    with pytest.raises(ParenvsError, match=r"^process 1 of 2: the cause$"):
        run_members(member_work.missed, [(rank, str(tmp_path)) for rank in range(2)])
