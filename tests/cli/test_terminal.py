"""Names of strangers' files and graphs reach the terminal as text, whatever is in them."""

import json
from dataclasses import replace

import numpy as np
import partition_toys
import pytest
import toys
from cases import slow
from commands import caller

from parenvs.graph.graph import pack_texts

HOSTILE = "a\x1b[2J\x1b]0;x\x07\rb\u202ec[red]d[/red]:smile:"
TELLS = ("\x1b", "\x07", "\r", "\u202e")


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("show", ...)``: its raw standard output and error, checked, and its status."""
    call = caller(monkeypatch, capfd, tmp_path)

    def checked(*arguments):
        status, out, err = call(*arguments)
        assert "Traceback" not in err
        for stream in (out, err):
            assert [tell for tell in TELLS if tell in stream] == []
            assert all(line.isprintable() for line in stream.split("\n"))
        return status, out, err

    return checked


@pytest.fixture
def chain(tmp_path):
    """A profile and a cluster whose names hold what a terminal obeys: arguments of a command."""
    toy = toys.dense()
    names = np.array([f"{name}/{HOSTILE}" for name in toy.profile.names], dtype=object)
    path = tmp_path / f"{HOSTILE.replace('/', '')}.csv"
    replace(toy.profile, names=names).to_csv(path)
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps({**toy.cluster, "name": HOSTILE}))
    return [path, "--cluster", cluster, "--stages", "2", "--micro-batches", "2"]


@pytest.fixture
def graph(tmp_path):
    """A graph file whose name, paths and notes hold what a terminal obeys."""
    sound = partition_toys.shipped("vgg-19").graph
    strings = [f"{x}{HOSTILE}" if x.endswith("/kernel") else x for x in sound.strings]
    hostile = replace(
        sound, name=HOSTILE, string_table=pack_texts(strings), notes=(f"note {HOSTILE}",)
    )
    path = tmp_path / f"{HOSTILE.replace('/', '')}.npz"
    hostile.save(path)
    return path


def test_terminal__profile(run, chain, tmp_path):
    status, out, err = run("show", *chain[:5])
    assert status == 0, err
    assert "[red]d[/red]:smile:" in out
    plan = tmp_path / f"{HOSTILE}.plan.json".replace("/", "")
    status, out, err = run("plan", *chain, "--out", plan)
    assert status == 0, err
    assert "[red]" in out
    assert run("judge", plan)[0] == 0
    status, out, _ = run("judge", plan, "--json")
    assert json.loads(out)
    assert run("diff", plan, plan)[0] == 0
    assert run("compare", *chain, "--agent", "even", "--agent", "exact")[0] == 0


def test_terminal__graph(run, graph, tmp_path):
    status, out, err = run("show", graph)
    assert status == 0, err
    assert "[red]" in out
    assert "note a?[2J" in err
    status, out, err = run("explain", graph)
    assert status == 0, err
    assert "[red]" in out
    plan = tmp_path / f"{HOSTILE}.plan.json".replace("/", "")
    task = ("--task", "partition", "--scope", "inputs", "--agent", "greedy")
    status, out, err = run("plan", graph, *task, "--out", plan)
    assert status == 0, err
    for arguments in (("judge", plan), ("explain", plan), ("diff", plan, plan)):
        assert run(*arguments)[0] == 0
    content = json.loads(plan.read_text())
    content["partition"] = {f"w{HOSTILE}": 0, **content["partition"]}
    plan.write_text(json.dumps(content))
    status, out, err = run("judge", plan)
    assert status == 2
    assert err.count("\n") == 1 and "[red]" in err


@pytest.mark.parametrize("ending", [".npz", *slow(".csv", ".pb", ".txt", ".json", ".mlir", "")])
def test_terminal__errors(run, tmp_path, ending):
    path = tmp_path / f"{HOSTILE}{ending}".replace("/", "")
    for _ in ("missing", "damaged"):
        for command in (("show", path), ("judge", path), ("explain", path), ("verify", path)):
            status, out, err = run(*command)
            assert status == 2
            assert out == "" and err.count("\n") == 1
        assert run("leaderboard", "check", path)[0] == 2
        path.write_text(f"{HOSTILE}\n")


def test_terminal__usage_errors(run):
    """What was typed wrongly is repeated as text."""
    status, out, err = run("plan", "--x\u202e\x1b[31mgnp")
    assert status == 2
    assert "gnp" in err
    assert not {"\u202e", "\x1b"} & set(
        err
    )  # click 8.5 writes them as in a program, and "?" is ours
    assert err.endswith("; see parenvs plan --help\n") and err.count("\n") == 1
    assert out == ""
