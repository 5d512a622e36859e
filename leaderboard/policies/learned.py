"""Makes an entry of an agent that ``parenvs.agents.learning.elastic.train`` trained.

    python -m parenvs.agents.learning.elastic.train --agent ppo --out ppo.npz
    python -m parenvs.leaderboard.policies.learned ppo.npz --entry ppo --seed 0

The weights become numbers of the entry; nothing is unpickled.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from parenvs.agents.learning.elastic.learnt import Learnt
from parenvs.errors import ParenvsError
from parenvs.leaderboard.entry import Entry
from parenvs.leaderboard.policies.formats import OBSERVATION
from parenvs.leaderboard.submit import this_hardware
from parenvs.shipped import ELASTIC_SETS

COMMAND = "python -m parenvs.leaderboard.policies.learned"


def ratings_of(path: Path) -> dict[str, Any]:
    """Return the weights of a ``.npz`` file as a policy, see ``formats.Ratings``.

    Raises:
        ParenvsError: the file cannot be read, or its weights are wrong.
    """
    weights = Learnt.load(path).weights
    lists = {name: array.astype(float).round(7).tolist() for name, array in weights.items()}
    return {"kind": "ratings", "observation": OBSERVATION, "weights": lists}


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=str(__doc__).splitlines()[0])
    parser.add_argument("agent", type=Path, help="the .npz that the training wrote")
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
            policy=ratings_of(options.agent),
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
