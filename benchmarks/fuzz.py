"""Mutated files for every reader: each is read, or refused in one line.

``python benchmarks/fuzz.py READER N SEED`` changes small valid files N times (bytes, cuts, copies,
numbers, values of JSON), reads each in a process with limits, and counts what comes of it. It ends
with status 1 if a reader gave a traceback, took more than 5 seconds or asked for more than 1 GB.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import random
import re
import resource
import tempfile
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from parenvs import Graph, ParenvsError, load_plan, load_profile
from parenvs.cluster import Cluster
from parenvs.datasets.instance_sets import load_set, save_set
from parenvs.graph.formats.text import parse
from parenvs.leaderboard.entry import load_entry

SECONDS, BYTES = 5.0, 2**30
"""Limits of one reading."""
OUTCOMES = ("accepted", "refused", "traceback", "hang", "memory")
BAD = OUTCOMES[2:]
ROOT = Path(__file__).parents[1]
NUMBERS = (
    "0", "-1", "1", "2", "7", "255", "2147483648", "1099511627776", "18446744073709551616",
    "1e400", "nan", "0.5", '""', "[]", "null",
)  # fmt: skip
MODULE = """\
HloModule small

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

body {
  p = (s32[], f32[4,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  h = f32[4,8] get-tuple-element(p), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  t = f32[4,8] tanh(h)
  ROOT r = (s32[], f32[4,8]) tuple(n, t)
}

test {
  p = (s32[], f32[4,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT less = pred[] compare(i, n), direction=LT
}

ENTRY main {
  params__layers___0___q__ = f32[8,8] parameter(0)
  params__table__ = f32[16,8] parameter(1)
  batch = s32[4,1] parameter(2)
  e = f32[4,8] gather(params__table__, batch), offset_dims={1}, collapsed_slice_dims={0}, \
start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}
  d = f32[4,8] dot(e, params__layers___0___q__), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  zero = f32[] constant(0)
  none = s32[] constant(0)
  s = (s32[], f32[4,8]) tuple(none, d)
  w = (s32[], f32[4,8]) while(s), condition=test, body=body
  o = f32[4,8] get-tuple-element(w), index=1
  v = f32[4,8,1,1] reshape(o)
  k = f32[1,1,8,8] reshape(params__layers___0___q__)
  g = f32[4,1,1,8] transpose(v), dimensions={0,2,3,1}
  f = f32[4,1,1,8] convolution(g, k), window={size=1x1}, dim_labels=b01f_01io->b01f
  q = f32[4,8] reshape(f)
  m = f32[4,8] call(q), to_apply=scope, metadata={op_name="jit(f)/block"}
  x = f32[8,8] concatenate(m, q), dimensions={0}
  y = f32[4,8] slice(x), slice={[0:8:2], [0:8]}
  z = f32[4,10] pad(y, zero), padding=0_0x1_1
  ROOT l = f32[4] reduce(z, zero), dimensions={1}, to_apply=sum
}
"""
SCOPE = """\
scope {
  p = f32[4,8] parameter(0)
  ROOT n = f32[4,8] negate(p)
}

ENTRY"""
MODULE = MODULE.replace("ENTRY", SCOPE, 1)
CLUSTER = {
    "servers": 2,
    "devices_per_server": 4,
    "device": "v100",
    "inter_bw": 3.125e9,
    "intra_bw": 1.3e11,
}
STABLEHLO = """\
module @m {
  func.func public @main(%a: tensor<4x8xf32>, %b: tensor<8x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : \
(tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %1 = stablehlo.tanh %0 : tensor<4x6xf32>
    return %1 : tensor<4x6xf32>
  }
}
"""


def use(graph: Graph) -> None:
    """Do with a graph what every command does first: its chain and its partitioning."""
    graph.pipeline("2x2:v100", micro_batch=1)
    graph.partitioning("1x2:v100")


def made(write: Callable[[Path], Any], suffix: str) -> bytes:
    """Return the content of a file that a function writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"seed{suffix}"
        write(path)
        return path.read_bytes()


def graph_seed() -> Graph:
    """Return the small module as a graph."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "seed.txt"
        path.write_text(MODULE, encoding="utf-8")
        return Graph.from_hlo(path)


def entry_seed() -> bytes:
    """Return a submitted entry with few plans."""
    files = (ROOT / "leaderboard" / "submissions").glob("*/*.json")
    return min((path.read_bytes() for path in files), key=len)


def plan_seed() -> bytes:
    """Return a plan of such an entry."""
    path = ROOT / "leaderboard" / "submissions" / "pipeline-cut" / "even.json"
    plans = json.loads(path.read_text(encoding="utf-8"))["plans"]
    return json.dumps(next(iter(plans.values()))).encode()


READERS: dict[str, tuple[str, Callable[[], bytes], Callable[[Path], Any]]] = {
    "pb": (
        ".pb",
        lambda: parse(MODULE).SerializeToString(),
        lambda path: use(Graph.from_hlo(path)),
    ),
    "txt": (".txt", MODULE.encode, lambda path: use(Graph.from_hlo(path))),
    "mlir": (".mlir", STABLEHLO.encode, Graph.from_hlo),
    "npz": (
        ".npz",
        lambda: made(graph_seed().save, ".npz"),
        lambda path: use(Graph.load(path)),
    ),
    "csv": (
        ".csv",
        lambda: made(load_profile("vgg-19", "1x2:v100").to_csv, ".csv"),
        lambda path: load_profile(path, "1x2:v100"),
    ),
    "plan": (".json", plan_seed, load_plan),
    "entry": (".json", entry_seed, load_entry),
    "set": (
        ".npz",
        lambda: made(lambda path: save_set(path, load_set("plan-validation")[:3]), ".npz"),
        load_set,
    ),
    "cluster": (
        ".json",
        lambda: json.dumps(CLUSTER).encode(),
        lambda path: Cluster.parse(str(path)),
    ),
}
"""Reader -> ending of its files, a valid file, and what reads a file."""


def mutated(data: bytes, suffix: str, draw: random.Random) -> bytes:
    """Return a file with one to four things changed."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        if suffix == ".npz" and draw.random() < 0.8:
            data = _changed_member(data, draw)
        elif suffix == ".json" and draw.random() < 0.6:
            data = _changed_json(data, draw)
        else:
            data = draw.choice(
                (_flipped, _renumbered, _renumbered, _swapped, _swapped, _cut, _doubled)
            )(data, draw)
    return data


def _flipped(data: bytes, draw: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        if out:
            letter = draw.randrange(32, 127) if draw.random() < 0.7 else draw.randrange(256)
            out[draw.randrange(len(out))] = letter
    return bytes(out)


def _cut(data: bytes, draw: random.Random) -> bytes:
    start, stop = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:start] if draw.random() < 0.3 else data[:start] + data[stop:]


def _doubled(data: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(data) + 1)
    piece = data[start : start + draw.choice((1, 8, 80))]
    return data[:start] + piece * draw.choice((2, 50, 2000)) + data[start + len(piece) :]


def _renumbered(data: bytes, draw: random.Random) -> bytes:
    places = list(re.finditer(rb"\d+", data))
    if not places:
        return data
    place = draw.choice(places)
    return data[: place.start()] + draw.choice(NUMBERS).encode() + data[place.end() :]


def _swapped(data: bytes, draw: random.Random) -> bytes:
    """Put one word in the place of another."""
    words = list(re.finditer(rb"\w+", data))
    if not words:
        return data
    place, other = draw.choice(words), draw.choice(words)
    return data[: place.start()] + other[0] + data[place.end() :]


def _changed_json(data: bytes, draw: random.Random) -> bytes:
    """Change, remove or repeat one value of a JSON file."""
    try:
        value = json.loads(data)
    except ValueError:
        return data
    here = value
    while isinstance(here, dict | list) and here:
        key = draw.choice(list(here) if isinstance(here, dict) else range(len(here)))
        if not isinstance(here[key], dict | list) or draw.random() < 0.3:
            here[key] = draw.choice(
                (
                    None,
                    True,
                    -1,
                    0,
                    2**64,
                    1e308,
                    float("nan"),
                    "",
                    "\x1b[31m",
                    [],
                    {},
                    [[]],
                    "x" * 9,
                )
            )
            break
        here = here[key]
    return json.dumps(value).encode()


def _changed_member(data: bytes, draw: random.Random) -> bytes:
    """Change bytes of one array of a ``.npz``, and pack it again."""
    out = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
            chosen = draw.choice(old.namelist())
            for name in old.namelist():
                content = old.read(name)
                if name == chosen:
                    start = 0 if draw.random() < 0.1 else min(128, len(content))
                    change = draw.choice((_flipped, _flipped, _renumbered))
                    content = content[:start] + change(content[start:], draw)
                new.writestr(name, content)
    except _DAMAGED:
        return data
    return out.getvalue()


_DAMAGED = (
    zipfile.BadZipFile, zlib.error, IndexError, NotImplementedError, RuntimeError, ValueError,
    OSError, EOFError,
)  # fmt: skip
"""What an archive may raise that has been changed before."""


def outcome(read: Callable[[Path], Any], path: Path) -> tuple[str, str]:
    """Return what comes of reading a file, and the text of the error."""
    try:
        read(path)
    except ParenvsError as error:
        text = str(error)
        return ("refused", text) if "\n" not in text else ("traceback", text)
    except MemoryError:
        return "memory", traceback.format_exc()
    except Exception:  # what a user would see as a traceback
        return "traceback", traceback.format_exc()
    return "accepted", ""


def _work(reader: str, link: Connection) -> None:
    """Read files that come as bytes, within the limit of memory, and answer with outcomes."""
    warnings.simplefilter("ignore")
    suffix, _, read = READERS[reader]
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    limit = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"mutated{suffix}"
        while True:
            path.write_bytes(link.recv_bytes())
            link.send(outcome(read, path))


class Worker:
    """A process that reads files; a new one takes its place when it hangs or dies."""

    def __init__(self, reader: str) -> None:
        self.reader = reader
        self.start()

    def start(self) -> None:
        """Start the process."""
        self.link, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(
            target=_work, args=(self.reader, theirs), daemon=True
        )
        self.process.start()
        theirs.close()

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()

    def run(self, data: bytes) -> tuple[str, str]:
        """Return what comes of a file."""
        self.link.send_bytes(data)
        try:
            if self.link.poll(SECONDS):
                return self.link.recv()
            found = "hang", f"more than {SECONDS} seconds"
        except EOFError:
            found = "memory", "the process died"
        self.stop()
        self.start()
        return found


def fuzz(reader: str, count: int, seed: int, keep: Path | None = None) -> Counter[str]:
    """Read ``count`` mutated files and return how often each outcome came.

    Args:
        reader: a name in ``READERS``.
        count: N.
        seed: of the mutations; the same files come of the same seed.
        keep: folder for the files that went wrong, with the tracebacks beside them.
    """
    suffix, seed_of, _ = READERS[reader]
    original, draw = seed_of(), random.Random(f"{reader} {seed}")
    worker, counted = Worker(reader), Counter(dict.fromkeys(OUTCOMES, 0))
    try:
        first = worker.run(original)
        if first[0] != "accepted":
            raise ParenvsError(f"{reader}: the file to be changed is not read: {first[1]}")
        for number in range(count):
            data = mutated(original, suffix, draw)
            found, text = worker.run(data)
            counted[found] += 1
            if found in BAD and keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                path = keep / f"{reader}-{seed}-{number}{suffix}"
                path.write_bytes(data)
                path.with_name(f"{path.name}.log").write_text(text, encoding="utf-8")
    finally:
        worker.stop()
    return counted


def main() -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("reader", choices=READERS)
    options.add_argument("count", type=int, metavar="N")
    options.add_argument("seed", type=int)
    options.add_argument("--keep", type=Path, help="folder for the files that went wrong")
    given = options.parse_args()
    counted = fuzz(given.reader, given.count, given.seed, given.keep)
    print(given.reader, ", ".join(f"{counted[name]} {name}" for name in OUTCOMES))
    return int(any(counted[name] for name in BAD))


if __name__ == "__main__":
    raise SystemExit(main())
