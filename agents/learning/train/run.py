"""A training run: any agent on any environment of the suite, in one process, in one folder."""

from __future__ import annotations

import io
import json
import shutil
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv
from tqdm import TqdmExperimentalWarning

from parenvs.agents.evaluation.set_evaluation import SetEvaluation, judged
from parenvs.agents.learning.rainbow.algorithm import Rainbow
from parenvs.agents.learning.train.best_plan import BestPlan
from parenvs.agents.learning.train.checkpoint import Checkpoints, load_checkpoint
from parenvs.agents.learning.train.config import (
    CONFIG,
    Config,
    building,
    check_trusted,
    load_config,
    save_config,
)
from parenvs.agents.learning.train.learners import learner_of, plain
from parenvs.agents.learning.train.weights import AGENT, load_counters, load_weights, save_counters
from parenvs.agents.learning.vec_env import make_env, one_thread
from parenvs.core.plan import Plan
from parenvs.core.sets import validation_of
from parenvs.errors import ParenvsError, one_line
from parenvs.files import locked, replacing, write_text

_LEARNING, _KEPT = ("buffer_size", "n_steps"), 64
"""Settings of how many steps an agent keeps while it learns, and how many where it does not."""
CHECKPOINT, MODEL, RESULT, PLAN = "checkpoint.zip", "model.zip", "result.json", "plan.json"
SCORES = "scores.json"
"""File of the returns on a validation set, in place of a plan where problems are drawn."""
LOG = "log"


@dataclass(frozen=True)
class TrainResult:
    """What a training run found.

    Attributes:
        value: return of the best episode, None if none has ended; where problems are drawn, so
            that episodes do not compare, the mean return of the trained policy's best actions on
            ``judged_on``.
        actions: the actions of the best episode; none where problems are drawn.
        steps: number of environment steps done.
        best_steps: environment steps after which the best episode was found.
        target_steps: environment steps after which the target was reached, or None.
        target_seconds: processor seconds after which the target was reached, or None.
        episodes: number of complete episodes; each is one plan judged.
        seconds: processor seconds of training.
        regret: where problems are drawn, the interquartile mean on ``judged_on``, see
            ``SetEvaluation``; else None.
        interval: its 95 % interval over the problems, or None.
        judged_on: the validation set, or None.
        reference: what the regret is to, see ``SetEvaluation``, or None.
    """

    value: float | None
    actions: list[int]
    steps: int
    best_steps: int
    target_steps: int | None
    target_seconds: float | None
    episodes: int
    seconds: float
    regret: float | None = None
    interval: tuple[float, float] | None = None
    judged_on: str | None = None
    reference: str | None = None


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
    """Train an agent on one instance, or on drawn problems.

    A run on one instance keeps its best plan. One on drawn problems keeps the policy, and judges it
    on the set for validation (``validation_of``). A run that is interrupted before its first
    checkpoint leaves nothing behind; a resumed run on drawn problems goes on with other problems
    than it would have drawn.

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
        ParenvsError: the agent is unknown, the folder holds another run, another process writes to
            it, or the checkpoint is broken.
    """
    learner_of(config.agent)  # raises before a folder is made
    tracker = BestPlan(target, stop_at_target)
    if folder is None:
        with one_thread():
            model, draws = _learned(config, tracker, progress, callbacks)
            return _result(tracker, model, _judged(model, config) if draws else None), model
    place = Path(folder)
    with locked(place), one_thread():
        fresh = not claimed(place)
        _claim(place, config, resume)
        try:
            model, draws = _learned(
                config, tracker, progress, callbacks, place, resume, checkpoint_every
            )
        except (KeyboardInterrupt, ParenvsError):
            if fresh and not (place / CHECKPOINT).exists():
                (place / CONFIG).unlink()
                shutil.rmtree(place / LOG, ignore_errors=True)
            raise
        scores = _judged(model, config) if draws else None
        result = _result(tracker, model, scores)
        stored = io.BytesIO()
        model.save(stored)
        with zipfile.ZipFile(stored, "a") as archive:
            save_counters(archive, model)
        with replacing(place / MODEL) as stream:
            stream.write(stored.getvalue())
        if scores is not None:
            scores.save(place / SCORES)
        elif result.episodes:
            replay(config, result.actions).save(place / PLAN)
        else:
            warnings.warn(
                f"{folder}: no episode has ended in {result.steps} steps, so there is no plan; "
                "train with more steps",
                stacklevel=2,
            )
        write_text(place / RESULT, json.dumps(asdict(result), indent=1) + "\n")
    return result, model


