"""What decides a training run, and the file of it, every field of which is checked.

A run's folder may come from a stranger: nothing in it is run, unless the caller trusts it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from parenvs import __version__
from parenvs.agents.learning.train.learners import learner_of
from parenvs.core.registry import environments
from parenvs.core.request import STEPS
from parenvs.core.task import late
from parenvs.errors import ParenvsError, did_you_mean, one_line, shown
from parenvs.fields import number, one_of, read, whole, words
from parenvs.files import write_text
from parenvs.graph import python_source

CONFIG = "config.json"
_LARGEST = 1 << 20  # bytes of a configuration
_MAX_WEIGHTS = 1 << 22  # between layers, so that a network is made in seconds
_Share = Annotated[float, number(0, 1)] | None
_Positive = Annotated[float, number(0, 10**6)] | None
_Count = Annotated[int, whole(1, 10**9)] | None
_Value = Annotated[float, number(-(10**6), 10**6)] | None


@dataclass(frozen=True)
class _Layers:
    """Widths of a network's layers."""

    net_arch: Annotated[
        tuple[Annotated[int, whole(1, 10**4)], ...], words("at most 16 widths", max_length=16)
    ]

    def __post_init__(self) -> None:
        """Refuse networks that are not made in seconds."""
        weights = sum(one * other for one, other in pairwise(self.net_arch))
        if weights > _MAX_WEIGHTS:
            raise ParenvsError(
                f"its layers have {weights:,} weights between them, more than {_MAX_WEIGHTS:,}; "
                "give smaller widths"
            )


@dataclass(frozen=True)
class _Settings:
    """Settings of agents that a run's folder can hold."""

    device: Annotated[str, one_of("auto", "cpu", "cuda")] | None = None
    policy_kwargs: _Layers | None = None
    learning_rate: _Share = None
    gamma: _Share = None
    batch_size: Annotated[int, whole(1, 10**6)] | None = None
    max_grad_norm: _Positive = None
    # MaskablePPO
    n_steps: Annotated[int, whole(1, 10**6)] | None = None
    n_epochs: Annotated[int, whole(1, 10**4)] | None = None
    gae_lambda: _Share = None
    clip_range: _Positive = None
    ent_coef: _Positive = None
    vf_coef: _Positive = None
    target_kl: _Positive = None
    normalize_advantage: bool | None = None
    # Rainbow
    double_q: bool | None = None
    dueling: bool | None = None
    prioritized: bool | None = None
    distributional: bool | None = None
    noisy: bool | None = None
    alpha: _Positive = None
    beta: _Share = None
    n_atoms: Annotated[int, whole(2, 10**4)] | None = None
    v_min: _Value = None
    v_max: _Value = None
    tau: _Share = None
    buffer_size: Annotated[int, whole(1, 10**7)] | None = None
    learning_starts: Annotated[int, whole(0, 10**9)] | None = None
    train_freq: _Count = None
    gradient_steps: Annotated[int, whole(-1, 10**6)] | None = None
    target_update_interval: _Count = None
    exploration_fraction: _Share = None
    exploration_initial_eps: _Share = None
    exploration_final_eps: _Share = None


@dataclass(frozen=True)
class _Given:
    """What a configuration says of an agent's settings."""

    overrides: _Settings


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
    seed: Annotated[int, whole(0, 2**32 - 1)] = 0
    steps: Annotated[int, whole(1, 10**12)] = STEPS
    overrides: dict[str, Any] = field(default_factory=dict)


def save_config(config: Config, folder: Path) -> None:
    """Write the configuration of a run to its folder.

    Raises:
        ParenvsError: a field could not be read back.
    """
    path = folder / CONFIG
    try:
        text = json.dumps({"parenvs": __version__, **asdict(config)}, indent=1)
    except (TypeError, ValueError) as error:
        raise ParenvsError(f"{path}: only JSON types can be written ({error})") from None
    with naming(path):
        _parsed(json.loads(text))
    write_text(path, text + "\n")


