"""What decides a training, and the file of it, every field of which is checked.

A run's folder may come from a stranger: nothing in it is run, unless the caller trusts it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import torch

from parenvs.agents.learning.algorithm import Settings, algorithm, settings_of
from parenvs.agents.learning.options import TrainOptions
from parenvs.core.registry import environments, refuse_removed
from parenvs.core.task import late
from parenvs.errors import ParenvsError, did_you_mean, one_line, refuse_unknown, shown
from parenvs.fields import SCHEMA, Text, read, settle, whole
from parenvs.files import is_function, read_object

HERE, ACTORS, ENVS, DEVICE = "here", "actors", "environments", "device"
"""Where turns are played: in the learner's process; by actors that have the policy, too; by
processes of environments that ask the learner for every action; on the learner's device."""
ALONE, REDUCED, SERVED = "alone", "reduced", "served"
"""How learners learn together: one learns alone; all-reduced; by a server."""


class Distribution(NamedTuple):
    """Where steps are played (``HERE``, ...), and how learners learn together (``ALONE``, ...)."""

    plays: str
    learns: str

    @property
    def options(self) -> dict[str, bool]:
        """Counts of processes -> whether they say something to it."""
        return {"actors": self.plays in (ACTORS, ENVS), "learners": self.learns != ALONE}


SINGLE = "single"
DISTRIBUTIONS = {
    SINGLE: Distribution(HERE, ALONE),
    "actors": Distribution(ACTORS, ALONE),
    "inference": Distribution(ENVS, ALONE),
    "learners": Distribution(HERE, REDUCED),
    "environments": Distribution(ENVS, REDUCED),
    "server": Distribution(HERE, SERVED),
    "fused": Distribution(DEVICE, REDUCED),
}


def distribution_of(name: str, staleness: int | None = None) -> Distribution:
    """Return a distribution by its name.

    Raises:
        ParenvsError: there is none, or it has no staleness.
    """
    refuse_unknown("no distribution", name, DISTRIBUTIONS)
    if staleness is not None and DISTRIBUTIONS[name].learns != SERVED:
        raise ParenvsError(f"staleness is of the distribution server, not of {name}")
    return DISTRIBUTIONS[name]


def refuse_ignored(name: str, given: Iterable[str]) -> None:
    """Refuse options that a distribution would ignore.

    Raises:
        ParenvsError: it ignores one; the line names those that do not.
    """
    used = distribution_of(name).options
    for option in given:
        if not used.get(option, True):
            users = [other for other, x in DISTRIBUTIONS.items() if x.options[option]]
            raise ParenvsError(
                f"--{option}: distribution {name} ignores it; leave it out, or take one of "
                f"{', '.join(users)}"
            )


CONFIG, MODEL = "config.json", "model.pt"
_PLAIN = {"envs": 8, "minibatch": 64, "quantiles": 1, "sync": 500}
"""Rainbow's settings where actions have no rows."""
_REGRETS = {"turns_a_step": 128, "passes": 4, "scale": 0.02, "worst": 10.0, "entropy": 0.002}
OVERRIDES: dict[tuple[str, str], dict[str, Any]] = {
    # Where actions have no features, more and smaller steps find the optimum, and quantiles of so
    # many actions cost more than they find. A pipeline's only reward is its last: Rainbow explores
    # longer.
    ("PipelineCut-v0", "ppo"): {"turns_a_step": 128, "entropy": 0.02},
    ("OperatorPartition-v0", "ppo"): {"envs": 8, "turns": 64, "turns_a_step": 128},
    ("PipelineCut-v0", "rainbow"): {**_PLAIN, "rate": 1e-3, "wander": 0.8},
    ("OperatorPartition-v0", "rainbow"): _PLAIN,
    # Iterations in which the paper's epsilon falls (arXiv 2007.04069, section 5.1); 10,000 in its
    # pipelines. Its rate is 0.001 there and less here, how much is lost: 0.0003 is our choice.
    ("OperatorPartition-v0", "rainbow-paper"): {"within": 2_000, "rate": 3e-4},
    ("DataParallel-v0", "rainbow-paper"): {"within": 500, "rate": 3e-4},
    # What a relocation opens counts less than what it gains; the rule is soon left.
    ("PipelineImprove-v0", "ppo"): {
        "turns_a_step": 128,
        "discount": 0.95,
        "trace": 0.9,
        "sharpness": 0.3,
    },
    # Regrets are shares of the optimum: 2 % count as 1.
    ("PipelinePlan-v0", "imitate"): _REGRETS,
    ("PartitionPlan-v2", "imitate"): {**_REGRETS, "sharpness": 1.0},
}
"""Environment and algorithm -> settings in place of the algorithm's defaults."""


