"""An example of every command, shown at the end of its help and on the site."""

from __future__ import annotations

import typer

from parenvs.view.terminal import example

EXAMPLES: dict[str, tuple[str, ...]] = {
    "list": ("parenvs list",),
    "show": (
        "parenvs show t5-base --cluster C",
        "parenvs show my_model.py:step --args my_model.py:arguments",
    ),
    "judge": ("parenvs judge plan.json --plot plan.png",),
    "diff": ("parenvs diff even.json best.json",),
    "explain": (
        "parenvs explain plan.json --variable 'encoder/layer_0/*'",
        "parenvs explain t5-base --devices 8",
    ),
    "verify": ("parenvs verify split.json --compile",),
    "export": ("parenvs export plan.json --to torchtitan --out plan.toml",),
    "doctor": ("parenvs doctor", "parenvs doctor --all"),
    "plan": (
        "parenvs plan t5-3b --cluster C --stages 4 --out plan.json --plot plan.png",
        "parenvs plan llama3-70b --task hybrid --cluster 16x8:h100 --batch 1024",
    ),
    "compare": ("parenvs compare t5-base --cluster C --stages 4 --agent even --agent exact",),
    "train": (
        "parenvs train --task pipeline --seed 0 --steps 100000 --out runs/ppo-0",
        "parenvs train HybridPlan-v1 --agent group --out runs/group-0",
    ),
    "evaluate": ("parenvs evaluate runs/ppo-0 runs/ppo-1 --set plan-test",),
    "calibrate": ("parenvs calibrate --out machine.json",),
    "profile": ("parenvs profile my_model.py:make --args batch --out chain.csv",),
    "run": ("parenvs run plan.json my_model.py:make --args batch --calibration machine.json",),
    "reshard": ("parenvs reshard checkpoint --old old.json --new new.json --out moved",),
    "leaderboard submit": (
        "parenvs leaderboard submit --task data-parallel --agent greedy --folder submissions",
    ),
    "leaderboard check": ("parenvs leaderboard check submissions/pipeline-cut/mine.json",),
    "leaderboard table": ("parenvs leaderboard table --folder submissions",),
    "leaderboard site": ("parenvs leaderboard site --folder submissions --out site",),
    "leaderboard update": ("parenvs leaderboard update submissions/hybrid/mine.json",),
}
"""Command without ``parenvs`` -> lines that can be typed, names of files aside."""


def add_examples(app: typer.Typer) -> None:
    """Put the examples at the end of every command's help."""
    for group, commands in _commands(app):
        for command in commands:
            name = command.name or getattr(command.callback, "__name__", "").replace("_", "-")
            lines = EXAMPLES.get(f"{group} {name}".strip(), ())
            if lines and not command.epilog:
                command.epilog = example(*(line.removeprefix("parenvs ") for line in lines))


def _commands(app: typer.Typer) -> list[tuple[str, list[typer.models.CommandInfo]]]:
    """Groups of commands by name; those of the program itself have an empty one."""
    groups = [(str(info.name), info.typer_instance) for info in app.registered_groups]
    inner = [(name, group.registered_commands) for name, group in groups if group is not None]
    return [("", app.registered_commands), *inner]