def load_config(folder: str | Path) -> Config:
    """Read the configuration of a run's folder.

    Raises:
        ParenvsError: the folder is not that of a training run; the line names the field.
    """
    path = Path(folder) / CONFIG
    with naming(f"{folder}: not the folder of a training run ({CONFIG}", ")"):
        try:
            if path.stat().st_size > _LARGEST:
                raise ParenvsError(f"larger than {_LARGEST} bytes")
            return _parsed(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            raise ParenvsError(one_line(error)) from None


@contextmanager
def naming(where: object, end: str = "") -> Iterator[None]:
    """Put the place that a ``ParenvsError`` of the block is about before its words."""
    try:
        yield
    except ParenvsError as error:
        raise ParenvsError(f"{where}: {error}{end}") from None


@contextmanager
def building(folder: str | Path) -> Iterator[None]:
    """Turn what environments and agents say of impossible arguments into one line.

    Args:
        folder: the run's folder, whose configuration has the arguments.

    Raises:
        ParenvsError: anything in the block failed.
    """
    try:
        yield
    except Exception as error:  # of many kinds, as any field may be of any impossible value
        words = one_line(error) or type(error).__name__
        raise ParenvsError(f"{Path(folder) / CONFIG}: {words}") from None


def check_trusted(config: Config, folder: str | Path, trust: bool) -> None:
    """Refuse a run on a Python function, whose file would be run, unless it is trusted.

    Raises:
        ParenvsError: the instance is a function, and ``trust`` is false.
    """
    instance = config.env_kwargs.get("instance")
    if not trust and isinstance(instance, str) and python_source.is_function(instance):
        raise ParenvsError(
            f"{Path(folder) / CONFIG}: field 'env_kwargs': the instance {shown(instance)} is a "
            "Python function, whose file would be run; if you trust it, say so (--trust)"
        )


def _parsed(content: Any) -> Config:
    """Make a configuration of an object of JSON types, which may be anything.

    Raises:
        ParenvsError: a field is unknown, of the wrong type, or out of its range.
    """
    if isinstance(content, dict):
        content = dict(content)
        if not isinstance(content.pop("parenvs", None), str):
            raise ParenvsError("field 'parenvs' must be the version that wrote it")
    config = read(Config, content)
    _check_env(config)
    with naming("field 'agent'"):
        learner = learner_of(config.agent)
    _check_overrides(config.overrides, learner.algorithm)
    return config


def _check_env(config: Config) -> None:
    """Raise ``ParenvsError`` unless it is an environment of the suite with arguments it takes."""
    # Other ids could name a module to import: gym.make("module:Name-v0").
    known = environments()
    if config.env_id not in known:
        raise ParenvsError(
            f"field 'env_id': no environment {shown(config.env_id)}"
            f"{did_you_mean(config.env_id, known)}; known: {', '.join(known)}"
        )
    game = late(known[config.env_id])
    # Of a class some versions of Python give the signature of ``__new__``.
    taken = {*inspect.signature(game.__init__).parameters, "render_mode"}
    taken -= {"self", "count", *game.local}
    _check_names(config.env_kwargs, taken, "field 'env_kwargs'")


def _check_overrides(overrides: Mapping[str, Any], algorithm: type) -> None:
    """Raise ``ParenvsError`` unless these are settings of the algorithm, in their ranges."""
    makers = [vars(one)["__init__"] for one in algorithm.__mro__ if "__init__" in vars(one)]
    taken = {name for maker in makers for name in inspect.signature(maker).parameters}
    known = [one.name for one in fields(_Settings) if one.name in taken]
    _check_names(overrides, known, "field 'overrides'")
    read(_Given, {"overrides": overrides})


def _check_names(content: Mapping[str, Any], known: Any, where: str) -> None:
    """Raise ``ParenvsError`` for the first name that is not known."""
    for name in content:
        if name not in known:
            raise ParenvsError(
                f"{where}: no such name {shown(name)}{did_you_mean(name[:80], known)}"
            )
