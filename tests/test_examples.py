"""The scripts of ``examples/`` run, at their smallest size."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def smaller(name, *changes):
    """The text of an example with smaller numbers; each change has to be one."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    for before, after in changes:
        assert text.count(before) == 1
        text = text.replace(before, after)
    return text


@pytest.mark.slow
def test_examples__report(capsys):
    """Two seeds, an update each; the interval is over runs."""
    text = smaller(
        "report.py",
        ("range(5)", "range(2)"),
        ("steps=100_000", 'steps=64, settings={"envs": 4}'),
        ('"plan-test"', '"plan-validation", "cnn", first=9'),
    )
    exec(compile(text, "report.py", "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith("plan-validation: 2 runs of 9 problems, score 0.")
    assert "over runs)" in said


def test_examples__in_the_readme():
    """The README shows the script as it is, if it shows it."""
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    body = (EXAMPLES / "report.py").read_text(encoding="utf-8").partition('"""\n\n')[2]
    if "evaluate_set(agents" in readme:
        assert body in readme
