"""Pages and entries that are made again, and a figure changed by hand, which is told."""

import json

import pytest

from benchmarks import renew
from benchmarks.framework import MADE, ROOT


def test_renew__tells_of_a_figure_changed_by_hand(tmp_path, monkeypatch):
    """A changed copy of a page differs by its row; machine and commit may be others."""
    monkeypatch.setattr(renew, "pages", lambda: ("environments", "instead", "rules"))
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    made = dict(renew.results())
    names = ("environments", "instead", "rules", "hybrid")
    assert set(made) == {f"benchmarks/results/{x}.md" for x in names}
    for name in made:
        committed = (ROOT / name).read_text(encoding="utf-8")
        lines = committed.splitlines()
        lines[MADE] = "another machine; commit 0123456789ab"
        row = max(k for k, line in enumerate(lines) if "0." in line)
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
        assert list(renew.told([(name, made[name])], tmp_path)) == []
        changed = [*lines[:row], lines[row].replace("0.", "1.", 1), *lines[row + 1 :]]
        (tmp_path / name).write_text("\n".join(changed), encoding="utf-8")
        (words,) = renew.told([(name, made[name])], tmp_path)
        assert words == f"{name}: {changed[row][:300]}"
        (tmp_path / name).write_text("\n".join(lines[:-1]), encoding="utf-8")
        assert "number of lines" in next(renew.told([(name, made[name])], tmp_path))
        assert list(renew.told([(name, made[name])], tmp_path, write=True))
        assert (tmp_path / name).read_text(encoding="utf-8") == made[name]


def test_renew__tells_of_a_plan_changed_by_hand(tmp_path):
    """An entry is what its agent makes today; its seconds may be others."""
    ((name, text),) = renew.entries("hetero/sorted.json")
    (tmp_path / name).parent.mkdir(parents=True)
    committed = json.loads((ROOT / name).read_text(encoding="utf-8"))
    for change, same in (("seconds", True), ("plans", False), ("method", False)):
        content = json.loads(json.dumps(committed))
        problem = next(iter(content["plans"]))
        if change == "seconds":
            content["seconds"][problem] += 1
        elif change == "plans":
            content["plans"][problem]["stages"].reverse()
        else:
            content["method"] = "By hand."
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
        told = list(renew.told([(name, text)], tmp_path))
        assert told == [] if same else told[0].startswith(f"{name}: {change}")


def test_renew__leaves_out_no_script_that_fails(monkeypatch):
    """A script whose own module is missing is an error; one for which others' are is left out."""
    monkeypatch.setattr(renew, "pages", lambda: ("rules",))
    for name, ends in (("transformers", False), ("same_cases", True)):

        def remade(_, name=name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        monkeypatch.setattr(renew, "remade", remade)
        if ends:
            with pytest.raises(ModuleNotFoundError):
                list(renew.results())
        else:
            assert [name for name, _ in renew.results()] == ["benchmarks/results/hybrid.md"]


def test_renew__leaves_out_what_learns_or_looks_at_a_clock():
    entries = [renew.load_entry(path) for path in sorted((ROOT / renew.ENTRIES).glob("*/*.json"))]
    chosen = {(entry.task, entry.entry) for entry in entries if renew.cheap(entry)}
    assert {("pipeline-cut", "exact-candidates"), ("hybrid", "rule-of-thumb")} <= chosen
    left = {("pipeline-cut", name) for name in ("ppo", "learned", "corridor", "pretrained")}
    assert not left & chosen and len(chosen) >= 50
