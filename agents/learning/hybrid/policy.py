"""Policies for ``HybridPlan-v0`` that rate every layer and every server by the same weights.

What is chosen of few (micro-batch, devices, tp, ZeRO) is rated from the state of the whole plan;
the last layer of a stage and the next server are rated one by one, each with the state beside it,
so that what is learned about one layer or server holds for all, in chains and clusters of any size.

``HybridPolicy`` is for MaskablePPO, ``IndependentPolicy`` too, with a network for each of the three
agents of ``hybrid_v0``; ``HybridQPolicy`` is for Rainbow.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import Schedule, TensorDict
from torch import nn
from torch.nn.functional import one_hot

from parenvs.agents.learning.rainbow.policy import NoisyLinear, RainbowNetwork, RainbowPolicy
from parenvs.tasks.hybrid.turns.actions import (
    ACTIONS,
    AGENT_OF,
    AGENTS,
    DATA,
    GLOBAL,
    LAYERS,
    OFFSETS,
    SERVER,
    SERVERS,
    SIZES,
    STAGE_DEVICES,
    STAGE_LAYERS,
    TP,
    TURNS,
)
from parenvs.tasks.hybrid.turns.observe import NUMBERS, PROGRESS, STAGE

WIDTH = 128
"""Width of the state of the whole plan."""
PLACE = 16
"""Width of the state of each layer and server."""
LAYER_PLANES, SERVER_PLANES = 9, 6
WHOLE = len(NUMBERS) + len(PROGRESS) + len(TURNS) + 3 * len(STAGE) + 4
_FEW = (GLOBAL, DATA, STAGE_DEVICES, TP)


class HybridExtractor(BaseFeaturesExtractor):
    """The state of the plan, and those of all layers and servers, one after the other.

    Args:
        observation_space: of ``HybridPlan-v0``.
        width: of the state of the plan.
    """

    def __init__(self, observation_space: spaces.Dict, width: int = WIDTH) -> None:
        super().__init__(observation_space, width + (LAYERS + SERVERS) * PLACE)
        self.width = width
        self.whole = nn.Sequential(
            nn.Linear(WHOLE, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.beside = nn.Linear(width, 2 * PLACE)
        self.layer, self.server = nn.Linear(LAYER_PLANES, PLACE), nn.Linear(SERVER_PLANES, PLACE)
        self.layer_again, self.server_again = nn.Linear(PLACE, PLACE), nn.Linear(PLACE, PLACE)

    def forward(self, observations: TensorDict) -> torch.Tensor:
        """Return the states, (b, width + (128 + 64) 16)."""
        seen = _Seen(observations)
        whole = self.whole(seen.whole())
        layer, server = self.beside(whole)[:, None].split(PLACE, dim=-1)
        layers = torch.relu(self.layer(seen.layers()) + layer)
        servers = torch.relu(self.server(seen.servers()) + server)
        layers = layers + torch.relu(self.layer_again(layers))
        servers = servers + torch.relu(self.server_again(servers))
        return torch.cat([whole, layers.flatten(1), servers.flatten(1)], dim=1)


class _Seen:
    """Numbers that the networks read, of b observations."""

    def __init__(self, parts: TensorDict) -> None:
        self.parts = parts
        self.made = (parts["progress"][:, 4] * SERVERS).round().long().clamp(max=SERVERS - 1)
        self.rows = torch.arange(len(self.made), device=self.made.device)
        self.begin = torch.where(self.made > 0, self._stage(self.made - 1)[:, 0], 0.0)

    def _stage(self, number: torch.Tensor) -> torch.Tensor:
        return self.parts["stages"][self.rows, number.clamp(min=0)]

    def whole(self) -> torch.Tensor:
        """(b, WHOLE): the problem, what is chosen, the stage in hand and the one before."""
        cluster, stages = self.parts["cluster"], self.parts["stages"]
        there = (cluster[:, :, 1] > 0).float()
        free = there * (cluster[:, :, 3] < 1)
        count = free.sum(1).clamp(min=1.0)
        speed = cluster[:, :, 0]
        mean = (speed * free).sum(1) / count
        spread = [mean, (speed * free).amax(1), 1 - ((1 - speed) * free).amax(1)]
        rest = self.made[:, None].clamp(min=1)
        return torch.cat(
            [
                self.parts["numbers"], self.parts["progress"], self.parts["turn"],
                self._stage(self.made), self._stage(self.made - 1) * (self.made > 0)[:, None],
                stages.sum(1) / rest,
                *(x[:, None] for x in spread), (count / SERVERS)[:, None],
            ], dim=1,
        )  # fmt: skip

    def layers(self) -> torch.Tensor:
        """(b, 128, 9): of each layer, what a stage up to it would hold."""
        chain = self.parts["chain"]
        number = torch.arange(1, LAYERS + 1, device=chain.device)[None]
        count = (self.parts["numbers"][:, 0] * LAYERS).round()
        per = count / torch.pow(2.0, (self.parts["progress"][:, 1] * 3).round())
        begin = self.begin[:, None]
        size = (number / per[:, None] - begin).clamp(-1, 1)
        left = (1 - begin).clamp(min=1e-3)
        first = ((begin[:, 0] * per).round().long() - 1).clamp(min=0)
        work = chain[:, :, 0] - torch.where(begin > 0, chain[self.rows, first, :1], 0.0)
        share = self.parts["progress"][:, 6:7].clamp(min=1e-3)  # of the devices that are left
        planes = [
            size, size / left, work, (work / share).clamp(-4, 4), (number < per[:, None]).float(),
            chain[:, :, 1], chain[:, :, 2], chain[:, :, 4], chain[:, :, 5],
        ]  # fmt: skip
        return torch.stack(planes, dim=-1)

    def servers(self) -> torch.Tensor:
        """(b, 64, 6): of each server its row, and its speed beside the others that are free."""
        cluster = self.parts["cluster"]
        free = (cluster[:, :, 1] > 0) * (cluster[:, :, 3] < 1)
        mean = (cluster[:, :, 0] * free).sum(1) / free.sum(1).clamp(min=1)
        faster = cluster[:, :, 0] - mean[:, None]
        return torch.cat([cluster, faster[:, :, None], free[:, :, None].float()], dim=-1)


class TurnHead(nn.Module):
    """Rates the 261 actions, from what ``HybridExtractor`` gives.

    Args:
        width: of the state of the plan.
        outputs: numbers for each action.
        linear: class of the layers.
    """

    def __init__(self, width: int, outputs: int = 1, linear: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.width, self.outputs = width, outputs
        self.few = linear(width, sum(SIZES[turn] for turn in _FEW) * outputs)
        self.end = linear(width, outputs)
        self.layer, self.server = linear(PLACE, outputs), linear(PLACE, outputs)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return (b, 261 outputs) numbers, those of an action side by side."""
        sizes, count = [self.width, LAYERS * PLACE, SERVERS * PLACE], len(states)
        whole, layers, servers = states[:, : sum(sizes)].split(sizes, dim=1)
        rated = states.new_empty((count, ACTIONS, self.outputs))
        few = self.few(whole).view(count, -1, self.outputs)
        parts = dict(zip(_FEW, few.split([SIZES[turn] for turn in _FEW], dim=1), strict=True))
        by_layer = self.layer(layers.view(-1, LAYERS, PLACE))[:, :-1]
        parts[STAGE_LAYERS] = torch.cat([by_layer, self.end(whole)[:, None]], dim=1)
        parts[SERVER] = self.server(servers.view(-1, SERVERS, PLACE))
        for turn, part in parts.items():
            rated[:, OFFSETS[turn] : OFFSETS[turn] + SIZES[turn]] = part
        return rated.flatten(1)


