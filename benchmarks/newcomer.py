"""Ten tasks of a newcomer, done by what README says: commands, seconds, and what came of it.

    python benchmarks/newcomer.py

A script is no person: it types what README, or the page that README links to, says word for word,
and looks for the answer in what is printed, or on the page. What it measures is whether the way
leads there, how many commands it has, and how long they take.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.framework import ROOT, Row, columns, main, measurement

MODEL = '''"""A small decoder, as a newcomer may bring it."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        split = (*x.shape[:2], self.heads, -1)
        q, k, v = (y.view(split).transpose(1, 2) for y in self.qkv(self.first(x)).chunk(3, -1))
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(gelu(self.up(self.second(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32000, 2048)
        self.layers = nn.ModuleList(Layer(2048, 16) for _ in range(4))
        self.head = nn.Linear(2048, 32000, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def inputs():
    return (torch.zeros(2, 512, dtype=torch.long),)
'''
"""The newcomer's own ``my_model.py``."""


class Task(NamedTuple):
    """What a newcomer wants.

    Attributes:
        question: in a newcomer's words.
        page: where README, or a link in it, answers, with the anchor, if any.
        answer: words of the page, or a pattern of what the commands print, that answer it.
        commands: what the page says to type; of README where the page is README's.
    """

    question: str
    page: str
    answer: str
    commands: tuple[str, ...] = ()


PROGRAM = "python first.py"
"""Stands for README's first program, which a newcomer copies into a file."""
PLAN_OWN = (
    "parenvs plan my_model.py:Model --args inputs --cluster 2x8:h100 --batch 256 --for megatron "
    "--out mine.json"
)
TASKS = (
    Task(
        "How should Llama 3 70B run on 128 H100?", "README.md", r"([\d.]+ s a step)",
        ("parenvs plan llama3-70b --cluster 16x8:h100 --batch 1024 --for megatron",),
    ),
    Task(
        "Plan my PyTorch model for Megatron", "README.md", r"(--tensor-model-parallel-size \d+)",
        (PLAN_OWN, "parenvs export mine.json --to megatron"),
    ),
    Task(
        "Why is this plan best?", "README.md", r"(?m)^tensor parallel ranks.*\n *(\S.*?%)",
        (
            "parenvs plan llama3-70b --cluster 16x8:h100 --batch 1024 --out hybrid.json",
            "parenvs explain hybrid.json",
        ),
    ),
    Task(
        "Show me a plan", "README.md", r"(picture written to gantt\.png)",
        ("parenvs plan t5-3b --cluster C --out plan.json --plot gantt.png",),
    ),
    Task("Train an agent that is better than a rule", "README.md", "", (PROGRAM,)),
    Task(
        "Which environment do I train on?", "docs/environments.md", "## Which one to train on",
    ),
    Task("What is a pivot?", "docs/glossary.md#pivot", "## Pivot"),
    Task("Are the costs to be trusted?", "docs/cost-model.md", "## What to trust"),
    Task(
        "Enter the leaderboard", "docs/tutorials/leaderboard.py",
        r"(accepted: True, score [\d.]+)", ("python docs/tutorials/leaderboard.py",),
    ),
    Task("How do I report what I found?", "docs/reporting.md", "## Metric"),
)  # fmt: skip


def readme() -> str:
    """The text of README."""
    return (ROOT / "README.md").read_text(encoding="utf-8")


def program() -> str:
    """README's first program in Python."""
    return re.search(r"^```python\n(.*?)^```", readme(), re.M | re.S)[1]  # type: ignore[index]


def is_said(task: Task) -> bool:
    """Whether README says what a task needs, or links to a page that does."""
    text = readme()
    name = task.page.partition("#")[0]
    if name != "README.md":
        if f"]({task.page}" not in text:
            return False
        return bool(task.commands) or task.answer in (ROOT / name).read_text(encoding="utf-8")
    return all(command == PROGRAM or command in text for command in task.commands)


def typed(command: str, folder: Path) -> tuple[str, float]:
    """Run a command; return what it prints, and its processor seconds."""
    words = shlex.split(command)
    if words[0] == "parenvs":
        words = [sys.executable, "-m", *words]
    else:
        script = ROOT / words[1]
        words = [sys.executable, str(script if script.exists() else folder / words[1])]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    before = os.times()
    process = subprocess.run(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    after = os.times()
    spent = after.children_user + after.children_system
    spent -= before.children_user + before.children_system
    status = f"status {process.returncode}" if process.returncode else ""
    return process.stdout + status, spent


def better(said: str) -> str:
    """What README's program printed of the scores; empty if the agent is not better."""
    found = {
        name: float(mean)
        for name, mean in re.findall(r"^(rule|agent): .*score ([\d.]+)", said, re.M)
    }
    if not found.get("agent", 0.0) > found.get("rule", 1.0):
        return ""
    return f"score {found['agent']:.4f}, of the rule {found['rule']:.4f}"


@measurement(
    title="Ten tasks of a newcomer", wrong=lambda rows: [row for row in rows if not row["found"]]
)
def newcomer() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "my_model.py").write_text(MODEL, encoding="utf-8")
        (folder / "first.py").write_text(program(), encoding="utf-8")
        for task in TASKS:
            row = {"question": task.question, "page": task.page, "commands": len(task.commands)}
            if not is_said(task):
                yield {**row, "seconds": 0.0, "found": ""}
                continue
            runs = [typed(command, folder) for command in task.commands]
            said = "".join(text for text, _ in runs)
            if PROGRAM in task.commands:
                found = better(said)
            elif task.commands:
                match = re.search(task.answer, said)
                found = " ".join(match[1].split()) if match else ""
            else:
                found = task.answer.lstrip("# ")
            yield {
                **row,
                "seconds": sum(spent for _, spent in runs),
                "found": found,
            }


@newcomer.page
def page(rows: list[Row]) -> list[str]:
    told = [
        ("task", "{question}"),
        ("where README says how", "{page}"),
        ("commands", "{commands}"),
        ("processor s", lambda row: f"{row['seconds']:.1f}" if row["commands"] else ""),
        ("what came of it", lambda row: row["found"] or "**nothing**"),
    ]
    return [
        "A script types what README says, or the page that README links to, and looks for the "
        "answer. It is no person: whether a reader finds the place and understands the words is "
        "not measured. Where there is no command, the page is the answer, one link from README.",
        columns(rows, told, left=2),
    ]


if __name__ == "__main__":
    main(newcomer)