def _learned(
    config: Config,
    tracker: BestPlan,
    progress: bool,
    callbacks: Sequence[BaseCallback],
    place: Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
) -> tuple[Any, bool]:
    """The trained agent, and whether problems were drawn; the arguments are those of ``train``."""
    learner = learner_of(config.agent)
    env, model = _fresh(config)
    tracker.scale = env.get_attr("largest_return")[0]
    tracker.drawn = draws = bool(env.get_attr("draws")[0])
    all_callbacks, random = [tracker, *callbacks], None
    if place is not None:
        if resume and (place / CHECKPOINT).exists():
            random = load_checkpoint(place / CHECKPOINT, model, tracker)
        # Loggers overwrite their files, so a resumed run logs into a folder of its own.
        number = len(list((place / LOG).glob("*")))
        model.set_logger(configure(str(place / LOG / str(number)), ["csv", "tensorboard"]))
        every = checkpoint_every or learner.checkpoint_every
        all_callbacks.append(Checkpoints(place / CHECKPOINT, tracker, every, random))
    remaining = config.steps - model.num_timesteps
    if remaining > 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TqdmExperimentalWarning)  # by SB3's progress bar
            model.learn(
                remaining,
                callback=all_callbacks,
                log_interval=learner.log_interval,
                reset_num_timesteps=random is None,
                progress_bar=progress,
            )
    env.close()
    return model, draws


def _judged(model: BaseAlgorithm, config: Config) -> SetEvaluation | None:
    """How the trained policy does on the validation set of what it was trained on, if any."""
    found = validation_of(plain(config.env_id), config.env_kwargs)
    return None if found is None else judged(model, *found)


def _result(tracker: BestPlan, model: BaseAlgorithm, scores: SetEvaluation | None) -> TrainResult:
    """What the callback has seen of a run, and what the trained policy gives on a set, if any."""
    best = tracker.best_return if tracker.episodes else None
    return TrainResult(
        value=best if scores is None else float(scores.values.mean()),
        actions=tracker.best_actions if scores is None else [],
        steps=model.num_timesteps,
        best_steps=tracker.best_steps,
        target_steps=tracker.target_steps,
        target_seconds=tracker.target_seconds,
        episodes=tracker.episodes,
        seconds=tracker.seconds,
        regret=None if scores is None else scores.regret,
        interval=None if scores is None else scores.interval,
        judged_on=None if scores is None else scores.set_name,
        reference=None if scores is None else scores.reference,
    )


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


def load_model(folder: str | Path, trust: bool = False) -> BaseAlgorithm:
    """Load the trained agent of a run's folder, its weights alone, without running what it holds.

    The agent is made anew by ``config.json``; the pickled data of ``model.zip`` are not read.

    Args:
        folder: the folder.
        trust: whether a run on a Python function may run the function's file.

    Raises:
        ParenvsError: the folder holds no finished run, or its model is broken.
    """
    config = load_config(folder)
    check_trusted(config, folder, trust)
    path = Path(folder) / MODEL
    if not path.exists():
        raise ParenvsError(f"{folder}: no {MODEL} yet; finish the run with resume (--resume)")
    # What learns needs memory that is not needed here.
    less = {name: min(_KEPT, config.overrides.get(name, _KEPT)) for name in _LEARNING}
    overrides = config.overrides | {k: v for k, v in less.items() if k in config.overrides}
    with building(folder):
        _, model = _fresh(replace(config, overrides=overrides), envs=1)
    try:
        with zipfile.ZipFile(path) as archive:
            load_weights(archive, model)
            model.num_timesteps = config.steps  # of a file that SB3 alone wrote
            if AGENT in archive.namelist():
                load_counters(archive, model)
    except Exception as error:  # broken files raise errors of many kinds
        raise ParenvsError(f"{path}: not a trained agent ({one_line(error)}); train anew") from None
    if isinstance(model, Rainbow):
        left = 1 - model.num_timesteps / config.steps
        model.exploration_rate = model.exploration_schedule(left)
    return model


def _fresh(config: Config, envs: int | None = None) -> tuple[VecEnv, Any]:
    """The environments of a run, as many as its agent takes or ``envs``, and an untrained agent."""
    learner = learner_of(config.agent)
    count = envs or learner.side_by_side(config.env_id)
    env = make_env(config.env_id, config.env_kwargs, config.seed, count)
    steps = env.get_attr("episode_steps")[0]
    return env, learner.make(env, config.env_id, steps, config.seed, **config.overrides)


def _claim(folder: Path, config: Config, resume: bool) -> None:
    """Write the configuration into a new folder, or check that the folder holds the same one.

    Raises:
        ParenvsError: the folder holds a run that is not to be resumed, or another one.
    """
    check_free(folder, resume)
    if not claimed(folder):
        save_config(config, folder)
    elif load_config(folder) != config:
        raise ParenvsError(f"{folder}: holds a run of another configuration ({CONFIG} differs)")


def claimed(folder: Path) -> bool:
    """Whether a folder holds a run, finished or not."""
    return (folder / CONFIG).exists()


def check_free(folder: Path, resume: bool) -> None:
    """Raise an error if a folder holds a run that is not to be resumed.

    Raises:
        ParenvsError: it does.
    """
    if claimed(folder) and not resume:
        raise ParenvsError(
            f"{folder}: holds a run already; continue it with resume (--resume) or choose "
            "another folder"
        )
