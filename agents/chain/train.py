"""Trains MaskablePPO or Rainbow to plan any model: reinforcement learning on a family of problems.

    python -m parenvs.agents.chain.train --agent ppo --way new --out runs/plan-rl

What ships is another network, which imitates optima (``parenvs pretrain``); this is the general
recipe, from the bare observation and the reward. Log and model are written at every look at
``plan-validation``, so that an interruption costs no more than what came after the last one.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

from parenvs.agents.chain.policy import ChainPolicy, ChainQPolicy
from parenvs.agents.pretrained.exam import Exam, exam, greedy, summary
from parenvs.agents.rainbow.algorithm import Rainbow
from parenvs.agents.train.learners import preset
from parenvs.agents.vec_env import make_env, one_thread
from parenvs.errors import ParenvsError
from parenvs.files import replacing, write_text
from parenvs.machine import cores, processor, versions

ENV_ID, LOG, MODEL = "PipelinePlan-v0", "plan-rl.json", "model.zip"
ENVS = 64
"""Environments side by side."""
REPEAT = 50
"""Episodes of each problem in the paper's way."""
WAYS = {
    "repeat": f"{REPEAT} episodes of each problem, as in arXiv 2007.04069, section 4.5",
    "new": "a new problem in every episode",
}
AGENTS = ("ppo", "rainbow")


@dataclass(frozen=True)
class PlanRun:
    """What decides a training; equal ones give equal agents on one machine.

    Attributes:
        agent: ``"ppo"`` or ``"rainbow"``.
        way: one of ``WAYS``.
        seed: seed of everything random.
        steps: environment steps.
        looks: looks at the validation set.
        family: problems of this family only.

    Raises:
        ParenvsError: an unknown agent or way.
    """

    agent: str = "ppo"
    way: str = "new"
    seed: int = 0
    steps: int = 200_000
    looks: int = 10
    family: str | None = None

    def __post_init__(self) -> None:
        """Check the agent and its way."""
        for name, known in (("agent", AGENTS), ("way", tuple(WAYS))):
            if getattr(self, name) not in known:
                raise ParenvsError(
                    f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}"
                )

    def make_env(self) -> VecEnv:
        """The environments."""
        kwargs = {"family": self.family, "repeat": REPEAT if self.way == "repeat" else 1}
        # Environments count on from the seed: runs share no problems.
        return make_env(ENV_ID, kwargs, 10_000 * self.seed, ENVS)

    def make(self, env: VecEnv) -> Any:
        """A fresh agent."""
        if self.agent == "rainbow":
            return Rainbow(ChainQPolicy, env, seed=self.seed, **rainbow_settings())
        return MaskablePPO(ChainPolicy, env, seed=self.seed, **ppo_settings())


def ppo_settings() -> dict[str, Any]:
    """Keyword arguments of MaskablePPO; only the last step of an episode pays."""
    return {
        "n_steps": 32, "batch_size": 512, "n_epochs": 4, "gamma": 1.0, "gae_lambda": 1.0,
        "learning_rate": LinearSchedule(1e-3, 1e-4, 1.0), "ent_coef": 0.003, "device": "cpu",
    }  # fmt: skip


def rainbow_settings() -> dict[str, Any]:
    """Keyword arguments of Rainbow; an observation takes 18 KB, a step of the buffer two."""
    return preset(
        "tuned", gamma=1.0, learning_rate=5e-4, buffer_size=20_000, batch_size=128,
        learning_starts=2_000, gradient_steps=2, target_update_interval=1_000,
        exploration_fraction=0.5, exploration_final_eps=0.05, device="cpu",
    )  # fmt: skip


class Looks(BaseCallback):
    """Looks at problems never trained on every so often; keeps log and model.

    Args:
        run: what is trained.
        solved: the problems.
        folder: where log and model go; None writes nothing.
        say: takes lines on how it goes.

    Attributes:
        points: what was seen: steps, processor seconds of training so far, and ``summary``.
    """

    def __init__(
        self, run: PlanRun, solved: Exam, folder: Path | None, say: Callable[[str], object]
    ) -> None:
        super().__init__()
        self.run, self.solved, self.folder, self.say = run, solved, folder, say
        self.points: list[dict[str, float]] = []
        self._away = np.zeros(2)  # seconds of looking
        self._begin = np.zeros(2)

    def _on_training_start(self) -> None:
        self._begin = _clock()

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= len(self.points) * self.run.steps / self.run.looks:
            self.look()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.look()

    def look(self) -> None:
        """Look now."""
        begin = _clock()
        spent = begin - self._begin - self._away
        seen = summary(self.solved.ratios(greedy(self.model)))
        times = dict(zip(("wall_seconds", "seconds"), spent.round(2).tolist(), strict=True))
        self.points.append({"steps": self.num_timesteps, **times, **seen})
        if self.folder is not None:
            with replacing(self.folder / MODEL) as stream:
                self.model.save(cast(io.BufferedIOBase, stream))
            write_text(self.folder / LOG, json.dumps(self.content(), indent=1) + "\n")
        self.say(
            f"{self.num_timesteps:,} steps, {spent[1]:.0f} s: {seen['median'] - 1:.1%} above the "
            f"optimum in the median, {seen['p95'] - 1:.1%} at 95 %"
        )
        self._away += _clock() - begin

    def content(self) -> dict[str, Any]:
        """The log."""
        where = {"processor": processor(), "cores": cores(), **versions()}
        return {"run": asdict(self.run), "machine": where, "points": self.points}


def train(
    run: PlanRun,
    folder: Path | None = None,
    solved: Exam | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> tuple[list[dict[str, float]], BaseAlgorithm]:
    """Train an agent.

    Args:
        run: what to train and how.
        folder: where log and model go; None writes nothing.
        solved: problems to look at (default: ``plan-validation``).
        say: takes lines on how it goes.

    Returns:
        what the looks saw, before, in between and at the end, and the agent.

    Raises:
        ParenvsError: the folder holds a log already.
    """
    if folder is not None and (folder / LOG).exists():
        raise ParenvsError(f"{folder}: holds a run already ({LOG}); choose another folder")
    with one_thread():
        env = run.make_env()
        model = run.make(env)
        looks = Looks(run, exam() if solved is None else solved, folder, say)
        model.learn(run.steps, callback=looks, log_interval=1_000_000)
        env.close()
    return looks.points, model


def _clock() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def main(arguments: Iterable[str] | None = None) -> int:
    """The command line of this module; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m parenvs.agents.chain.train", description=__doc__.splitlines()[0]
    )
    ways = "; ".join(f"{name}: {text}" for name, text in WAYS.items())
    parser.add_argument("--agent", default="ppo", choices=AGENTS, help="default: %(default)s")
    parser.add_argument("--way", default=PlanRun.way, choices=WAYS, help=f"{ways} (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=PlanRun.steps, help="default: %(default)s")
    parser.add_argument("--looks", type=int, default=PlanRun.looks, help="default: %(default)s")
    parser.add_argument("--family", help="problems of one family only")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model and its log")
    options = vars(parser.parse_args(None if arguments is None else list(arguments)))
    folder = options.pop("out")
    try:
        train(PlanRun(**options), folder, say=lambda line: print(line, flush=True))
    except ParenvsError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; {folder} holds the last look's log and model", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
