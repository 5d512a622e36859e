"""Episodes of turns on small hybrid problems: played at random, and all of them."""

from dataclasses import replace

import numpy as np

from parenvs.cluster import Cluster
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.turns.actions import SERVERS
from parenvs.tasks.hybrid.turns.episode import Episode
from parenvs.tasks.hybrid.turns.outcome import Choices

SHAPE = TransformerShape("toy", 4, 1024, 8, 1024, 8192)


def toy(gigabytes, cluster="2x2:a100", batch=8, speeds=(), **shape):
    """Return a problem of four layers on devices of little memory."""
    numbers = {**vars(SHAPE), **shape}
    parsed = Cluster.parse(cluster)
    device = replace(parsed.device, memory_bytes=gigabytes * 1e9)
    parsed = replace(parsed, device=device, speeds=tuple(speeds))
    return Hybrid(HybridModel.of_shape(TransformerShape(**numbers)), parsed, batch, "nemo-2024")


def played(limits, rng, likes=lambda episode, choice: True):
    """Return a complete episode of random legal choices, those that are liked if there are any."""
    episode = Episode(limits)
    while not episode.is_over:
        legal = np.flatnonzero(episode.legal())
        liked = [choice for choice in legal.tolist() if likes(episode, choice)]
        episode.act(int(rng.choice(liked or legal)))
    return episode


def copied(episode):
    """Return an episode with the same choices."""
    other = Episode(episode.limits)
    for name in Episode.__slots__:
        value = getattr(episode, name)
        setattr(other, name, list(value) if isinstance(value, list) else value)
    return other


def every(episode, kept, taken=()):
    """Yield all complete episodes that begin with one, with their choices, where ``kept``."""
    if episode.is_over:
        yield taken, episode
        return
    for choice in np.flatnonzero(episode.legal()).tolist():
        if kept(episode, choice):
            other = copied(episode)
            other.act(choice)
            yield from every(other, kept, (*taken, choice))


def stacked(episodes):
    """Return the choices of complete episodes as those of one batch."""
    most = max(len(episode.ends) for episode in episodes)

    def column(name, fill):
        rows = np.full((most, len(episodes)), fill)
        for k, episode in enumerate(episodes):
            values = getattr(episode, name)
            rows[: len(values), k] = values
            if fill is None or fill < 0:
                rows[len(values) :, k] = values[-1]
        return rows

    servers = None
    if episodes[0].servers:
        servers = np.zeros((len(episodes), SERVERS), dtype=np.int64)
        for k, episode in enumerate(episodes):
            servers[k, : len(episode.servers)] = episode.servers
    return Choices(
        np.zeros(len(episodes), dtype=np.int64),
        np.array([len(episode.ends) for episode in episodes]),
        np.array([episode.micro_batch for episode in episodes]),
        np.array([episode.chunks for episode in episodes]),
        np.array([episode.shared for episode in episodes]),
        column("ends", -1),
        column("devices", 0),
        column("tp", 1),
        column("zero", 0),
        column("mode", 0),
        servers,
    )
