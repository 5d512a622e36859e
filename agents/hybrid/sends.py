"""Sends between the stages of a hybrid plan: what a suffix must know of the stage in front."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parenvs.agents.hybrid.tables import Configurations, Setting, StageTables
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.stages import Stages

_ELEMENTS = 1e9  # of a send, whose seconds per element are asked for


@dataclass(frozen=True, eq=False)
class Fronts:
    """What a suffix must know of the stage in front: its devices, and the sends between both.

    Attributes:
        group: (F,) devices of a stage in front.
        number: (C,) which of them each configuration has.
        link: (F, C, 2) number of the send from a stage in front to a configuration, across servers
            and inside one.
        seconds: (links,) of it, for each element per sample of a whole micro-batch.
        hop: (links,) of it, once.
        around: (C,) seconds once of the last stage's send to a first stage of a configuration.
    """

    group: np.ndarray
    number: np.ndarray
    link: np.ndarray
    seconds: np.ndarray
    hop: np.ndarray
    around: np.ndarray

    @classmethod
    def of(cls, problem: Hybrid, tables: StageTables) -> Fronts:
        """Ask the formulas for the sends between all configurations."""
        configs, setting = tables.configs, tables.setting
        scattered = setting.sequence_parallel or problem.stack.scatter_gather
        ranks = configs.dp * setting.context * (configs.tp if scattered else 1)
        pairs, first, number = np.unique(
            np.stack([configs.group, ranks]), axis=1, return_index=True, return_inverse=True
        )
        number = np.asarray(number).reshape(-1)
        count = len(configs.tp)
        shape = (len(first), count, 2)
        links, hops = np.zeros(shape), np.zeros(shape)
        for near in (0, 1):
            before = np.repeat(first, count)
            behind = np.tile(np.arange(count), len(first))
            sent, hop = send_between(problem, setting, configs, before, behind, bool(near))
            links[:, :, near], hops[:, :, near] = sent.reshape(shape[:2]), hop.reshape(shape[:2])
        both = np.stack([links.reshape(-1), hops.reshape(-1)])
        values, link = np.unique(both, axis=1, return_inverse=True)
        own = np.arange(count)
        near = setting.devices <= problem.cluster.devices_per_server
        around = send_between(problem, setting, configs, own, own, near)[1]
        link = np.asarray(link).reshape(shape)
        return cls(pairs[0], number, link, values[0], values[1], around)


def send_between(
    problem: Hybrid,
    setting: Setting,
    configs: Configurations,
    before: np.ndarray,
    behind: np.ndarray,
    near: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds of sends between pairs of configurations: for each element, and once.

    Args:
        problem: the problem.
        setting: what all stages share.
        configs: the configurations.
        before: (l,) numbers of those of the stages in front.
        behind: (l,) numbers of those behind.
        near: whether both stages of a pair are in one server.

    Returns:
        (l,) seconds for each element per sample of a whole micro-batch, and (l,) seconds once.
    """
    pairs = np.stack([before, behind])
    tp, dp = configs.tp[pairs], configs.dp[pairs]
    zeros = np.zeros(pairs.shape)
    far = problem.cluster.devices  # any server that is not the first
    stages = Stages(
        layers=zeros[None], first_chunk=zeros[None], full=zeros[None], selective=zeros[None],
        on=zeros, back=zeros, first=zeros, links=zeros[1:], tp=tp, dp=dp, zero=zeros,
        device=np.array([[0], [0 if near else far]]) + 0 * pairs, speed=zeros + 1,
        samples=setting.samples, micro_batches=1, chunks=1, context=setting.context,
        sequence_parallel=setting.sequence_parallel, expert=setting.expert, blocking=True,
        gradient_bytes=2.0, gradient_overlap=False,
    )  # fmt: skip
    args = problem.cluster, problem.machine, stages
    hop = formulas.transfer_seconds(*args, zeros)[0]
    sent = formulas.transfer_seconds(*args, zeros + _ELEMENTS)[0]
    return (sent - hop) / _ELEMENTS, hop
