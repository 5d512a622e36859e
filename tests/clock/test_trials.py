"""A user's command for a plan: what is read from its output, and that nothing of it outlives it."""

import time
from pathlib import Path

import pytest
from cases import each

from parenvs.clock.trials import LINES, Command
from parenvs.errors import ParenvsError


@each(
    ("run", "told"),
    [
        ("for i in 9 9 9 1 2 7; do echo step time: $i.5 s; done", {"seconds": 2.5}),
        ("echo step time: 1; echo 'CUDA error: out of memory'; exit 1", {"oom": True}),
        ("echo loss 3", {"failed": "no match of --seconds\nloss 3"}),
        ("echo step time: 1", {"failed": "no match of --seconds\nstep time: 1"}),
        ("for i in 1 2 3 4; do echo step time: $i; done; exit 3", {"failed": "exit status 3"}),
        ("cat {plan} {export}", {"failed": "no match of --seconds\na plan\nan export"}),
    ],
)
def test_command__is_read(run, told, tmp_path):
    files = {name: tmp_path / f"it's {name}.txt" for name in ("plan", "export")}
    for (name, path), article in zip(files.items(), ("a", "an"), strict=True):
        path.write_text(f"{article} {name}\n")
    result = Command(run).measured(files)
    assert result.keys() == told.keys()
    if "failed" in told:
        assert result["failed"].startswith(told["failed"])
    else:
        assert result == told


def test_command__keeps_the_last_lines():
    said = Command("seq 100; exit 1").measured({})["failed"].splitlines()
    assert said == ["exit status 1", *map(str, range(101 - LINES, 101))]


@pytest.mark.slow
def test_command__its_whole_group_ends_at_the_limit(tmp_path):
    alive = tmp_path / "alive"
    child = f"(sleep 3; touch {alive}) & "
    begin = time.monotonic()
    told = Command(f"{child} sleep 60", time_limit=0.5).measured({})
    assert told == {"failed": "killed after 0.5 s"} and time.monotonic() - begin < 3
    # Steps that were printed count, though it had to be killed.
    steps = "for i in 1 2 3 4 5; do echo step time: $i; done"
    assert Command(f"{steps}; sleep 60", time_limit=0.5).measured({}) == {"seconds": 4.5}
    # What a command leaves behind ends with it.
    assert Command(f"{child} true").measured({})["failed"].startswith("no match")
    time.sleep(3.5)
    assert not Path(alive).exists()


@each(
    ("options", "words"),
    [
        ({"seconds": "("}, "--seconds and --oom-pattern are patterns: "),
        ({"seconds": "time"}, "--seconds: put the number, and nothing else, in brackets"),
        ({"oom_pattern": "["}, "--seconds and --oom-pattern are patterns: "),
    ],
)
def test_command__patterns_are_checked(options, words):
    with pytest.raises(ParenvsError, match=words):
        Command("true", **options)
