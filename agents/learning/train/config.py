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
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from parenvs import __version__
from parenvs.agents.learning.distributed.distribution import Distribution
from parenvs.agents.learning.train.learners import learner_of
from parenvs.core.request import STEPS
from parenvs.errors import ParenvsError, did_you_mean, one_line, shown
from parenvs.files import write_text
from parenvs.graph import python_source

CONFIG = "config.json"
_LARGEST = 1 << 20  # bytes of a configuration
_MOST_WEIGHTS = 1 << 22  # between layers, so that a network is made in seconds
_COUNT = (int, 1, 10**9)
_SHARE = (float, 0, 1)
_POSITIVE = (float, 0, 10**6)
_SWITCH = (bool, False, True)
_SETTINGS: dict[str, tuple[type, float, float]] = {
    "learning_rate": _SHARE, "gamma": _SHARE, "batch_size": (int, 1, 10**6),
    "max_grad_norm": _POSITIVE,
    # MaskablePPO
    "n_steps": (int, 1, 10**6), "n_epochs": (int, 1, 10**4), "gae_lambda": _SHARE,
    "clip_range": _POSITIVE, "ent_coef": _POSITIVE, "vf_coef": _POSITIVE, "target_kl": _POSITIVE,
    "normalize_advantage": _SWITCH,
    # Rainbow
    "double_q": _SWITCH, "dueling": _SWITCH, "prioritized": _SWITCH, "distributional": _SWITCH,
    "noisy": _SWITCH, "alpha": _POSITIVE, "beta": _SHARE, "n_atoms": (int, 2, 10**4),
    "v_min": (float, -(10**6), 10**6), "v_max": (float, -(10**6), 10**6), "tau": _SHARE,
    "buffer_size": (int, 1, 10**7), "learning_starts": (int, 0, 10**9),
    "train_freq": _COUNT, "gradient_steps": (int, -1, 10**6), "target_update_interval": _COUNT,
    "exploration_fraction": _SHARE, "exploration_initial_eps": _SHARE,
    "exploration_final_eps": _SHARE,
}  # fmt: skip
"""Settings that a run's folder can hold: type, least and greatest value."""
_DEVICES = ("auto", "cpu", "cuda")


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
        distribution: how the training is spread, as ``Distribution`` has it; empty: one process.
    """

    env_id: str = "PipelineCut-v0"
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    agent: str = "ppo"
    seed: int = 0
    steps: int = STEPS
    overrides: dict[str, Any] = field(default_factory=dict)
    distribution: dict[str, Any] = field(default_factory=dict)


def save_config(config: Config, folder: Path) -> None:
    """Write the configuration of a run to its folder.

    Raises:
        ParenvsError: a field could not be read back.
    """
    path = folder / CONFIG
    try:
        content = {k: v for k, v in asdict(config).items() if v or k != "distribution"}
        text = json.dumps({"parenvs": __version__, **content}, indent=1)
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
    if not isinstance(content, dict):
        raise ParenvsError("expected one JSON object")
    content = dict(content)
    if not isinstance(content.pop("parenvs", None), str):
        raise ParenvsError("field 'parenvs': expected the version that wrote it")
    _check_names(content, [one.name for one in fields(Config)], "field")
    config = Config(**content)
    for name in ("env_id", "agent"):
        if not isinstance(getattr(config, name), str):
            raise ParenvsError(f"field {name!r}: expected text, not {shown(getattr(config, name))}")
    for name in ("env_kwargs", "overrides", "distribution"):
        if not isinstance(getattr(config, name), dict):
            raise ParenvsError(
                f"field {name!r}: expected an object, not {shown(getattr(config, name))}"
            )
    _check_number("seed", config.seed, (int, 0, 2**32 - 1))
    _check_number("steps", config.steps, (int, 1, 10**12))
    _check_env(config)
    with naming("field 'agent'"):
        learner = learner_of(config.agent)
    _check_overrides(config.overrides, learner.algorithm)
    with naming("field 'distribution'"):
        Distribution.from_json(config.distribution)
    return config


def _check_env(config: Config) -> None:
    """Raise ``ParenvsError`` unless it is an environment of the suite with arguments it takes."""
    # Other ids could name a module to import: gym.make("module:Name-v0").
    known = {
        name: str(spec.entry_point)
        for name, spec in gym.registry.items()
        if str(spec.entry_point).startswith("parenvs.tasks.")
    }
    if config.env_id not in known:
        raise ParenvsError(
            f"field 'env_id': no environment {shown(config.env_id)}; known: {', '.join(known)}"
        )
    creator: Any = load_env_creator(known[config.env_id])
    game = getattr(creator, "game_class", creator)
    # Of a class some versions of Python give the signature of ``__new__``.
    taken = {*inspect.signature(game.__init__).parameters, "render_mode"}
    taken -= {"self", "count", *getattr(game, "local", ("problem",))}
    _check_names(config.env_kwargs, taken, "field 'env_kwargs'")


def _check_overrides(overrides: Mapping[str, Any], algorithm: type) -> None:
    """Raise ``ParenvsError`` unless these are settings of the algorithm, in their ranges."""
    makers = [vars(one)["__init__"] for one in algorithm.__mro__ if "__init__" in vars(one)]
    taken = {name for maker in makers for name in inspect.signature(maker).parameters}
    known = [name for name in (*_SETTINGS, "device", "policy_kwargs") if name in taken]
    _check_names(overrides, known, "field 'overrides'")
    for name, value in overrides.items():
        where = f"overrides.{name}"
        if name == "device":
            if value not in _DEVICES:
                raise ParenvsError(
                    f"field {where!r}: expected {', '.join(_DEVICES)}, not {shown(value)}"
                )
        elif name == "policy_kwargs":
            _check_layers(where, value)
        else:
            _check_number(where, value, _SETTINGS[name])


def _check_layers(where: str, value: Any) -> None:
    """Raise ``ParenvsError`` unless these are widths of layers, as ``{"net_arch": [64, 64]}``."""
    if not isinstance(value, dict) or list(value) != ["net_arch"]:
        raise ParenvsError(f'field {where!r}: expected {{"net_arch": [...]}}, not {shown(value)}')
    widths = value["net_arch"]
    if not isinstance(widths, list) or len(widths) > 16:
        raise ParenvsError(f"field {where!r}: expected at most 16 widths, not {shown(widths)}")
    for width in widths:
        _check_number(where, width, (int, 1, 10**4))
    weights = sum(one * other for one, other in pairwise(widths))
    if weights > _MOST_WEIGHTS:
        raise ParenvsError(
            f"field {where!r}: its layers have {weights:,} weights between them, more than "
            f"{_MOST_WEIGHTS:,}; give smaller widths"
        )


def _check_names(content: Mapping[str, Any], known: Any, where: str) -> None:
    """Raise ``ParenvsError`` for the first name that is not known."""
    for name in content:
        if name not in known:
            raise ParenvsError(
                f"{where}: no such name {shown(name)}{did_you_mean(name[:80], known)}"
            )


def _check_number(name: str, value: Any, limits: tuple[type, float, float]) -> None:
    """Raise ``ParenvsError`` unless a value is of a type and in a range, both ends included."""
    kind, least, greatest = limits
    words = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
    right = type(value) is kind or (kind is float and type(value) is int)
    if not right or not least <= value <= greatest:
        limit = "" if kind is bool else f" from {least:g} to {greatest:g}"
        raise ParenvsError(f"field {name!r}: expected {words}{limit}, not {shown(value)}")
