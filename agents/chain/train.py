"""Trains MaskablePPO or Rainbow on drawn problems of ``PipelinePlan-v0``, to plan any model.

    python -m parenvs.agents.chain.train --agent ppo --way new --out runs/plan-rl

The agent learns from the bare observation and the reward. The network that ships is another one,
which imitates optima (``parenvs pretrain``). Log and model are written whenever the agent is
evaluated on ``plan-validation``, so an interruption loses only what came after the last time.
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
from parenvs.errors import ParenvsError, printable
from parenvs.files import replacing, write_text
from parenvs.machine import host

ENV_ID, LOG, MODEL = "PipelinePlan-v0", "plan-rl.json", "model.zip"
ENVS = 64
"""Number of environments side by side."""
REPEAT = 50
"""Episodes of each problem in the way ``repeat``, the paper's."""
WAYS = {
    "repeat": f"{REPEAT} episodes of each problem, as in arXiv 2007.04069, section 4.5",
    "new": "a new problem in every episode",
}
"""Ways to draw the problems, with words for the help text."""
AGENTS = ("ppo", "rainbow")


@dataclass(frozen=True)
class ChainRun:
    """What decides a training; equal runs give equal agents on one machine.

    Attributes:
        agent: ``"ppo"`` or ``"rainbow"``.
        way: how problems are drawn, a key of ``WAYS``.
        seed: seed of everything random.
        steps: number of environment steps.
        looks: how often the agent is evaluated on the validation set before the training ends.
        family: draw problems of this family only.

    Raises:
        ParenvsError: the agent or the way is unknown.
    """

    agent: str = "ppo"
    way: str = "new"
    seed: int = 0
    steps: int = 200_000
    looks: int = 10
    family: str | None = None

    def __post_init__(self) -> None:
        """Check the agent and the way."""
        for name, known in (("agent", AGENTS), ("way", tuple(WAYS))):
            if getattr(self, name) not in known:
                raise ParenvsError(
                    f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}"
                )

    def make_env(self) -> VecEnv:
        """Make the environments."""
        kwargs = {"family": self.family, "repeat": REPEAT if self.way == "repeat" else 1}
        # Environments have consecutive seeds, so the factor keeps runs from sharing problems.
        return make_env(ENV_ID, kwargs, 10_000 * self.seed, ENVS)

    def make(self, env: VecEnv) -> Any:
        """Make a fresh agent that plays ``env``."""
        if self.agent == "rainbow":
            return Rainbow(ChainQPolicy, env, seed=self.seed, **rainbow_settings())
        return MaskablePPO(ChainPolicy, env, seed=self.seed, **ppo_settings())


def ppo_settings() -> dict[str, Any]:
    """Keyword arguments of MaskablePPO; undiscounted, as only an episode's last step pays."""
    return {
        "n_steps": 32, "batch_size": 512, "n_epochs": 4, "gamma": 1.0, "gae_lambda": 1.0,
        "learning_rate": LinearSchedule(1e-3, 1e-4, 1.0), "ent_coef": 0.003, "device": "cpu",
    }  # fmt: skip


def rainbow_settings() -> dict[str, Any]:
    """Keyword arguments of Rainbow; the buffer keeps two observations of 18 KB per step."""
    return preset(
        "tuned", gamma=1.0, learning_rate=5e-4, buffer_size=20_000, batch_size=128,
        learning_starts=2_000, gradient_steps=2, target_update_interval=1_000,
        exploration_fraction=0.5, exploration_final_eps=0.05, device="cpu",
    )  # fmt: skip


class Looks(BaseCallback):
    """A callback that evaluates the agent on problems it never trains on, and writes the log.

    Args:
        run: the run that is trained.
        solved: the problems with their optima.
        folder: where log and model go; None writes nothing.
        say: is called with a line on each evaluation.

    Attributes:
        points: the evaluations: environment steps, wall and processor seconds of training so far,
            and the ``summary`` of the lengths over the optima.
    """

    def __init__(
        self, run: ChainRun, solved: Exam, folder: Path | None, say: Callable[[str], object]
    ) -> None:
        super().__init__()
        self.run, self.solved, self.folder, self.say = run, solved, folder, say
        self.points: list[dict[str, float]] = []
        self._looking = np.zeros(2)  # wall and processor seconds of evaluations
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
        """Evaluate the agent now, and write log and model."""
        begin = _clock()
        training = begin - self._begin - self._looking
        seen = summary(self.solved.ratios(greedy(self.model)))
        times = dict(zip(("wall_seconds", "seconds"), training.round(2).tolist(), strict=True))
        self.points.append({"steps": self.num_timesteps, **times, **seen})
        if self.folder is not None:
            with replacing(self.folder / MODEL) as stream:
                self.model.save(cast(io.BufferedIOBase, stream))
            write_text(self.folder / LOG, json.dumps(self.content(), indent=1) + "\n")
        self.say(
            f"{self.num_timesteps:,} steps, {training[1]:.0f} s: "
            f"{seen['median'] - 1:.1%} above the optimum in the median, "
            f"{seen['p95'] - 1:.1%} at 95 %"
        )
        self._looking += _clock() - begin

    def content(self) -> dict[str, Any]:
        """The content of the log, as JSON types."""
        return {"run": asdict(self.run), "machine": host(), "points": self.points}


def train(
    run: ChainRun,
    folder: Path | None = None,
    solved: Exam | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> tuple[list[dict[str, float]], BaseAlgorithm]:
    """Train an agent.

    Args:
        run: what decides the training.
        folder: where log and model go; None writes nothing.
        solved: problems that the agent is evaluated on (default: ``plan-validation``).
        say: is called with a line on each evaluation.

    Returns:
        the evaluations from before the training to its end (``Looks.points``), and the agent.

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
    """Wall and processor seconds now."""
    return np.array([time.perf_counter(), time.process_time()])


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m parenvs.agents.chain.train", description=__doc__.splitlines()[0]
    )
    ways = "; ".join(f"{name}: {text}" for name, text in WAYS.items())
    parser.add_argument("--agent", default="ppo", choices=AGENTS, help="default: %(default)s")
    parser.add_argument("--way", default=ChainRun.way, choices=WAYS, help=f"{ways} (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=ChainRun.steps, help="default: %(default)s")
    parser.add_argument("--looks", type=int, default=ChainRun.looks, help="default: %(default)s")
    parser.add_argument("--family", help="problems of one family only")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model and its log")
    options = vars(parser.parse_args(None if arguments is None else list(arguments)))
    folder = options.pop("out")
    try:
        train(ChainRun(**options), folder, say=lambda line: print(line, flush=True))
    except ParenvsError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; {folder} holds the last look's log and model", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
