"""A training run: any agent on any environment of the suite, in one process, in one folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from tqdm import TqdmExperimentalWarning

from parenvs import __version__
from parenvs.agents.names import STEPS
from parenvs.agents.train.best_plan import BestPlan
from parenvs.agents.train.checkpoint import Checkpoints, load_checkpoint
from parenvs.agents.train.learners import learner_of
from parenvs.agents.vec_env import make_env, one_thread
from parenvs.errors import ParenvsError
from parenvs.files import replacing, write_text
from parenvs.plan import Plan

CONFIG, CHECKPOINT, MODEL, RESULT, PLAN = (
    "config.json",
    "checkpoint.zip",
    "model.zip",
    "result.json",
    "plan.json",
)


@dataclass(frozen=True)
class Config:
    """What decides a training run; equal configurations give equal runs.

    Attributes:
        env_id: id of the environment.
        env_kwargs: arguments of the environment, as JSON types.
        agent: name of the agent, a key of ``LEARNERS``.
        seed: seed of everything random.
        steps: number of environment steps.
        overrides: settings of the agent that differ from its defaults.
    """

    env_id: str = "PipelineCut-v0"
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    agent: str = "ppo"
    seed: int = 0
    steps: int = STEPS
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainResult:
    """What a training run found.

    Attributes:
        value: return of the best episode.
        actions: the actions of the best episode.
        steps: number of environment steps done.
        best_steps: environment steps after which the best episode was found.
        target_steps: environment steps after which the target was reached, or None.
        target_seconds: processor seconds after which the target was reached, or None.
        episodes: number of complete episodes; each is one plan judged.
        seconds: processor seconds of training.
    """

    value: float
    actions: list[int]
    steps: int
    best_steps: int
    target_steps: int | None
    target_seconds: float | None
    episodes: int
    seconds: float


def train(
    config: Config,
    folder: str | Path | None = None,
    resume: bool = False,
    target: float | None = None,
    stop_at_target: bool = False,
    progress: bool = False,
    checkpoint_every: int | None = None,
    callbacks: Sequence[BaseCallback] = (),
) -> tuple[TrainResult, BaseAlgorithm]:
    """Train an agent on one instance.

    Args:
        config: which agent is trained on which environment, and how long.
        folder: where configuration, checkpoints, logs (csv, tensorboard), the model, the best plan
            and the result go; None writes nothing.
        resume: whether to continue from the folder's checkpoint, if there is one.
        target: an episode return; the result says when it was first reached.
        stop_at_target: whether training ends when ``target`` is reached.
        progress: whether to show a progress bar.
        checkpoint_every: rollouts between two checkpoints (default: the agent's own).
        callbacks: further SB3 callbacks.

    Returns:
        the result and the trained agent.

    Raises:
        ParenvsError: the agent is unknown, the folder holds another run, or the checkpoint is
            broken.
    """
    learner = learner_of(config.agent)
    place = None if folder is None else Path(folder)
    if place is not None:
        _claim(place, config, resume)
    with one_thread():
        envs = learner.envs.get(config.env_id, 8)
        env = make_env(config.env_id, config.env_kwargs, config.seed, envs)
        scale = env.get_attr("largest_return")[0]
        tracker = BestPlan(target, stop_at_target, scale)
        restored = None
        if place is not None and resume and (place / CHECKPOINT).exists():
            model, restored = load_checkpoint(place / CHECKPOINT, learner.algorithm, env=env)
            tracker.restore(restored["tracker"])
            tracker.replay(env, model)
        else:
            steps = env.get_attr("episode_steps")[0]
            model = learner.make(env, config.env_id, steps, config.seed, **config.overrides)
        every = checkpoint_every or learner.checkpoint_every
        all_callbacks = [tracker, *callbacks]
        if place is not None:
            # Loggers overwrite their files, so a resumed run logs into a folder of its own.
            number = len(list((place / "log").glob("*")))
            model.set_logger(configure(str(place / "log" / str(number)), ["csv", "tensorboard"]))
            all_callbacks.append(Checkpoints(place / CHECKPOINT, tracker, every, restored))
        remaining = config.steps - model.num_timesteps
        if remaining > 0:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TqdmExperimentalWarning)  # by SB3's progress bar
                model.learn(
                    remaining,
                    callback=all_callbacks,
                    log_interval=learner.log_interval,
                    reset_num_timesteps=restored is None,
                    progress_bar=progress,
                )
        env.close()
    result = TrainResult(
        value=tracker.best_return,
        actions=tracker.best_actions,
        steps=model.num_timesteps,
        best_steps=tracker.best_steps,
        target_steps=tracker.target_steps,
        target_seconds=tracker.target_seconds,
        episodes=tracker.episodes,
        seconds=tracker.seconds,
    )
    if place is not None:
        with replacing(place / MODEL) as stream:
            model.save(stream)
        replay(config, result.actions).save(place / PLAN)
        _write_json(place / RESULT, asdict(result))
    return result, model


def replay(config: Config, actions: Sequence[int]) -> Plan:
    """The plan that ``actions`` build in the environment of ``config``."""
    return play(config.env_id, config.env_kwargs, actions, config.seed).get_wrapper_attr("plan")()


def play(
    env_id: str, env_kwargs: dict[str, Any], actions: Sequence[int], seed: int = 0
) -> gym.Env[Any, Any]:
    """Make an environment, reset it by ``seed``, and take ``actions`` in it."""
    env = gym.make(env_id, **env_kwargs)
    env.reset(seed=seed)
    for action in actions:
        env.step(action)
    return env


def load_config(folder: str | Path) -> Config:
    """Read the configuration of a run's folder.

    Raises:
        ParenvsError: the folder is not that of a training run.
    """
    path = Path(folder) / CONFIG
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content.pop("parenvs")
        return Config(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ParenvsError(f"{folder}: not the folder of a training run ({error})") from None


def load_model(folder: str | Path) -> BaseAlgorithm:
    """Load the trained agent of a run's folder.

    Raises:
        ParenvsError: the folder holds no finished run, or its model is broken.
    """
    learner = learner_of(load_config(folder).agent)
    path = Path(folder) / MODEL
    if not path.exists():
        raise ParenvsError(f"{folder}: no {MODEL} yet; finish the run with resume (--resume)")
    try:
        model: BaseAlgorithm = learner.algorithm.load(path, device="cpu")
    except Exception as error:  # broken pickles and zip files raise errors of many kinds
        raise ParenvsError(f"{path}: not a trained agent ({error}); train anew") from None
    return model


def _claim(folder: Path, config: Config, resume: bool) -> None:
    """Write the configuration into a new folder, or check that the folder holds the same one.

    Raises:
        ParenvsError: the folder holds a run that is not to be resumed, or another one.
    """
    if (folder / CONFIG).exists():
        if not resume:
            raise ParenvsError(
                f"{folder}: holds a run already; continue it with resume (--resume) or choose "
                "another folder"
            )
        if load_config(folder) != config:
            raise ParenvsError(f"{folder}: holds a run of another configuration ({CONFIG} differs)")
        return
    _write_json(folder / CONFIG, {"parenvs": __version__, **asdict(config)})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=1) + "\n")
