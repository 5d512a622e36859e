"""Agents as weights and JSON: what a file holds is read without running anything in it.

Stable-Baselines3's own ``load`` unpickles the member ``data``, which can run any code; nothing here
reads that member.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections import deque
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm

AGENT = "agent.json"
_MAX_COUNT = 2**63 - 1
"""Largest count of steps."""
_COUNTERS = ("num_timesteps", "_n_updates", "_episode_num", "_n_calls")
"""Attributes of algorithms of SB3 that count; each algorithm has some of them."""


def save_agent(archive: zipfile.ZipFile, model: BaseAlgorithm) -> None:
    """Add an agent to an archive: a member of weights for each of its modules, and counters.

    Args:
        archive: the archive, open for writing.
        model: the agent.
    """
    for name, weights in model.get_parameters().items():
        stored = io.BytesIO()
        torch.save(weights, stored)
        archive.writestr(f"{name}.pth", stored.getvalue())
    save_counters(archive, model)


def save_counters(archive: zipfile.ZipFile, model: BaseAlgorithm) -> None:
    """Add to an archive what of an agent is no weight: counters, statistics, its generator."""
    state: dict[str, Any] = {
        "counters": {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)},
        "episodes": [
            {key: float(value) for key, value in episode.items()}
            for episode in model.ep_info_buffer or ()
        ],
    }
    if (generator := getattr(model, "_rng", None)) is not None:
        state["generator"] = generator.bit_generator.state
    archive.writestr(AGENT, json.dumps(state))


def load_weights(archive: zipfile.ZipFile, model: BaseAlgorithm) -> None:
    """Give an agent the weights of an archive that ``save_agent`` or ``save`` of SB3 wrote.

    Args:
        archive: the archive.
        model: an agent with the same settings.

    Raises:
        Exception: of many kinds, if the archive holds anything else.
    """
    weights = {name: _weights(archive, f"{name}.pth") for name in model.get_parameters()}
    model.set_parameters(weights, device=model.device)


def load_counters(archive: zipfile.ZipFile, model: BaseAlgorithm) -> None:
    """Give an agent what ``save_counters`` wrote.

    Raises:
        Exception: of many kinds, if the archive holds anything else.
    """
    state = json.loads(read_member(archive, AGENT))
    counters = {name: state["counters"][name] for name in _COUNTERS if hasattr(model, name)}
    episodes = state["episodes"]
    for name, count in counters.items():
        if type(count) is not int or not 0 <= count <= _MAX_COUNT:
            raise ValueError(f"{AGENT}: {name} is no count")
    if not all(
        isinstance(episode, dict) and all(type(value) is float for value in episode.values())
        for episode in episodes
    ):
        raise ValueError(f"{AGENT}: episodes are not statistics")
    for name, count in counters.items():
        setattr(model, name, count)
    model.ep_info_buffer = deque(episodes, maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(maxlen=model._stats_window_size)
    if (generator := getattr(model, "_rng", None)) is not None:
        generator.bit_generator.state = state["generator"]


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read a member that is not compressed, so that it is no larger than the file.

    Raises:
        ValueError: the member is missing or compressed.
    """
    if name not in archive.namelist():
        raise ValueError(f"{name} is missing")
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    return archive.read(name)


def _weights(archive: zipfile.ZipFile, name: str) -> Any:
    """Read a member of weights.

    Only torch's zip format is taken, uncompressed: its older formats have another reader, which
    in some versions of torch runs code even with ``weights_only``.
    """
    data = read_member(archive, name)
    with zipfile.ZipFile(io.BytesIO(data)) as inner:
        if not data.startswith(b"PK\x03\x04"):
            raise ValueError(f"{name}: not a file of weights")
        for member in inner.namelist():
            read_member(inner, member)
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
