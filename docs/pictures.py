"""Draws the figures of the pages, and the animations of the environments: a picture a step.

A figure is what a command draws, and its page names the command. The episode of an animation is
that of the rule of column 0 where actions are rows, and else the best of thirty with random legal
actions, so that it shows a plan.

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

EPISODES, MOST_FRAMES, WIDTH = 30, 16, 720
MILLISECONDS, LAST_MILLISECONDS = 700, 3000
FIGURES = {
    "gantt": "plan t5-3b --cluster C",
    "partition": "plan t5-base --task partition --devices 8 --rules automap --memory-limit device "
    "--micro-batch 8 --micro-batches 8 --recompute full",
    "elastic": "elastic compare p3 --policy look-ahead",
}
"""Figure -> the command that draws it with --plot."""
SETTINGS: dict[str, dict[str, Any]] = {
    "PipelineCut-v0": {"instance": "t5-3b", "cluster": "C"},
    "PipelineImprove-v0": {"instance": "t5-3b", "cluster": "C", "stages": 8},
    "OperatorPartition-v0": {"instance": "t5-base", "reward": "step_time"},
    "DataParallel-v0": {"instance": "t5-base"},
    "PartitionPlan-v2": {"instance": "partition-train/vgg-000"},
    "HybridPlan-v2": {"instance": "hetero-8-test/generations-000"},
}
"""Arguments that make a picture worth looking at; the others have their defaults."""


def play(env: gym.Env, seed: int, frames: list[np.ndarray] | None = None, every: int = 1) -> Any:
    """Play an episode of the rule, or of random legal actions; return its return and its length.

    Args:
        env: the environment.
        seed: of the problem and the actions; the problem is that of seed 0.
        frames: where the figures go; None draws nothing.
        every: steps from picture to picture.
    """
    random = np.random.default_rng(seed)
    seen, info = env.reset(seed=0)
    total, steps, over = 0.0, 0, False
    if frames is not None:
        frames.append(picture(env))
    while not over:
        legal = np.flatnonzero(info["action_mask"])
        rows = seen.get("actions") if isinstance(seen, dict) else None
        action = random.choice(legal) if rows is None else legal[rows[legal, 0].argmax()]
        seen, reward, over, cut, info = env.step(int(action))
        over = over or cut
        total, steps = total + reward, steps + 1
        if frames is not None and (over or steps % every == 0):
            frames.append(picture(env))
    return total, steps


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
    tried = [(*play(env, seed), seed) for seed in range(EPISODES)]
    _, steps, seed = max(tried, key=lambda x: x[0])
    frames: list[np.ndarray] = []
    play(env, seed, frames, every=-(-steps // MOST_FRAMES))
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
    times = [MILLISECONDS] * (len(pages) - 1) + [LAST_MILLISECONDS]
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
