"""The runner of measurements, their command lines, and the columns of their tables."""

import json
from functools import partial

import pytest
from cases import each

from benchmarks.framework import apart, forked, parser, run
from parenvs.bench.measurement import MEASUREMENTS, measurement
from parenvs.bench.page import cell, columns, page, percent
from parenvs.errors import ParenvsError
from parenvs.machine import commit


def square(number):
    return {"square": number**2}


@pytest.fixture
def measured(monkeypatch):
    """Registers a function as a measurement for the time of a test, with its name."""
    monkeypatch.setattr("parenvs.bench.measurement.MEASUREMENTS", {})

    def register(function, name="squares", **more):
        function.__name__ = name
        made = measurement(**more)(function)
        made.page(lambda rows: [columns(rows, [("n", "{number}"), ("n²", "{square}")])])
        return made

    return register


def keyed(measured, log, lazily=False, **more):
    """A measurement of squares that notes what it measures."""

    def noting(number):
        log.append(number)
        return square(number)

    def squares(numbers: tuple[int, ...] = (1, 2, 3), fail: int = -1):
        def cases():
            for number in numbers:
                if number == fail:
                    raise KeyboardInterrupt
                yield {"number": number}, partial(noting, number)

        return cases() if lazily or fail >= 0 else list(cases())

    return measured(squares, key="number", **more)


