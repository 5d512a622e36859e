"""README says what each task of a newcomer needs, word for word."""

from cases import each

from benchmarks import newcomer


@each("task", newcomer.TASKS)
def test_newcomer__readme_says_how(task):
    assert newcomer.is_said(task), task.question


def test_newcomer__a_way_that_readme_does_not_show_is_told():
    task = newcomer.Task("?", "README.md", "x", ("parenvs plan nowhere",))
    assert not newcomer.is_said(task)
    assert not newcomer.is_said(newcomer.Task("?", "docs/glossary.md#nowhere", "## Pivot"))
    assert len(newcomer.TASKS) == 10


def test_newcomer__the_program_is_better_only_with_the_smaller_regret():
    said = "rule:  a: regret 0.0074, mean 0.0082\nagent: a: regret 0.0072, mean {}\n"
    assert newcomer.better(said.format("0.0077")) == "mean regret 0.0077, of the rule 0.0082"
    assert newcomer.better(said.format("0.0082")) == ""
    assert newcomer.better("rule: mean 0.1\n") == ""
    compile(newcomer.program(), "README.md", "exec")


def test_newcomer__output_time_and_status_of_a_command(tmp_path):
    (tmp_path / "first.py").write_text("print('here')\nraise SystemExit(3)\n")
    said, seconds, first = newcomer.typed(newcomer.PROGRAM, tmp_path)
    assert said == "here\nstatus 3"
    assert 0 < seconds < 60 and first > 0
