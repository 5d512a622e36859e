"""Makes an entry of an agent that ``parenvs.agents.elastic.train`` trained.

    python -m parenvs.leaderboard.policies.learned elastic-ppo.zip --entry ppo --seed 0

The weights of its actor are written as a network, which is data; nothing of the agent's file is in
the entry. The file itself is unpickled: give only one that you trained.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from parenvs.errors import ParenvsError, need_extra
from parenvs.leaderboard.entry import Entry
from parenvs.leaderboard.policies.formats import OBSERVATION
from parenvs.leaderboard.submit import this_hardware
from parenvs.shipped import ELASTIC_SETS

COMMAND = "python -m parenvs.leaderboard.policies.learned"
_WORDS = {"ReLU": "relu", "Tanh": "tanh"}


def network_of(agent: Any) -> dict[str, Any]:
    """Return the actor of an agent as a network, see ``formats.Network``.

    Args:
        agent: a ``MaskablePPO`` whose policy is ``parenvs.agents.elastic.train.ElasticPolicy``.

    Raises:
        ParenvsError: its policy has other parts.
    """
    policy = agent.policy
    try:
        parts = {
            "each": policy.features_extractor.each,
            "job": policy.features_extractor.job,
            "score": policy.mlp_extractor.score,
        }
    except AttributeError as error:
        raise ParenvsError(f"the agent's policy is no ElasticPolicy: {error}") from None
    layers = {part: _layers(part, module) for part, module in parts.items()}
    return {"kind": "network", "observation": OBSERVATION, "layers": layers}


def _layers(part: str, module: Any) -> list[dict[str, Any]]:
    """Return the layers of a ``torch.nn.Sequential``."""
    layers: list[dict[str, Any]] = []
    for child in module:
        name = type(child).__name__
        if name == "Linear":
            weights, biases = child.weight.detach().cpu(), child.bias.detach().cpu()
            layers.append(
                {"weights": weights.T.tolist(), "biases": biases.tolist(), "activation": "none"}
            )
        elif name in _WORDS and layers:
            layers[-1]["activation"] = _WORDS[name]
        else:
            raise ParenvsError(f"{part}: {name} is no layer that an entry can have")
    return layers


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=str(__doc__).splitlines()[0])
    parser.add_argument("agent", type=Path, help="the .zip that the training wrote")
    parser.add_argument("--entry", required=True, help="name of the entry")
    parser.add_argument("--author", action="append", help="who made it, again for each")
    parser.add_argument("--seed", type=int, required=True, help="of the training")
    parser.add_argument(
        "--method", default="MaskablePPO that scores candidates one by one.", help="in a sentence"
    )
    parser.add_argument(
        "--trained-on", default=f"other: {ELASTIC_SETS[0]}", help="default: %(default)s"
    )
    parser.add_argument("--folder", type=Path, default=Path("leaderboard/submissions"))
    options = parser.parse_args(None if arguments is None else list(arguments))
    try:
        with need_extra("agents", "reading an agent"):
            from sb3_contrib import MaskablePPO

            # The file names the classes of the policy by their module.
            import parenvs.agents.elastic.train  # noqa: F401
        if not options.agent.is_file():
            raise ParenvsError(f"{options.agent}: no such file")
        entry = Entry(
            task="elastic",
            entry=options.entry,
            authors=tuple(options.author or ("parenvs",)),
            method=options.method,
            learned=True,
            trained_on=(options.trained_on,),
            seeds=(options.seed,),
            search_budget="one plan an interval",
            hardware=this_hardware(),
            policy=network_of(MaskablePPO.load(options.agent, device="cpu")),
        )
        path = options.folder / "elastic" / f"{options.entry}.json"
        entry.save(path)
    except ParenvsError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 2
    print(f"entry written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
