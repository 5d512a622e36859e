"""``parenvs leaderboard``: check, table, update, their errors, and the README's commands."""

import json
import re
import shlex
from pathlib import Path

import killed_writers
import pytest
from cases import each

from benchmarks import leaderboard_references as references
from parenvs.errors import ParenvsError
from parenvs.leaderboard import check as judging
from parenvs.leaderboard.tasks import tasks

BOARD = Path(__file__).parents[2] / "leaderboard"


@pytest.mark.thorough
def test_commands__update_takes_over_what_is_better(own_tasks, run, monkeypatch):
    name = "t5-base-v100-8x8-8"
    known = tasks().task("pipeline-plan").problems[name].reference
    assert known.status == "bound"
    path = own_tasks("pipeline-plan", name, cost=1.5 * known.cost, method="nobody")
    before, revision = path.read_bytes(), tasks().revision
    files = [BOARD / "submissions" / "pipeline-plan" / f"{e}.json" for e in ("even", "exact")]
    status, out, err = run("check", *files)
    assert status in (0, None)
    assert "parenvs leaderboard update" in err
    assert "1.0136" in out  # 1.5 on one of 30 problems
    with monkeypatch.context() as patch:

        def interrupted(*_):
            raise KeyboardInterrupt

        patch.setattr("pathlib.Path.replace", interrupted)
        assert run("update", *files)[0] not in (0, None)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    status, out, _ = run("update", *files)
    assert status in (0, None)
    assert f"pipeline-plan {name}: " in out
    new = tasks().task("pipeline-plan").problems[name].reference
    assert (new.method, new.status, tasks().revision) == ("exact", "bound", revision + 1)
    assert new.cost == pytest.approx(known.cost, rel=1e-6)
    assert new.bound == known.bound
    after = path.read_bytes()
    assert "nothing written" in run("update", *files)[1]
    assert path.read_bytes() == after


@pytest.mark.thorough
def test_commands__second_update_is_refused(own_tasks, run):
    """Two updates at once would lose what the first takes over."""
    path = own_tasks("pipeline-plan", "t5-base-v100-8x8-8", method="nobody")
    before = path.read_bytes()
    file = BOARD / "submissions" / "pipeline-plan" / "even.json"
    with killed_writers.holding(path, beside=True) as pid:
        status, _, err = run("update", file)
        assert status == 2
        assert f"tasks.json: process {pid} on " in err
        with pytest.raises(ParenvsError, match=f"process {pid} on "):
            tasks().save(path)
        assert references.main(["--out", str(path)]) == 2
    assert path.read_bytes() == before


def test_commands__check(run, tmp_path):
    accepted = BOARD / "submissions" / "data-parallel" / "greedy.json"
    status, out, err = run("check", accepted)
    assert status in (0, None)
    assert "greedy" in out
    assert "1.0000" in out
    assert re.search(r"1 judged in \d+\.\d s", err)
    content = json.loads(accepted.read_text())
    content["plans"]["vgg-19-shardy-8"]["fingerprint"] = "sha256:00"
    del content["plans"]["bert-48-shardy-8"], content["seconds"]["bert-48-shardy-8"]
    (tmp_path / "bad.json").write_text(json.dumps(content))
    (tmp_path / "worse.json").write_text("{}")
    status, out, err = run("check", "bad.json", "worse.json")
    assert status == 2
    assert "bad.json: field 'plans.vgg-19-shardy-8': field 'fingerprint' must be" in err
    assert "worse.json: field 'plans' is missing" in err
    assert "1 missing, 1 illegal" in out
    last = err.splitlines()[-1]
    assert last.startswith("parenvs: 2 of 2 refused: ")


