"""Hostile entries: what each tried, and how it ended, with isolation and without.

Each entry is run on one problem three times: here; in a container that forbids user namespaces; and
there with ``--unsafe-no-isolation``, below a root that cannot be written. What got through is
observed, not told by the entry: files in a folder outside that anybody may write to, words of a
secret file or variable in the result, signals and connections that reached the checker, words that
steer a terminal, and processes and shared memory that are left.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.framework import main, measurement, progress, table
from parenvs.errors import ParenvsError
from parenvs.leaderboard import methods, policies
from parenvs.leaderboard.entry import SCHEMA, Entry
from parenvs.leaderboard.methods import drawn_task, method_verdicts
from parenvs.leaderboard.policies import policy_verdicts
from parenvs.leaderboard.sandbox import runner, usage
from parenvs.leaderboard.sandbox.isolation import IsolationError
from parenvs.leaderboard.sandbox.limits import Limits
from parenvs.leaderboard.tasks import tasks

ROOT = Path(__file__).parents[1]
LIMITS = Limits(
    seconds=30, cpu_seconds=4, memory_mib=1024, file_mib=8, files=40, processes=12, result_mib=1,
    printed_kib=64,
)  # fmt: skip
SECRET = "correct-horse-battery"
CHAIN = "elastic-test/bulk-gpt-1.5b-000"
_C = "import ctypes, os; c = ctypes.CDLL(None, use_errno=True); "
_SOUND = "__import__('parenvs').solve(problem.target, 'even').plan"
METHODS: dict[str, str] = {
    # writing outside
    "open a file outside": "open('OUT/x', 'w').write('x')",
    "os.open outside": "import os; os.write(os.open('OUT/x', os.O_CREAT | os.O_WRONLY), b'x')",
    "os.open with dir_fd": "import os; d = os.open('OUT', os.O_RDONLY); "
    "os.open('x', os.O_CREAT | os.O_WRONLY, dir_fd=d)",
    "sqlite3 outside": "import sqlite3; sqlite3.connect('OUT/x').execute('create table t (a)')",
    "numpy.save outside": "import numpy; numpy.save('OUT/x', numpy.ones(3))",
    "open(2) by ctypes": _C + "c.open(b'OUT/x', 65, 0o644)",
    "mkdir(2) by syscall": _C + "c.syscall({'x86_64': 83}.get(os.uname()[4], -1), b'OUT/x', 511)",
    "a link in the scratch": "import os; os.symlink('OUT', 'l'); open('l/x', 'w')",
    "rename out of the scratch": "import os; open('a', 'w'); os.rename('a', 'OUT/x')",
    "a hard link to a secret": "import os; os.link('OUT/secret', 's')\n"
    "return {'s': open('s').read()}",
    "chmod outside": _C + "c.chmod(b'OUT/secret', 0o777)",
    "unlink outside": _C + "c.unlink(b'OUT/secret')",
    "through /proc/self/root": _C + "c.open(b'/proc/self/root/OUT/x', 65, 0o644)",
    "through /proc/1/cwd": _C + "c.open(b'/proc/1/cwd/../OUT/x', 65, 0o644)",
    "lint found by gc, switched off": "import gc\nfor x in gc.get_objects():\n"
    "  if type(x).__name__ in ('Guard', 'Lint'): x._is_on = False\nopen('OUT/x', 'w')",
    "lint's class changed": "from parenvs.leaderboard.sandbox import child\n"
    "child.Lint.__call__ = lambda *a: None\nopen('OUT/x', 'w')",
    "overwrite the package": _C + "c.open(os.fsencode(os.__file__), 1, 0) > 0 and "
    "c.mkdir(b'OUT/x', 511)",
    # secrets
    "read a secret file": "return {'s': open('OUT/secret').read()}",
    "read the environment": "import os; return {'s': dict(os.environ)}",
    "read the checker's environment": "return {'s': open('/proc/PARENT/environ').read()}",
    "read all of /proc": "import glob\ns = ''\nfor p in glob.glob('/proc/*/environ'):\n"
    "  try: s += open(p).read()\n  except OSError: pass\nreturn {'s': s}",
    "keys of the session": _C + "b = ctypes.create_string_buffer(99)\n"
    "for n in (250, 219): k = c.syscall(n, 10, -3, b'user', b'parenvs', 0); "
    "c.syscall(n, 11, k, b, 99)\nreturn {'s': b.value.decode('latin1')}",
    "the clone and its history": "import os\n"
    "return {'s': SECRET if os.path.exists('ROOT/setup.cfg') else ''}",
    # memory and disk
    "ten GiB": "bytearray(10 * 2**30)",
    "memfd_create": "import os\nfor i in range(40):\n  f = os.memfd_create('x')\n"
    "  for j in range(32): os.write(f, bytes(2**21))\nimport time; time.sleep(60)",
    "System V memory": _C + "c.shmat.restype = ctypes.c_void_p\nfor i in range(40):\n"
    "  s = c.shmget(0, 2**26, 0o1600)\n  assert s >= 0, os.strerror(ctypes.get_errno())\n"
    "  a = c.shmat(s, 0, 0); ctypes.memset(a, 1, 2**26); c.shmdt(ctypes.c_void_p(a)); "
    "c.shmctl(s, 0, None) if i % 2 else 0\nimport time; time.sleep(60)",
    "forks that hold memory": _C + "import time\nfor i in range(8):\n  if c.fork() == 0:\n"
    "    x = b'x' * (250 * 2**20); time.sleep(60)\ntime.sleep(60)",
    "shared memory, filled by a child": _C + "import mmap, time\nm = []\nfor i in range(2):\n"
    "  m.append(mmap.mmap(-1, 400 * 2**20))\n  if c.fork() == 0:\n"
    "    for j in range(400): m[-1].write(bytes(2**20))\n    os._exit(0)\n  os.wait()\n"
    "m2 = [mmap.mmap(-1, 2**28) for i in range(2)]\ntime.sleep(60)",
    "fill the scratch": "for i in range(99): open(f'f{i % 9}', 'ab').write(bytes(2**20))",
    "thousands of files": "for i in range(9999): open(f'f{i}', 'w').close()",
    "fill pipes": "import os, fcntl\np = [os.pipe() for i in range(999)]",
    "endless recursion in C": "x = []\nfor i in range(10**6): x = [x]\nreturn {'x': x}",
    # processes and time
    "fork bomb in C": _C + "\nwhile True: c.fork()",
    "busy forks": _C + "\nfor i in range(6): c.fork()\nwhile True: pass",
    "os.fork": "import os; os.fork() == 0 and os._exit(0)",
    "a program of the system": "import subprocess; subprocess.run(['touch', 'OUT/x'])",
    "fork_exec without an event": "import multiprocessing.util as u; "
    "u.spawnv_passfds(b'/bin/touch', [b'touch', b'OUT/x'], []); import time; time.sleep(1)",
    "a daemon with its own session": _C + "import time\nif c.fork() == 0:\n  c.setsid()\n"
    "  if c.fork() == 0:\n    time.sleep(8); c.mkdir(b'OUT/x', 511); time.sleep(600)\n"
    "  os._exit(0)",
    "a thousand threads": "import threading, time\nfor i in range(1000): "
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "loop": "while True: pass",
    "sleep in C": _C + "c.sleep(600)",
    "ignore all signals": "import signal\nfor s in range(1, 64):\n  try: signal.signal(s, 1)\n"
    "  except Exception: pass\nwhile True: pass",
    "signal to the checker": _C + "c.kill(PARENT, 10)",
    "signal to everybody": _C + "c.kill(-1, 10)",
    "os.kill of the waiting process": "import os, signal; os.kill(os.getppid(), signal.SIGKILL); "
    "import time; time.sleep(1)",
    # the kernel
    "ptrace the checker": _C + "c.ptrace(16, PARENT, 0, 0) == 0 and c.kill(PARENT, 10)",
    "write /proc/PID/mem of the checker": "open('/proc/PARENT/mem', 'r+b').close(); "
    "return {'s': SECRET}",
    "write /proc/1/mem": "open('/proc/1/mem', 'r+b').close(); return {'s': SECRET}",
    "process_vm_readv": _C + "b = ctypes.create_string_buffer(8); "
    "return {'s': SECRET if c.process_vm_readv(PARENT, b, 0, b, 0, 0) == 0 else ''}",
    **{
        f"the call {name}": _C + f"n = {pair}[os.uname()[4] == 'aarch64']; a = {arguments}\n"
        "return {'s': SECRET if c.syscall(n, *a) >= 0 else ''}"
        for name, pair, arguments in (
            ("bpf", (321, 280), "(0, ctypes.create_string_buffer(bytes([1, 0, 0, 0, 4, 0, 0, 0, 4, "
             "0, 0, 0, 1] + [0] * 59)), 72)"),
            ("io_uring_setup", (425, 425), "(4, ctypes.create_string_buffer(120))"),
            ("perf_event_open", (298, 241), "(ctypes.create_string_buffer(bytes([1, 0, 0, 0, 112])"
             " + bytes(123)), 0, -1, -1, 0)"),
            ("userfaultfd", (323, 282), "(1,)"),
            ("add_key", (248, 217), "(b'user', b'a', b'b', 1, -3)"),
            ("unshare", (272, 97), "(0x10000000,)"),
            ("memfd_secret", (447, 447), "(0,)"),
            ("pidfd_open", (434, 434), "(PARENT, 0)"),
        )
    },
    "mount": _C + "return {'s': SECRET if c.mount(b'x', b'/tmp', b'tmpfs', 0, 0) == 0 else ''}",
    "become root": _C + "return {'s': SECRET if c.setresuid(0, 0, 0) == 0 and "
    "c.chroot(b'/') == 0 else ''}",
    # the network
    "connect": "import socket; socket.create_connection(('127.0.0.1', PORT), 2)",
    "connect by ctypes": _C + "import struct; s = c.socket(2, 1, 0); "
    "c.connect(s, struct.pack('=HHI8x', 2, socket_order(PORT), 0x0100007F), 16)",
    "socket.sendmsg": "import socket; s = socket.socket(2, 2); "
    "s.sendmsg([b'x'], [], 0, ('127.0.0.1', PORT))",
    "abstract socket": _C + "import struct; s = c.socket(1, 1, 0); "
    "c.connect(s, b'\\1\\0\\0parenvs-PORT', 3 + len('parenvs-PORT'))",
    "netlink": _C + "return {'s': SECRET if c.socket(16, 3, 0) >= 0 else ''}",
    "vsock": _C + "return {'s': SECRET if c.socket(40, 1, 0) >= 0 else ''}",
    # ways around the checks
    "a call of 32 bits": _C + "import struct; c.mmap.restype = ctypes.c_void_p\n"
    "p = c.mmap(0, 4096, 7, 0x62, -1, 0); ctypes.memmove(p + 64, b'OUT/x\\0', len(b'OUT/x') + 1)\n"
    "code = bytes.fromhex('53b827000000bb') + struct.pack('<I', p + 64) + "
    "bytes.fromhex('b9ff010000cd805bc3')\nctypes.memmove(p, code, len(code))\n"
    "os.uname()[4] == 'x86_64' and ctypes.CFUNCTYPE(ctypes.c_int)(p)()",
    "a call of the x32 table": _C + "c.syscall(0x40000000 | 83, b'OUT/x', 511)",
    "stop oneself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "stop the waiting process": "import os, signal, time; os.kill(os.getppid(), signal.SIGSTOP); "
    "time.sleep(1)",
    "a name that tells of another parent": _C + "import time; c.prctl(15, b') R 1 1 1 1 (', 0, 0)\n"
    "for i in range(8):\n  if c.fork() == 0:\n    x = b'x' * (250 * 2**20); time.sleep(60)\n"
    "time.sleep(60)",
    "limits raised": "import resource as r\nfor k in (r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_NPROC, "
    "r.RLIMIT_FSIZE):\n  try: r.setrlimit(k, (r.RLIM_INFINITY, r.RLIM_INFINITY)); "
    "return {'s': SECRET}\n  except ValueError: pass",
    "folders without end, each in the last": _C + "\n"
    "for i in range(9000): c.mkdir(b'd', 0o300); c.chdir(b'd')",
    "descriptors of other processes": "import glob, os\ns = ''\n"
    "for p in glob.glob('/proc/[0-9]*/fd/*'):\n  if p.split('/')[2] == str(os.getpid()): continue\n"
    "  try: d = os.open(p, os.O_RDWR | os.O_NONBLOCK); os.write(d, b'{}'); s = SECRET\n"
    "  except OSError: pass\nreturn {'s': s}",
    "descriptors on their way": "import array, socket\nf, k = array.array('i', [0] * 200), []\n"
    "try:\n  while True:\n    a = socket.socketpair(); k.append(a); a[0].setblocking(False)\n"
    "    a[0].sendmsg([b'x' * 2**17], [(1, 1, f)])\nexcept OSError: pass",
    "a file in /dev/shm": _C + "c.open(b'/dev/shm/parenvs-PORT', 65, 0o644)",
    "System V memory, left": _C + "c.shmget(PORT, 4096, 0o1666)",
    "modules for who imports next": "for n in ('json', 'numpy', 'site', 'sitecustomize'):\n"
    "  open(n + '.py', 'w').write('open(\"OUT/x\", \"w\")')\n"
    "import sys, multiprocessing.util as u\n"
    "u.spawnv_passfds(sys.executable.encode(), [b'python', b'-c', b'import json'], [])",
    "a thread that goes on": _C + "import threading, time\n"
    "threading.Thread(target=lambda: [time.sleep(0.01) or c.mkdir(b'OUT/x', 511) "
    "for i in range(999)]).start()",
    # the result
    "forge the result": "import os; os.write(3, b'{\"value\": {}}'); os._exit(0)",
    "forge the isolation": "import os; os.write(3, b'{\"isolation\": [], \"value\": 1}\\n'); "
    "os.write(1, b'{\"why\": \"\"}\\n'); os._exit(0)",
    "flood the output": "while True: print('x' * 2**16)",
    "flood the result": "import os\nwhile True: os.write(3, b'x' * 2**16)",
    "a result of megabytes": "return {'x': 'x' * 2**22}",
    "NaN in the plan": f"return {{**{_SOUND}.to_json(), 'cuts': [float('nan')] * 8}}",
    "infinity in the plan": f"return {{**{_SOUND}.to_json(), 'cuts': [float('inf')] * 8}}",
    "numbers of a thousand digits": f"return {{**{_SOUND}.to_json(), 'cuts': [10**1000]}}",
    "a plan of another class": "class P:\n  def to_json(self): raise SystemExit(0)\nreturn P()",
    "json.dumps replaced": "import json; json.dumps = lambda *a, **k: '{\"value\": 1e999}'",
    "an error whose words fail": "class E(Exception):\n"
    "  def __str__(self): return 1 / 0\nraise E()",
    "crash": "import ctypes; ctypes.string_at(0)",
    "end without a result": "import os; os._exit(0)",
    "words that steer a terminal": "raise OSError('\\x1b[2J\\x1b]0;x\\x07\\u202e\\ud800\\r\\n')",
    "surrogates and escapes in the plan": f"return {{**{_SOUND}.to_json(), '\\ud800\\x1b[2J': 1, "
    "'instance': '\\u202e\\ud800'}",
    "brackets without end": "import os; os.write(3, b'[' * 2**19); os._exit(0)",
    "a result of two": "import os; os.write(3, b'{\"value\": {}}' * 2); os._exit(0)",
    "look the answer up": "from parenvs.leaderboard.methods import drawn_task\n"
    "return drawn_task('pipeline-drawn', 3, 1).problems['drawn/3-0'].reference.to_json()",
}  # fmt: skip
"""What a method tries -> the body of its ``plan(problem)``."""
_LAYER = {"weights": [[0.0]] * 26, "biases": [0.0], "activation": "none"}
_TABLE = {"kind": "table", "observation": 1}


def _network(**changes: Any) -> dict[str, Any]:
    layer = {**_LAYER, **changes}
    return {"kind": "network", "observation": 1, "layers": {"each": [layer]}}


POLICIES: dict[str, Any] = {
    "weights that are NaN": _network(weights=[[float("nan")]] * 26),
    "weights that overflow": _network(weights=[[1e308]] * 26, biases=[1e308]),
    "weights of another shape": _network(weights=[[0.0] * 7] * 3),
    "weights that are code": _network(weights="__import__('os').system('touch OUT/x')"),
    "a layer of a million": _network(weights=[[0.0] * 30_000] * 26, biases=[0.0] * 30_000),
    "an unknown activation": _network(activation="__reduce__"),
    "a hundred layers": {"kind": "network", "observation": 1, "layers": {"each": [_LAYER] * 100}},
    "a table with other plans": {**_TABLE, "tables": {"gpt-1.5b-measured": [[[10**9]]] * 8}},
    "a table with negative plans": {**_TABLE, "tables": {"gpt-1.5b-measured": [[[-1]]] * 8}},
    "a table of an unknown library": {**_TABLE, "tables": {"../../etc/passwd": [[[0]]] * 8}},
    "a rule that is a module": {"kind": "rule", "rule": "os.system"},
    "a file outside": {"kind": "network", "observation": 1, "file": "../secret.npz", "sha256": ""},
    "a kind that is a list": {"kind": ["rule"], "rule": "fastest"},
    "deep nesting": {"kind": "table", "observation": 1, "tables": json.loads("[" * 50 + "]" * 50)},
    "courses recorded for another seed": {"kind": "recorded", "seed": 9, "plans": {CHAIN: [[0]]}},
}
"""What a policy tries -> its content."""


@contextmanager
def _outside() -> Iterator[dict[str, Any]]:
    """What an entry may reach for; ``seen`` is called at the end and says what it reached."""
    signals: list[int] = []
    with tempfile.TemporaryDirectory(prefix="outside-") as folder, socket.socket() as tcp:
        Path(folder).chmod(0o777)
        secret = Path(folder, "secret")
        secret.write_text(SECRET)
        secret.chmod(0o644)
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        tcp.setblocking(False)
        port = tcp.getsockname()[1]
        abstract, udp = socket.socket(socket.AF_UNIX), socket.socket(type=socket.SOCK_DGRAM)
        abstract.bind(f"\0parenvs-{port}")
        abstract.listen()
        udp.bind(("127.0.0.1", port))
        for other in (abstract, udp):
            other.setblocking(False)
        old = signal.signal(signal.SIGUSR1, lambda number, _: signals.append(number))
        os.environ["SECRET"] = SECRET

        def seen(value: str) -> str:
            found = []
            if [*Path(folder).iterdir()] != [secret] or secret.stat().st_mode & 0o777 != 0o644:
                found.append("changed files outside")
            if SECRET in value:
                found.append("did what a secret word says")
            if signals:
                found.append("signalled the checker")
            for name, other in (("TCP", tcp), ("a Unix socket", abstract), ("UDP", udp)):
                try:
                    other.recv(9) if other is udp else other.accept()
                except OSError:
                    continue
                found.append(f"reached the checker by {name}")
            shared, library = Path(f"/dev/shm/parenvs-{port}"), ctypes.CDLL(None)
            segment = library.shmget(port, 0, 0)
            if shared.exists() or segment >= 0:
                found.append("left shared memory")
                shared.unlink(missing_ok=True)
                library.shmctl(segment, 0, None)
            left = [pid for pid in usage.family(os.getpid()) if pid != os.getpid()]
            orphans = [pid for pid, x in usage.processes().items() if x.parent == 1 and pid != 1
                       and _is_ours(pid)]  # fmt: skip
            if left or orphans:
                found.append("left a process")
            return ", ".join(found)

        try:
            yield {"out": folder, "port": port, "seen": seen}
        finally:
            signal.signal(signal.SIGUSR1, old)
            abstract.close()
            udp.close()


def _is_ours(pid: int) -> bool:
    try:
        return b"sandbox.child" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _method(body: str, place: dict[str, Any]) -> str:
    """The text of a method."""
    port = place["port"]
    body = body.replace("socket_order(PORT)", str((port & 255) << 8 | port >> 8))
    for word, value in (("OUT", place["out"]), ("PARENT", os.getpid()), ("PORT", port),
                        ("ROOT", ROOT)):  # fmt: skip
        body = body.replace(word, str(value))
    body = body.replace("SECRET", repr(SECRET))
    lines = "".join(f"  {line}\n" for line in body.split("\n"))
    return f"def plan(problem):\n{lines}  return {_SOUND}\n"


def ended(kind: str, name: str, unsafe: bool) -> dict[str, str]:
    """Run one entry, and return how it ended and what it reached."""
    with _outside() as place:
        values: list[Any] = []

        def recorded(*arguments: Any, **words: Any) -> runner.Outcome:
            outcome = runner.run(*arguments, **words)
            values.append(outcome.value)
            return outcome

        methods.run = policies.run = recorded
        try:
            if kind == "method":
                entry = Entry("pipeline-drawn", "hostile", ("M",), "x",
                              script=_method(METHODS[name], place))  # fmt: skip
                task = drawn_task("pipeline-drawn", 3, 1)
                (verdict,) = method_verdicts(entry, task, LIMITS, unsafe)
            else:
                content = {"schema": SCHEMA, "tasks": tasks().version, "task": "elastic",
                           "entry": "hostile", "authors": ["M"], "link": "", "method": "x",
                           "learned": False, "trained_on": [], "seeds": [], "search_budget": "x",
                           "hardware": "x", "policy": POLICIES[name]}  # fmt: skip
                entry = Entry.from_json(content)
                task = tasks().task("elastic")
                task = replace(task, problems={CHAIN: task.problems[CHAIN]})
                (verdict,) = policy_verdicts(entry, task, 0, LIMITS, unsafe)
            words = verdict.reasons[0].partition(": ")[2] if verdict.reasons else str(verdict.state)
            words = verdict.note or words
        except IsolationError:
            words = "not run"
        except ParenvsError as error:
            words = f"refused: {error}"
        words = re.sub(r"/\S*/outside-\w+", "OUTSIDE", words)  # its name is another every time
        reached = [place["seen"](str(values)), "" if words.isprintable() else "steered a terminal"]
        return {"ended": words[:110], "reached": ", ".join(filter(None, reached))}


def everything(unsafe: bool = False) -> list[list[str]]:
    """Run all entries: kind, name, how it ended, what it reached."""
    rows = []
    for kind, names in (("method", METHODS), ("policy", POLICIES)):
        for name in names:
            progress(f"{kind}: {name}")
            rows.append([kind, name, *ended(kind, name, unsafe).values()])
    return rows


def _apart(container: str, unsafe: bool) -> list[list[str]]:
    """Run all entries in a process of their own, in a container if there are words for one."""
    code = (
        "import json, os; from benchmarks.hostile import everything; "
        f"rows = everything({unsafe}); os.write(3, json.dumps(rows).encode())"
    )
    words = [*container.split(), "sh", "-c", (_CONTAINER if container else "") + _RUN, "sh"]
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [*words, sys.executable, "-c", code], stdout=subprocess.PIPE, check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": scratch},
        )  # fmt: skip
    rows: list[list[str]] = json.loads(done.stdout)
    return rows


_RUN = 'exec "$@" 3>&1 >&2'
_CONTAINER = (
    "mount --make-rprivate / && mount -t tmpfs -o mode=755 tmpfs $TMPDIR && "
    "mount -o remount,bind,ro / && echo 0 > /proc/sys/user/max_user_namespaces && "
)
_UNSHARE = "unshare -Urmpfi --mount-proc"


@measurement(title="Hostile entries of the leaderboard")
def hostile() -> list[list[list[str]]]:
    with ThreadPoolExecutor() as pool:
        jobs = (("", False), (_UNSHARE, False), (_UNSHARE, True))
        return list(pool.map(lambda job: _apart(*job), jobs))


@hostile.page
def page(data: list[list[list[str]]]) -> list[str]:
    isolated, forbidden, _ = data
    counts = [sum(bool(row[3]) for row in rows) for rows in data]
    read = sum(row[2] == "not run" for row in forbidden)
    refused = sum(row[2].startswith("refused") for row in forbidden)
    rows = [
        [kind, name, end, reached or "nothing", how, f"{far}; {got or 'nothing'}"]
        for (kind, name, end, reached), (*_, how, _), (*_, far, got) in zip(*data, strict=True)
    ]
    header = [
        "",
        "tried",
        "isolated",
        "reached",
        "namespaces forbidden",
        "the same, unsafe; reached",
    ]
    return [
        __doc__.split(chr(10) * 2)[1].replace(chr(10), " "),
        f"{len(isolated)} entries: {len(METHODS)} methods, {len(POLICIES)} policies. Isolated, "
        f"{counts[0]} reached something; where namespaces are forbidden {read} were not run, "
        f"{refused} are no entries at all, and {counts[1]} reached something; run there all the "
        f"same, {counts[2]} did.",
        table(header, rows, left=range(6)),
    ]


if __name__ == "__main__":
    main(hostile)
