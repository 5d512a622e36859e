"""Compiled loops: light imports, the cache on the disk, pickles and forks."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from parenvs.agents.sharding.loops import add
from parenvs.compiled import warm

MODULE = """
from parenvs.compiled import compiled, warm

FACTOR = 2

@compiled
def inner(x):
    return FACTOR * x

@compiled
def outer(x):
    return inner(x) + 1
"""


def run(folder, words, **environment):
    """What a new process prints that runs ``words`` beside ``loops.py``."""
    paths = os.pathsep.join([str(folder), *(x for x in sys.path if x)])
    done = subprocess.run(
        [sys.executable, "-c", f"import numpy as np, loops, os\n{words}"],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "loops.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


HITS = "print(loops.outer(np.int64(3)), sum(loops.outer.dispatcher.stats.cache_hits.values()))"


@pytest.mark.slow
def test_compiled__cache_is_read_rebuilt_and_follows_its_sources(folder):
    assert run(folder, HITS) == ["7", "0"] and run(folder, HITS) == ["7", "1"]
    kept = sorted((folder / "__pycache__").glob("loops.outer*.nb*"))
    assert len(kept) == 2
    for file in kept:
        for content in (b"", b"\x00nonsense", file.read_bytes()[:-40]):
            file.write_bytes(content)
            assert run(folder, HITS) == ["7", "0"] and run(folder, HITS) == ["7", "1"]
    (folder / "loops.py").write_text(MODULE.replace("= 2", "= 3"), encoding="utf-8")
    assert run(folder, HITS) == ["10", "0"]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="folders are read-only otherwise")
def test_compiled__folders_that_cannot_be_written(folder, tmp_path_factory):
    (folder / "__pycache__").write_text("a file, so that no cache can lie there")
    home = tmp_path_factory.mktemp("home")
    environment = {"HOME": str(home), "XDG_CACHE_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    assert run(folder, HITS, **environment) == ["7", "0"]
    assert run(folder, HITS, **environment) == ["7", "1"]
    (home / "file").write_text("")
    nowhere = {**environment, "HOME": str(home / "file"), "XDG_CACHE_HOME": str(home / "file")}
    assert run(folder, HITS, **nowhere) == ["7", "0"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_compiled__forks_while_a_thread_compiles(folder):
    words = """
import threading
loops.inner(1)
threads = [threading.Thread(target=loops.outer, args=(x,)) for x in (1, 1.0, True, 1j)]
[x.start() for x in threads]
pid = os.fork()
if not pid:
    os._exit(loops.outer(np.int64(3)))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
[x.join() for x in threads]
"""
    assert run(folder, words) == ["7"]


@pytest.mark.slow
def test_compiled__imports_stay_light(folder):
    words = "import sys, parenvs.agents.sharding.loops; print('numba' in sys.modules)"
    assert run(folder, words) == ["False"]


@pytest.mark.thorough
def test_warm__compiles_and_runs_nothing():
    tree = np.zeros((2, 4), dtype=np.int32)
    warm(add, tree, 0, 1, 5)
    assert not tree.any() and len(add.dispatcher.signatures) >= 1
    assert pickle.loads(pickle.dumps(add)) is add
    by_python = tree.copy()
    add(tree, 0, 1, 5)
    add.py_func(by_python, 0, 1, 5)
    assert (tree == by_python).all() and tree.any()