def test_run__rows_are_kept_and_only_what_is_missing_is_measured(measured, tmp_path):
    log, said = [], []
    made = keyed(measured, log)
    rows = made.run(tmp_path, {"numbers": (1, 2)}, say=said.append)
    of = {"commit": commit(), "settings": {"numbers": [1, 2]}}
    assert all(row["made"].pop("processor_seconds") >= 0 for row in rows)
    assert rows == [{"number": n, "square": n**2, "jobs": 1, "made": of} for n in (1, 2)]
    assert said[0].startswith("2 runs, of which 0 are in") and said[1:] == ["1/2 1", "2/2 2"]
    assert len(made.run(tmp_path, {"numbers": (2, 3)}, say=said.append)) == 2  # those asked for
    assert log == [1, 2, 3]
    made.run(tmp_path, {"numbers": (2,)}, again=True, say=said.append)
    assert log == [1, 2, 3, 2]
    lines = (tmp_path / "squares.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [1, 2, 3, 2]


def test_run__cases_that_are_yielded_show_all_rows_there_are(measured, tmp_path):
    made = keyed(measured, [], lazily=True)
    made.run(tmp_path, {"numbers": (1, 2)}, say=len)
    assert len(made.run(tmp_path, {"numbers": (3,)}, say=len)) == 3
    assert len(made.run(tmp_path, {}, render=True, say=len)) == 3


def test_run__interrupted_and_continued(measured, tmp_path):
    log = []
    made = keyed(measured, log)
    with pytest.raises(ParenvsError, match="the same command continues"):
        made.run(tmp_path, {"fail": 2}, say=len)
    assert log == [1]
    made.run(tmp_path, {}, say=len)
    assert log == [1, 2, 3]


@pytest.mark.thorough
def test_run__in_processes(measured, tmp_path):
    def squares(numbers: tuple[int, ...] = (1, 2, 3)):
        return [({"number": number}, partial(square, number)) for number in numbers]

    rows = measured(squares, key="number").run(tmp_path, {}, jobs=2, say=len)
    assert [(row["square"], row["jobs"]) for row in rows] == [(1, 2), (4, 2), (9, 2)]


def test_run__nothing_to_render(measured, tmp_path):
    made = keyed(measured, [])
    with pytest.raises(ParenvsError, match=r"no such run yet; leave out --render-only"):
        made.run(tmp_path, {}, render=True, say=len)
    with pytest.raises(ParenvsError, match="no such run yet"):
        measured(lambda: [], name="others").run(tmp_path, {}, render=True)
    assert not list(tmp_path.iterdir())


def test_run__parts_of_data_as_they_are_read_from_the_file(measured, tmp_path):
    def parts():
        yield "few", {"number": 1, "at": (1, 2)}
        yield "many", {"number": 2}
        yield "few", {"number": 3}

    made = measured(parts)
    data = made.run(tmp_path, {}, say=len)
    few = [{"number": 1, "at": [1, 2]}, {"number": 3}]
    assert data == {"few": few, "many": [{"number": 2}]}
    made.page(lambda data: ["words"])
    made.publish(data, tmp_path, {}, "the command", "here")
    assert made.run(tmp_path, {}, render=True) == data
    assert (tmp_path / "squares.md").read_text() == "# squares\n\n`the command`\n\nhere\n\nwords\n"


def test_registry__knows_measurements_by_name(measured):
    made = measured(lambda: [], name="mine_")
    assert made.name == "mine"
    assert "mine" not in MEASUREMENTS  # that of the tests is another one


def test_script__a_page_is_made_anew_with_its_own_options(measured, tmp_path, capsys):
    log = []
    made = keyed(measured, log, about={"numbers": "to square"})
    words = ["--numbers", "4", "5", "--out", str(tmp_path)]
    assert run(made, [*words, "--jobs", "1"]) == 0
    first = (tmp_path / "squares.md").read_text()
    assert "`python benchmarks/squares.py --numbers 4 5 --jobs 1`" in first
    assert "| 5 | 25 |" in first
    (tmp_path / "squares.md").write_text(first.replace("| 5 | 25 |", "").replace("Python", "P"))
    assert run(made, ["--render-only", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "squares.md").read_text() == first
    assert log == [4, 5]
    assert capsys.readouterr().out == 2 * first


def test_script__status_tells_what_is_wrong(measured, tmp_path):
    made = keyed(measured, [], wrong=lambda rows: any(row["square"] > 4 for row in rows))
    words = ["--out", str(tmp_path), "--numbers"]
    assert [run(made, [*words, number]) for number in ("2", "3")] == [0, 1]


def test_parser__options_are_those_of_the_function(measured):
    def many(
        place: str, names: tuple[str, ...] = ("a",), most: int | None = None, share: float = 0.5,
        quick: bool = False,
    ):  # fmt: skip
        return []

    made = measured(many, positional=("place",), among={"names": ("a", "b")})
    given = vars(parser(made).parse_args(["here", "--names", "b", "a", "--most", "3", "--quick"]))
    kept = {name: given[name] for name in ("place", "names", "most", "share", "quick")}
    assert kept == {"place": "here", "names": ["b", "a"], "most": 3, "share": 0.5, "quick": True}
    with pytest.raises(SystemExit):
        parser(made).parse_args(["here", "--names", "c"])
    assert "--jobs" not in parser(made).format_help()


@each(
    ("shown", "text"),
    [
        ("{plan[seconds]:.2f}", "1.50"),
        ("{plan[seconds]:.1f*1e3} ms", "1500.0 ms"),
        ("{bytes:,.1f/1e3}", "12,345.7"),
        ("{share:.1%}", "-0.0 %".replace("-", "")),
        ("{nothing:.2f}", ""),
        ("{none[seconds]:.2f}", ""),
        ("{plan[missing]:.2f}", ""),
        ("{nan:.2f} s", " s"),
        (lambda row: row["bytes"] + 1, 12_345_679),
    ],
)
def test_cell(shown, text):
    row = {"plan": {"seconds": 1.5}, "bytes": 12_345_678, "share": -1e-9, "nothing": None}
    assert cell(shown, {**row, "none": None, "nan": float("nan")}) == text


def test_columns_and_page():
    table = columns([{"a": 1}, {"a": 2}], [("a", "{a}"), ("twice", lambda row: 2 * row["a"])])
    assert table.splitlines() == ["| a | twice |", "| :-- | --: |", "| 1 | 2 |", "| 2 | 4 |"]
    assert page("Title", "x --y", "", [table]).startswith("# Title\n\n`x --y`\n\n| a |")
    assert (percent(0.12345), percent(None), percent(float("nan")), percent(0.5, 0)) == (
        "12.35 %", "", "", "50 %",
    )  # fmt: skip


@pytest.mark.thorough
def test_forked_and_apart():
    assert forked(partial(square, 3)) == {"square": 9}
    with pytest.raises(SystemExit, match="the process of a case failed"):
        forked(partial(square, "x"))
    assert apart(square, 4) == {"square": 16}
    with pytest.raises(ParenvsError, match=r"square .*: the process failed"):
        apart(square, "x")


def test_publish__says_which_commit_and_settings_figures_are_of(measured, tmp_path):
    """Rows that were there before say so; a page that is made anew keeps what it said."""
    made = keyed(measured, [])
    old = {"number": 1, "square": 1, "jobs": 1}
    (tmp_path / "squares.jsonl").write_text(json.dumps(old) + "\n")
    rows = made.run(tmp_path, {"numbers": (1, 2, 3)}, say=len)
    text = made.publish(rows, tmp_path, {}, "the command")
    assert text.splitlines()[4].endswith(f"; commits not recorded (1 rows), {commit()} (2 rows)")
    parts = measured(lambda: [{"number": 4, "square": 16}], name="parts")
    data = parts.run(tmp_path, {}, say=len)
    places = {"here": tmp_path / "x.csv", "names": ("a", "b"), "what": object()}
    parts.publish(data, tmp_path, places, "the command")
    content = json.loads((tmp_path / "parts.json").read_text())
    of = {"commit": commit(), "settings": {"here": "x.csv", "names": ["a", "b"]}}
    assert content["made"].pop("processor_seconds") >= 0
    assert content["made"] == of and parts.run(tmp_path, {}, render=True) == data
    before = (tmp_path / "parts.json").read_bytes()
    parts.publish(data, tmp_path, {}, "the command", "a machine; commit 0", render=True)
    assert (tmp_path / "parts.json").read_bytes() == before
    assert (tmp_path / "parts.md").read_text().splitlines()[4] == "a machine; commit 0"
