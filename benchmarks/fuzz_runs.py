"""Readers of run folders and of Python functions, for ``fuzz.py``."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz_readers import Reader, check_graph, must
from parenvs import Graph
from parenvs.graph import python_source

AGENTS = {
    "ppo": {"n_steps": 8, "batch_size": 8, "policy_kwargs": {"net_arch": [4]}},
    "rainbow": {"buffer_size": 64, "learning_starts": 8, "policy_kwargs": {"net_arch": [4]}},
}
"""Agents of the runs that are changed -> their settings."""
FUNCTION = '''\
"""A function of arrays, and its arguments, which a file describes."""

import json

import jax
import jax.numpy as jnp


def made(value):
    if isinstance(value, dict) and "shape" in value:
        return jax.ShapeDtypeStruct(tuple(value["shape"]), value["dtype"])
    if isinstance(value, dict):
        return {key: made(one) for key, one in value.items()}
    return value


def arguments():
    with open(PLACE) as stream:
        return made(json.load(stream))


def step(weights, batch, axis=0):
    for name in sorted(weights):
        batch = jnp.tanh(jnp.dot(batch, weights[name]))
    return jnp.sum(jnp.take(batch, jnp.arange(2), axis=0), axis=0)
'''


@cache
def run_of(agent: str) -> dict[str, bytes]:
    """Return the files of a short run's folder by name; another process trains."""
    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context("fork").Process(target=_train, args=(agent, folder))
        process.start()
        process.join()
        names = ("config.json", "model.zip", "checkpoint.zip")
        files = [Path(folder) / name for name in names]
        return {file.name: file.read_bytes() for file in files if file.exists()}


def _train(agent: str, folder: str) -> None:
    """Train for a few steps, with a checkpoint before the end."""
    from parenvs.agents.learning.train.config import Config
    from parenvs.agents.learning.train.run import train

    kwargs = {"instance": "vgg-19", "cluster": "B", "stages": 3}
    config = Config(env_kwargs=kwargs, agent=agent, steps=192, overrides=AGENTS[agent])
    train(config, folder, checkpoint_every=1)


def run_folder(agent: str, path: Path, name: str) -> Path:
    """Make the folder of a run, with one of its files in place of the run's own."""
    folder = path.parent / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for own, data in run_of(agent).items():
        (folder / own).write_bytes(data)
    shutil.copy(path, folder / name)
    return folder


def read_config(path: Path) -> Any:
    """Read a run's folder with a configuration as ``parenvs solve`` and ``train`` do."""
    import gymnasium as gym

    from parenvs.agents.learning.train.config import building, load_config
    from parenvs.agents.learning.train.run import load_model

    folder = run_folder("ppo", path, "config.json")
    config = load_config(folder)
    load_model(folder)
    with building(folder):
        return gym.make(config.env_id, **config.env_kwargs)


def read_model(path: Path) -> Any:
    """Load a trained agent."""
    from parenvs.agents.learning.train.run import load_model

    return load_model(run_folder("rainbow", path, "model.zip"))


def read_checkpoint(path: Path) -> Any:
    """Load a checkpoint into a fresh agent, as ``parenvs train --resume`` does."""
    from parenvs.agents.learning.train.best_plan import BestPlan
    from parenvs.agents.learning.train.checkpoint import load_checkpoint
    from parenvs.agents.learning.train.config import load_config
    from parenvs.agents.learning.train.run import _fresh

    folder = run_folder("rainbow", path, "checkpoint.zip")
    env, model = _fresh(load_config(folder))
    load_checkpoint(folder / "checkpoint.zip", model, BestPlan())
    env.close()
    return model


def check_env(env: Any) -> None:
    """Play an episode: its reward is a number, and its plan a plan."""
    env.reset(seed=0)
    ended, steps = False, 0
    while not ended and steps < 200:
        mask = env.get_wrapper_attr("action_masks")()
        must(mask.any(), "no action is legal")
        _, reward, terminated, truncated, _ = env.step(int(np.flatnonzero(mask)[-1]))
        must(np.isfinite(reward), f"a reward is {reward}")
        ended, steps = terminated or truncated, steps + 1
    if terminated:
        json.dumps(env.get_wrapper_attr("plan")().to_json(), allow_nan=False)
    env.close()


def check_model(model: Any) -> None:
    """Check counters, and let the agent act where it may."""
    must(model.num_timesteps >= 0, "a negative number of steps")
    env = model.get_env()
    masks = np.stack(env.env_method("action_masks")).astype(bool)
    actions, _ = model.predict(env.reset(), action_masks=masks, deterministic=True)
    must(all(mask[action] for mask, action in zip(masks, actions, strict=True)), "illegal action")
    buffer = getattr(model, "replay_buffer", None)
    if buffer is not None and buffer.size():
        must(np.isfinite(buffer.tree.total), "priorities that are no numbers")
        must((buffer.actions >= 0).all(), "a negative action")


def read_function(path: Path) -> Graph:
    """Lower a function with the arguments that a file describes."""
    code = path.with_name(f"function_{path.stem}.py")
    code.write_text(FUNCTION.replace("PLACE", repr(str(path))), encoding="utf-8")
    python_source._lowered.cache_clear()
    return python_source.graph_of(f"{code}:step", "arguments")


def arguments() -> list[bytes]:
    """Return arguments of the function: abstract ones, and numbers."""
    weights = {f"layer_{k}": {"shape": [8, 8], "dtype": "float32"} for k in range(2)}
    batch = {"shape": [4, 8], "dtype": "bfloat16"}
    small = {"weights": {"w": {"shape": [2, 3], "dtype": "int32"}}, "batch": 1.5, "axis": 0}
    return [
        json.dumps({"weights": weights, "batch": batch}).encode(),
        json.dumps({**small, "batch": {"shape": [2, 2], "dtype": "int32"}}).encode(),
    ]


RUNS: dict[str, Reader] = {
    "config": Reader(
        ".json",
        2,
        lambda: [run_of("ppo")["config.json"], _with_options()],
        read_config,
        check_env,
    ),
    "model": Reader(".zip", 2, lambda: [run_of("rainbow")["model.zip"]], read_model, check_model),
    "checkpoint": Reader(
        ".zip", 2, lambda: [run_of("rainbow")["checkpoint.zip"]], read_checkpoint, check_model
    ),
    "function": Reader(".json", 1, arguments, read_function, check_graph),
}
"""Name -> reader, with its share of ``fuzz_readers.READERS``."""


def _with_options() -> bytes:
    """Return the configuration with every kind of option of its environment."""
    content = json.loads(run_of("ppo")["config.json"])
    content["env_kwargs"] |= {
        "micro_batch": 8,
        "sync": "parameter-server",
        "copies": 4,
        "recompute": "none",
    }
    return json.dumps(content).encode()
