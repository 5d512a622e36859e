"""Draws the figures of the pages, and the animations of the environments: a picture a step.

A figure is what a command draws, and its page names the command. An animation has episodes of the
rule of column 0 on several problems where actions are rows, and else episodes of random legal
actions on one problem, from worse to better ones.

    python docs/pictures.py                 # all
    python docs/pictures.py PipelineCut-v0  # some
    python docs/pictures.py figures         # all figures, as make docs does
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import generate  # noqa: E402
import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402

from parenvs import view  # noqa: E402 (and registers the environments)
from parenvs.view import page  # noqa: E402

EPISODES, FRAMES, WIDTH = 30, 20, 720
"""Episodes that are tried, pictures at least, and their width."""
MILLISECONDS, LAST_MILLISECONDS = 500, 2000
"""Of a picture, and of the last one of an episode."""
FIGURES = {
    "gantt": "plan t5-3b --cluster C",
    "partition": "plan t5-base --task partition --devices 8 --rules automap --memory-limit device "
    "--micro-batch 8 --micro-batches 8 --recompute full",
    "elastic": "elastic compare p3 --policy look-ahead",
}
"""Figure -> the command that draws it with --plot."""
SETTINGS: dict[str, dict[str, Any]] = {
    "PipelineCut-v0": {"instance": "t5-3b", "cluster": "C"},
    "PipelineImprove-v0": {"tier": "s8"},
    "OperatorPartition-v0": {"instance": "t5-base", "reward": "step_time"},
    "DataParallel-v0": {"instance": "t5-base"},
    "HybridPlan-v2": {"instance": "hetero-8-validation"},
}
"""Arguments that make a picture worth looking at; the others have their defaults."""


def play(env: gym.Env, seed: int, frames: list[np.ndarray] | None = None) -> Any:
    """Play an episode; return its return.

    Args:
        env: the environment.
        seed: of the problem, where the rule acts, and of random legal actions where there is none.
        frames: where the figures go; None draws nothing.
    """
    random = np.random.default_rng(seed)
    seen, info = env.reset(seed=seed)
    total, over = 0.0, False
    if frames is not None:
        frames.append(picture(env))
    while not over:
        legal = np.flatnonzero(info["action_mask"])
        rows = seen.get("actions") if isinstance(seen, dict) else None
        action = random.choice(legal) if rows is None else legal[rows[legal, 0].argmax()]
        seen, reward, over, cut, info = env.step(int(action))
        over = over or cut
        total += reward
        if frames is not None:
            frames.append(picture(env))
    return total


def picture(env: Any) -> np.ndarray:
    """Return the figure of an episode, which frames are too fast for: (800, 1280, 3) uint8."""
    game = env.game
    with page.style():
        canvas: Any = view.figure(game.view(0), game.undecided(0)).canvas
        canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def draw(name: str) -> Path:
    """Draw the animation of an environment, and return its file."""
    env = gym.make(name, **SETTINGS.get(name, {})).unwrapped
    has_rule = "actions" in env.observation_space.spaces
    seeds = list(range(EPISODES))
    if not has_rule:  # every third, the best one last
        seeds = sorted(seeds, key=lambda seed: play(env, seed))[2::3]
    frames: list[np.ndarray] = []
    times: list[int] = []
    for seed in seeds:
        play(env, seed, frames)
        times += [MILLISECONDS] * (len(frames) - len(times) - 1) + [LAST_MILLISECONDS]
        if has_rule and len({frame.tobytes() for frame in frames}) >= FRAMES:
            break
    height = max(frame.shape[0] * WIDTH // frame.shape[1] for frame in frames)
    pages = []
    for frame in frames:
        image = Image.fromarray(frame)
        size = (WIDTH, frame.shape[0] * WIDTH // frame.shape[1])
        sheet = Image.new("RGB", (WIDTH, height), "white")
        sheet.paste(image.resize(size, Image.Resampling.LANCZOS), (0, 0))
        pages.append(sheet)
    out = DOCS / "pictures" / f"{name}.webp"
    out.parent.mkdir(exist_ok=True)
    pages[0].save(
        out, save_all=True, append_images=pages[1:], duration=times, loop=0, quality=70, method=6
    )
    return out


def figure(name: str) -> Path:
    """Draw a figure, and return its file."""
    path = DOCS / f"{name}.svg"
    words = [sys.executable, "-m", "parenvs", *FIGURES[name].split(), "--plot", str(path)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=DOCS.parent)
    return path


def main() -> None:
    """Draw what the command line names, or everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = "ids of environments, names of figures, or figures for all of these (default: all)"
    parser.add_argument("name", nargs="*", help=names)
    chosen = parser.parse_args().name or ["figures", *generate.environments()]
    if "figures" in chosen:
        chosen = [*FIGURES, *(name for name in chosen if name != "figures")]
    for name in chosen:
        path = figure(name) if name in FIGURES else draw(name)
        print(f"{path.relative_to(DOCS.parent)}: {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
