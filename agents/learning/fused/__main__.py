r"""Trains the planner of pipelines by PPO or Rainbow, all of it on one device.

    python -m parenvs.agents.learning.fused --device cpu --envs 256 \
        --iterations 200 --out runs/fused

    python -m parenvs.agents.learning.fused --agent rainbow --out runs/rainbow

Every field of ``PPOSettings``, or of ``RainbowSettings``, is an option.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from pathlib import Path

from parenvs.agents.learning.fused.learner import AGENTS
from parenvs.agents.learning.fused.run import DEVICES, WEIGHTS, train
from parenvs.agents.learning.fused.settings import OBJECTIVES
from parenvs.datasets.pipeline.families import FAMILIES
from parenvs.errors import ParenvsError, printable


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module and return its exit status.

    Args:
        arguments: the command's arguments (default: those of the process).
    """
    words = None if arguments is None else list(arguments)
    which = argparse.ArgumentParser(add_help=False)
    which.add_argument("--agent", default="ppo", choices=AGENTS, help="default: ppo")
    agent = which.parse_known_args(words)[0].agent
    parser = argparse.ArgumentParser(
        prog="python -m parenvs.agents.learning.fused",
        description="Train a planner of pipelines by PPO or Rainbow, all of it on one device.",
        parents=[which],
    )
    parser.add_argument("--device", default="cpu", help=f"{' or '.join(DEVICES)} (default: cpu)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for the results")
    parser.add_argument("--workers", type=int, default=1, help="processes that make problems")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    for field in fields(AGENTS[agent]):
        kind = {"int": int, "float": float}.get(str(field.type), str)
        choices = {"family": list(FAMILIES), "objective": OBJECTIVES}.get(field.name)
        default = "any family" if field.name == "family" else "%(default)s"
        parser.add_argument(
            f"--{field.name}", type=kind, default=field.default, choices=choices,
            help=f"default: {default}",
        )  # fmt: skip
    options = vars(parser.parse_args(words))
    del options["agent"]
    folder, device, workers, resume = (
        options.pop(key) for key in ("out", "device", "workers", "resume")
    )
    try:
        say = partial(print, flush=True)
        log = train(AGENTS[agent](**options), folder, device, workers, say, resume)
    except ParenvsError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    print(f"{log['samples']:,} samples in {log['seconds']} s; {folder / WEIGHTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
