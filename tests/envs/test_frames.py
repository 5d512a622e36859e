"""Frames of every environment: fast, of one shape, on a screen, in a video."""

import time

import gymnasium as gym
import numpy as np
import pytest
from cases import each

from parenvs.core.registry import environments
from parenvs.view.frame import picture

IDS = sorted(name for name in environments() if "/" not in name)
SECONDS = 0.05


def step(env, info, number=0):
    """Take a legal action, another one with another ``number``."""
    legal = info["action_mask"].nonzero()[0]
    *_, terminated, _, info = env.step(int(legal[number * 37 % len(legal)]))
    return env.reset(seed=1)[1] if terminated else info


@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_frames__are_fast_and_show_the_episode(env_id):
    env = gym.make(env_id, render_mode="rgb_array")
    info, spent, frames = env.reset(seed=0)[1], [], []
    for number in range(20):
        begin = time.process_time()
        frames.append(env.render())
        spent.append(time.process_time() - begin)
        info = step(env, info, number)
    assert min(spent[1:]) < SECONDS  # the rest of the machine makes some of them longer
    assert {(x.shape, x.dtype.name) for x in frames} == {((800, 1120, 3), "uint8")}
    assert len({x.tobytes() for x in frames}) > 1
    texts = gym.make(env_id, render_mode="ansi")
    texts.reset(seed=0)
    inked = [(x < 255).any(axis=2) for x in (frames[0], picture(texts.render()))]
    assert np.array_equal(*inked)  # but for colors they are the same


@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_frames__on_a_screen(env_id, monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = gym.make(env_id, render_mode="human")
    env.unwrapped.metadata["render_fps"] = 1000
    step(env, env.reset(seed=0)[1])
    assert env.unwrapped.render().shape == (800, 1120, 3)
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_frames__in_a_video(env_id, tmp_path):
    pytest.importorskip("moviepy")
    env = gym.make(env_id, render_mode="rgb_array")
    env = gym.wrappers.RecordVideo(env, str(tmp_path / "x"), video_length=4)
    info = env.reset(seed=0)[1]
    for _ in range(5):
        info = step(env, info)
    env.close()
    videos = [*(tmp_path / "x").glob("*.mp4")]
    assert videos and all(video.stat().st_size > 1000 for video in videos)


@each(
    "text",
    [
        "", "a", "\x1b[38;5;33mstage\x1b[0m x", "\n".join("abc" * 60 for _ in range(80)),
        "é → ∑ \U0001f600", "$x$ \\n_^{",
    ],
)  # fmt: skip
def test_picture__of_any_text(text):
    frame = picture(text)
    assert frame.shape == (800, 1120, 3)
    assert (frame < 255).any() == bool(text)


def test_picture__has_the_colors_of_a_terminal():
    frame = picture("\x1b[38;5;33m█\x1b[0m█\x1b[38;5;214m█")
    assert [tuple(frame[30, x]) for x in (15, 25, 35)] == [(0, 135, 255), (0, 0, 0), (255, 175, 0)]