class ValueHead(nn.Module):
    """Rates a state, from what ``HybridExtractor`` gives; arguments as of ``TurnHead``."""

    def __init__(self, width: int, outputs: int = 1, linear: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(linear(width, 64), nn.ReLU(), linear(64, outputs))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return (b, outputs) numbers."""
        return self.layers(states[:, : self.width])


class HybridPolicy(MaskableMultiInputActorCriticPolicy):
    """``MaskablePPO(HybridPolicy, env)``.

    Args:
        *args: arguments of sb3-contrib's ``MaskableMultiInputActorCriticPolicy``.
        **options: further arguments of it; ``features_extractor_kwargs`` has ``width``.
    """

    extractor: type[BaseFeaturesExtractor] = HybridExtractor
    features_extractor: HybridExtractor | AgentsExtractor

    def __init__(self, *args: Any, **options: Any) -> None:
        own = {"features_extractor_class": self.extractor, "net_arch": []}
        super().__init__(*args, **{"ortho_init": False, **options, **own})

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)  # the heads that it makes are replaced
        width = self.features_extractor.width
        head = TurnHead(width)
        for layer in (head.few, head.end, head.layer, head.server):
            self.init_weights(layer, gain=0.01)  # at first all legal actions are equally likely
        self.action_net, self.value_net = head, self._values(width)  # type: ignore[assignment]
        self.optimizer = self.optimizer_class(
            self.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )

    def _values(self, width: int) -> nn.Module:
        """Make the head that rates states."""
        return ValueHead(width)


class AgentsExtractor(BaseFeaturesExtractor):
    """Three ``HybridExtractor``, of which the one reads an observation whose agent has the turn.

    Args:
        observation_space: of ``HybridPlan-v0``.
        width: of the state of the plan.
    """

    def __init__(self, observation_space: spaces.Dict, width: int = WIDTH) -> None:
        made = [HybridExtractor(observation_space, width) for _ in AGENTS]
        super().__init__(observation_space, made[0].features_dim + len(AGENTS))
        self.width, self.of_agent = width, nn.ModuleList(made)

    def forward(self, observations: TensorDict) -> torch.Tensor:
        """Return the states as ``HybridExtractor`` does, and behind them 1 for the agent."""
        agents = agents_of(observations["turn"])
        rows = [(agents == number).nonzero()[:, 0] for number in range(len(AGENTS))]
        states = [
            extractor({key: part[own] for key, part in observations.items()})
            for extractor, own in zip(self.of_agent, rows, strict=True)
        ]
        back = torch.cat(rows).argsort()
        return torch.cat([torch.cat(states)[back], one_hot(agents, len(AGENTS))], dim=1)


def agents_of(turn: torch.Tensor) -> torch.Tensor:
    """(...) numbers of the agents that have the turns shown by (..., 6)."""
    return torch.tensor(AGENT_OF, device=turn.device)[turn.argmax(dim=-1)]


class AgentValues(nn.Module):
    """A ``ValueHead`` for each agent, on what ``AgentsExtractor`` gives."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_agent = nn.ModuleList(ValueHead(width) for _ in AGENTS)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return values, (b, 1)."""
        values = torch.cat([head(states) for head in self.of_agent], dim=1)
        return (values * states[:, -len(AGENTS) :]).sum(dim=1, keepdim=True)


class IndependentPolicy(HybridPolicy):
    """``HybridPolicy`` with weights of their own for each agent of ``hybrid_v0``.

    A turn belongs to one agent, so the rates of its choices in ``TurnHead`` are that agent's own,
    too, and no weight learns from the turns of two agents.
    """

    extractor = AgentsExtractor

    def _values(self, width: int) -> nn.Module:
        return AgentValues(width)


class HybridNetwork(RainbowNetwork):
    """``RainbowNetwork`` on a ``HybridExtractor``; the arguments are the same."""

    def _layers(self, inputs: int, outputs: int, hidden: list[int]) -> nn.Sequential:
        """A head for ``outputs``; no layer in front of the streams, where ``outputs`` is -1."""
        if outputs == -1:
            return nn.Sequential()
        linear = NoisyLinear if self.noisy else nn.Linear
        assert isinstance(self.features_extractor, HybridExtractor)
        width = self.features_extractor.width
        if outputs == self.atoms:
            return nn.Sequential(ValueHead(width, outputs, linear))
        return nn.Sequential(TurnHead(width, self.atoms, linear))


class HybridQPolicy(RainbowPolicy):
    """``Rainbow(HybridQPolicy, env)``: ``RainbowPolicy`` on a ``HybridExtractor``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        own = {"features_extractor_class": HybridExtractor, "net_arch": []}
        super().__init__(*args, **{**options, **own})

    def make_q_net(self) -> HybridNetwork:
        """Make a network with a features extractor of its own."""
        arguments = self._update_features_extractor(self.net_args, features_extractor=None)
        return HybridNetwork(**self.switches, **arguments).to(self.device)