@pytest.mark.thorough
def test_commands__table(run, tmp_path, monkeypatch):
    folder = BOARD / "submissions"
    only = tmp_path / "some" / "data-parallel"
    only.mkdir(parents=True)
    for name in ("greedy", "random"):
        source = folder / "data-parallel" / f"{name}.json"
        (only / source.name).write_bytes(source.read_bytes())
    status, out, _ = run("table", "--folder", "some")
    assert status in (0, None)
    assert "| 1 | greedy | 1.0000 |" in out
    others = [f"`{name}`" for name in tasks().tasks if name != "data-parallel"]
    assert out.endswith(f"No entry yet: {', '.join(others)}.\n")
    assert run("table", "--folder", "some", "--out", "new.md")[0] in (0, None)
    assert Path("new.md").read_text(encoding="utf-8") == out
    Path("new.md").write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run("table", "--folder", "some", "--out", "new.md")[0] not in (0, None)
    assert Path("new.md").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.md", "some"]
    # Bad files are told of and skipped; the page is that of the others.
    (only / "broken.json").write_text("[]")
    (only / "zzz.json").write_bytes((only / "greedy.json").read_bytes())
    status, skipped, err = run("table", "--folder", "some")
    assert (status, skipped) == (2, out)
    assert "broken.json: expected one JSON object; parenvs leaderboard check" in err
    assert "zzz.json: field 'entry' is 'greedy'; call the file data-parallel/greedy.json" in err
    assert err.splitlines()[-1].startswith("parenvs: 2 of 4 refused: ")
    status, _, err = run("site", "--folder", "some", "--out", "site")
    assert status == 2
    assert Path("site/index.html").is_file()
    for name in ("greedy", "random"):
        (only / f"{name}.json").unlink()
    assert run("table", "--folder", "some", "--out", "new.md")[0] == 2
    assert Path("new.md").read_text() == "old"  # not a page of no entry


HOSTILE = {
    "deep": b"[" * 100_000,
    "nan": b'{"seconds": {"a": NaN}}',
    "long": b'{"seeds": [' + b"9" * 5000 + b"]}",
    "bytes": b"\xff\xfe{}",
    "huge": b'{"method": "' + b"x" * 2**22 + b'"}',
}


@pytest.mark.thorough
@each("name", HOSTILE)
def test_commands__a_bad_file_does_not_stop_the_others(run, tmp_path, name):
    (tmp_path / f"{name}.json").write_bytes(HOSTILE[name])
    status, out, err = run(
        "check", f"{name}.json", BOARD / "submissions" / "data-parallel" / "greedy.json"
    )
    assert status == 2
    assert "greedy" in out
    assert err.splitlines()[-1] == f"parenvs: 1 of 2 refused: {name}.json"
    assert all(line.isprintable() and len(line) < 600 for line in err.splitlines())


def test_commands__a_fault_of_the_judge_does_not_stop_the_others(run, monkeypatch):
    """Whatever the judge raises on an entry is told with its file, and the others are judged."""
    sound = judging.check

    def broken(entry, *rest):
        if entry.entry == "random":
            raise OverflowError("too\nlarge")
        return sound(entry, *rest)

    monkeypatch.setattr(judging, "check", broken)
    folder = BOARD / "submissions" / "data-parallel"
    status, out, err = run("check", folder / "random.json", folder / "greedy.json")
    assert status == 2 and "greedy" in out and "1 of 2 refused" in err
    assert "random.json: the judge failed (OverflowError: too large); please open an issue" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["submit", "--task", "pipeline-cuts"], "did you mean 'pipeline-cut'"),
        (["submit", "--task", "data-parallel", "--agent", "expert"], "has no agent 'expert'"),
        (["submit", "--entry", "mine"], "--entry names the entry of one agent"),
        (["submit", "--steps", "0"], "--steps must be from 1"),
        (["submit", "--task", "data-parallel", "--agent", "greedy", "--entry", "../x"], "'entry'"),
        (["table", "--folder", "nowhere"], "no entry TASK/ENTRY.json there"),
        (["check", "nowhere.json"], "refused: nowhere.json"),
        (["update", "nowhere.json"], "1 of 1 refused: nowhere.json"),
    ],
)
def test_commands__errors(run, tmp_path, arguments, words):
    status, _, err = run(*arguments)
    assert status == 2
    line = err.splitlines()[-1]
    assert line.startswith("parenvs: ")
    assert words in line
    assert not list(tmp_path.iterdir())


README = (BOARD / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_readme__as_a_newcomer_enters(run, tmp_path):
    """The script and the first commands of the page run one after the other in an empty folder."""
    (script,) = re.findall(r"```python\n(.*?)```", README, re.S)
    exec(compile(script, "README.md", "exec"), {"__name__": "__main__"})
    assert (tmp_path / "submissions" / "pipeline-cut" / "my-even.json").is_file()
    commands, *_ = re.findall(r"```bash\n(.*?)```", README, re.S)
    output = ""
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        assert words[:2] == ["parenvs", "leaderboard"]
        status, out, err = run(*words[2:])
        assert status in (0, None), (line, err)
        output += out
    assert "| 1 | my-even |" in output


def test_readme__names_what_is_there():
    for name in tasks().tasks:
        assert f"`{name}`" in README
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (BOARD / link).exists(), link
    assert "4 MiB" in README
