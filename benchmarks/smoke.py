"""Tries an installed parenvs: environments, solvers, the judge, the command; no checkout is needed.

Run it isolated, with the interpreter that has the package: ``python -I benchmarks/smoke.py``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def environments() -> int:
    """Play an episode of every environment; return how many there are."""
    import gymnasium as gym
    import numpy as np

    import parenvs  # noqa: F401

    names = [name for name in gym.registry if name.startswith("parenvs/")]
    random = np.random.default_rng(0)
    for name in names:
        env = gym.make(name)
        _, info = env.reset(seed=0)
        over = False
        while not over:
            action = random.choice(np.flatnonzero(info["action_mask"]))
            _, _, over, cut, info = env.step(int(action))
            over = over or cut
    return len(names)


def answers(folder: Path) -> None:
    """Solve, save, judge."""
    import parenvs

    answer = parenvs.plan(parenvs.problem("vgg-19", cluster="B", stages=2))
    assert answer.proven
    answer.plan.save(folder / "plan.json")
    assert parenvs.judge(folder / "plan.json").legal


def command(folder: Path, *arguments: str) -> str:
    """Run ``parenvs`` of this interpreter, and return what it prints."""
    line = [sys.executable, "-I", "-m", "parenvs", *arguments]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def with_extras(folder: Path, extras: list[str]) -> None:
    """Try what each extra is for."""
    if "jax" in extras:
        import jax.numpy as jnp

        import parenvs

        graph = parenvs.from_jax(lambda w, x: (x @ w).sum(), jnp.ones((4, 4)), jnp.ones((2, 4)))
        assert len(graph.opcode)
    if "agents" in extras:
        from parenvs.agents.learning.config import TrainConfig
        from parenvs.agents.learning.trainer import train

        train(TrainConfig(env_id="PipelineCut-v0", env_kwargs={"instance": "vgg-19"}, steps=64))
    if "envs" in extras:
        from parenvs.envs import hybrid_v1

        hybrid_v1.env("hybrid/7").reset(seed=0)


def main() -> None:
    """Try everything, and print what was tried as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--extras", nargs="*", default=[], help="extras that are installed")
    extras = parser.parse_args().extras
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = 0 if extras else environments()  # the plain installation is tried by itself
        answers(folder)
        command(folder, "judge", "plan.json")
        found = json.loads(command(folder, "doctor", "--json"))
        assert found["healthy"], found["faults"]
        assert not any(found["extras"][extra] for extra in extras), found["extras"]
        with_extras(folder, extras)
    print(json.dumps({"environments": count, "extras": extras}))


if __name__ == "__main__":
    main()
