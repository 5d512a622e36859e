"""What becomes of commands whose output nobody takes, as it is, or at all."""

import errno
import io
import json
import os
import sys

import commands
import pytest
import toys
from cases import each

from parenvs import load_plan
from parenvs.view import terminal


class Failing(io.TextIOWrapper):
    """Standard output that is read up to so many characters."""

    def __init__(self, number, characters=0):
        super().__init__(io.BytesIO(), "utf-8")
        self.number, self.left = number, characters
        self.descriptor = os.open(os.devnull, os.O_WRONLY)

    def fileno(self):
        return self.descriptor

    def write(self, text):
        self.left -= len(text)
        if self.left < 0:
            raise OSError(self.number, os.strerror(self.number))
        return super().write(text)


@pytest.fixture
def toy(tmp_path):
    kwargs = toys.dense().kwargs(tmp_path)
    (tmp_path / "cluster.json").write_text(json.dumps(kwargs["cluster"]))
    return [kwargs["instance"], "--cluster", tmp_path / "cluster.json", "--stages", "2"]


@pytest.fixture
def run(monkeypatch, capsys):
    """``run(stream, "plan", ...)`` with another standard output: status and standard error."""

    def call(stream, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            status = commands.main(monkeypatch, *arguments)
        return status, capsys.readouterr().err

    return call


@pytest.mark.thorough
def test_streams__a_closed_pipe_loses_no_file(run, toy, tmp_path):
    """``| head -1`` ends every command alike, and what it was to write is written."""
    plan, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    files = ("--out", plan, "--plot", picture)
    for characters, command in (
        (0, ("plan", *toy, *files)), (20, ("compare", *toy, "--agent", "even", *files)),
        (20, ("plan", *toy, "--json", "--out", plan)), (9, ("judge", plan, "--plot", picture)),
        (0, ("show", *toy[:3])), (5, ("diff", plan, plan)), (0, ("list",)), (0, ("--help",)),
        (0, ("--version",)),
    ):  # fmt: skip
        picture.unlink(missing_ok=True)
        if plan in command[-4:] and "--out" in command:
            plan.unlink(missing_ok=True)
        status, err = run(Failing(errno.EPIPE, characters), *command)
        assert (status, err) == (141, ""), command
        assert "--out" not in command or load_plan(plan)
        assert "--plot" not in command or picture.stat().st_size > 1000


def test_streams__a_full_disk_is_told(run, toy):
    status, err = run(Failing(errno.ENOSPC), "plan", *toy)
    assert (status, err) == (2, "parenvs: standard output: No space left on device\n")


def test_streams__what_is_printed_is_not_lost_with_the_file(run, toy):
    out = io.StringIO()
    status, err = run(out, "plan", *toy, "--out", "/dev/full")
    assert (status, err) == (2, "parenvs: /dev/full: No space left on device\n")
    assert "stage" in out.getvalue()


@each("encoding", ["ascii", "cp1252", "cp437", "latin-1", "utf-8"])
def test_streams__other_encodings(run, toy, encoding):
    for command in (("plan", *toy), ("list",), ("plan", "--help"), ("plan", "\u2264\ud800")):
        out = io.TextIOWrapper(io.BytesIO(), encoding)
        status, err = run(out, *command)
        assert status == (2 if "\u2264\ud800" in command else 0), err
        out.flush()
        assert "Traceback" not in err and (out.buffer.getvalue() or err)
    out = io.TextIOWrapper(io.BytesIO(), encoding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        terminal.writable_streams()
        terminal.say("a \u2264 b")
    out.flush()
    assert out.buffer.getvalue().decode(encoding) in ("a \u2264 b\n", "a \\u2264 b\n")


def test_streams__an_interrupt_is_one_line(run, monkeypatch):
    for command in (("list", "--task", "elastic"), ("--version",)):
        with monkeypatch.context() as patch:
            patch.setattr(terminal, "say", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            assert run(io.StringIO(), *command) == (130, "parenvs: interrupted\n")