def plain_id(env_id: str) -> str:
    """Return an environment's id without the namespace of this suite."""
    return env_id.removeprefix("parenvs/")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(TrainOptions):
    """What decides a training; equal configurations give equal agents on equal machines.

    Attributes:
        env_id: id of the environment.
        env_kwargs: its arguments, as JSON types.
        steps: steps of all environments.
        settings: of the algorithm, in place of its defaults.
    """

    env_id: Text
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    steps: Annotated[int, whole(1, 10**12)] = 200_000
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise errors for values of another type, and no kind of device."""
        settle(self)
        try:
            torch.device(self.device)
        except RuntimeError as error:
            raise ParenvsError(f"device {shown(self.device)}: {one_line(error)}") from None

    @property
    def size(self) -> int:
        """Learners of the training."""
        distribution = distribution_of(self.distribution, self.staleness)
        if distribution.learns == ALONE:
            return 1
        is_fused = distribution.plays == DEVICE
        return self.learners or (max(torch.cuda.device_count(), 1) if is_fused else 2)

    def agent_settings(self) -> Settings:
        """Return the algorithm's settings: its defaults, ``OVERRIDES``, and what is given.

        Unless they are given, there are as many environments as the processes need.

        Raises:
            ParenvsError: there is no such algorithm or setting, or a value is out of its range.
        """
        defaults = OVERRIDES.get((plain_id(self.env_id), self.agent), {})
        kind = algorithm(self.agent)
        distribution = distribution_of(self.distribution, self.staleness)
        if distribution.learns != ALONE and not kind.divides:
            able = ", ".join(name for name, other in DISTRIBUTIONS.items() if other.learns == ALONE)
            raise ParenvsError(
                f"{kind.name} has an update that learners cannot share; it can be distributed as "
                f"{able}"
            )
        settings = settings_of(kind, **{**defaults, **self.settings})
        processes = self.actors if distribution.plays in (ACTORS, ENVS) else 1
        required = processes * self.size * int(getattr(settings, "copies", 1))
        if "envs" in self.settings or settings.envs >= required:
            return settings
        return replace(settings, envs=required)


def claimed(folder: Path) -> bool:
    """Return whether a folder holds a run, finished or not."""
    return (folder / CONFIG).exists()


def check_free(folder: Path, resume: bool) -> None:
    """Raise ``ParenvsError`` if a folder holds a run that is not to be resumed."""
    if claimed(folder) and not resume:
        raise ParenvsError(
            f"{folder}: holds a run already; continue it with resume (--resume) or choose "
            "another folder"
        )


def load_config(folder: str | Path, trust: bool = False) -> TrainConfig:
    """Read the configuration of a run; ``trust`` allows running the file of a Python function.

    Raises:
        ParenvsError: there is none, a field is wrong, or a function is not trusted.
    """
    path = Path(folder) / CONFIG
    if not path.exists():
        raise ParenvsError(f"{folder}: not the folder of a training run (no {CONFIG})")
    config = read(TrainConfig, read_object(path, SCHEMA), str(path))
    try:
        check_env(config.env_id, config.env_kwargs)
        config.agent_settings()
        instance = config.env_kwargs.get("instance")
        if not trust and isinstance(instance, str) and is_function(instance):
            raise ParenvsError(
                f"field 'env_kwargs': the instance {shown(instance)} is a Python function, whose "
                "file would be run; if you trust it, say so (--trust), or name it anew in train"
            )
    except ParenvsError as error:
        raise ParenvsError(f"{path}: {error}") from None
    return config


@contextmanager
def building(folder: str | Path) -> Iterator[None]:
    """Turn exceptions of environments and agents in the block into ``ParenvsError``."""
    try:
        yield
    except Exception as error:  # of many kinds, as any field may be of any impossible value
        words = one_line(error) or type(error).__name__
        raise ParenvsError(f"{Path(folder) / CONFIG}: {words}") from None


def check_env(env_id: str, env_kwargs: Mapping[str, Any]) -> None:
    """Raise ``ParenvsError`` unless there is such an environment that takes these arguments.

    Only arguments of this suite's environments are checked.
    """
    known = environments()
    refuse_removed("environment", env_id.rpartition("/")[2], "field 'env_id'")
    # Other ids could name a module to import: gym.make("module:Name-v0").
    if env_id not in gym.registry:
        refuse_unknown("field 'env_id': no environment", env_id, known)
    if env_id not in known:
        return
    game = late(known[env_id])
    # Of a class some versions of Python give the signature of ``__new__``.
    taken = {*inspect.signature(game.__init__).parameters, "render_mode"}
    taken -= {"self", "count", *game.local}
    for name in env_kwargs:
        if name not in taken:
            raise ParenvsError(
                f"field 'env_kwargs': no such name {shown(name)}{did_you_mean(name[:80], taken)}"
            )


RESULT, PLAN = "result.json", "plan.json"
SCORES = "scores.json"
"""File of the returns on a validation set, in place of a plan where problems are drawn."""


@dataclass(frozen=True)
class TrainResult:
    """The outcome of a training run.

    Attributes:
        value: return of the best episode, None if none has ended; where problems are drawn, so
            that episodes do not compare, the score of the trained policy's best actions on
            ``judged_on``, and without such a set the mean return of the last episodes.
        actions: the actions of the best episode; none where problems are drawn.
        steps: number of environment steps done.
        best_steps: environment steps after which the best episode was found.
        target_steps: environment steps after which the target was reached, or None.
        target_seconds: processor seconds after which the target was reached, or None.
        episodes: number of complete episodes; each is one plan judged.
        seconds: processor seconds of training.
        coverage: where problems are drawn, the share of those of ``judged_on`` that got a legal
            plan; else None.
        interval: 95 % interval of the score over the problems, or None.
        judged_on: the validation set, or None.
        reference: what scores are relative to, see ``SetEvaluation``, or None.
    """

    value: float | None
    actions: list[int]
    steps: int
    best_steps: int
    target_steps: int | None
    target_seconds: float | None
    episodes: int
    seconds: float
    coverage: float | None = None
    interval: tuple[float, float] | None = None
    judged_on: str | None = None
    reference: str | None = None
