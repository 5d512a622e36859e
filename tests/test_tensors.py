"""PyTorch's files: read as PyTorch reads them, and of what strangers wrote nothing is called."""

import io
import pickle
import zipfile
from collections import OrderedDict

import pytest
from cases import each

torch = pytest.importorskip("torch")

from parenvs.errors import ParenvsError  # noqa: E402
from parenvs.tensors import read_saved, read_tensors  # noqa: E402


def saved(content):
    stream = io.BytesIO()
    torch.save(content, stream)
    stream.seek(0)
    return stream


TYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex64", "complex128", "uint16", "float8_e4m3fn",
)  # fmt: skip


@each("name", TYPES)
def test_read__types(name):
    wanted = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    found = read_tensors(saved(wanted))
    assert found.dtype == wanted.dtype and found.tolist() == wanted.tolist()


def test_read__is_what_pytorch_reads():
    """Views, tied tensors, none, and those of one number; lists, tuples, numbers and texts."""
    base = torch.arange(24.0).reshape(4, 6)
    net = torch.nn.Linear(3, 2)
    content = {
        "views": [base.T, base[1:, ::2], base[0], base[3, 3], torch.zeros(0, 3)],
        "tied": (base, base), "net": net.state_dict(), "parameter": net.weight,
        "ordered": OrderedDict(a=1, b=[None, True, -(2**40), 1e300, "é"]), 0: {1: ()},
    }  # fmt: skip
    found, wanted = read_tensors(saved(content)), torch.load(saved(content), weights_only=True)

    def plain(value):
        if isinstance(value, torch.Tensor):
            return [value.dtype, value.shape, value.stride(), value.tolist()]
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        return type(value)(map(plain, value)) if isinstance(value, list | tuple) else value

    assert plain(found) == plain(wanted)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(3)).sum().backward()
    optimizer.step()
    assert plain(read_tensors(saved(optimizer.state_dict()))) == plain(optimizer.state_dict())


def archive(pickled, numbers=b"\0" * 24, kind=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/data/0", numbers)
    stream.seek(0)
    return stream


def called(module, name, arguments):
    """A pickle that calls something; arguments are opcodes."""
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"(" + arguments + b"tR."


def number(value):
    return b"\x8a\x09" + value.to_bytes(9, "little")


STORAGE = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + b"0" + b"X\3\0\0\0cpuK\6tQ"


def tensor(at, size, stride):
    words = b"".join([b"(", *map(number, size), b"t(", *map(number, stride), b"t"])
    rebuilt = STORAGE + number(at) + words + b"\x89}"
    return called("torch._utils", "_rebuild_tensor_v2", rebuilt)


LAUGHS = b"\x80\x02]q\0" + b"".join(
    b"](" + b"h" + bytes([k]) + b"h" + bytes([k]) + b"eq" + bytes([k + 1]) for k in range(60)
) + b"."  # fmt: skip
"""Lists of the one before, twice: 2^60 values."""


@each(
    ("pickled", "words"),
    [
        (called("builtins", "bytearray", number(2**36)), "'builtins.bytearray' is not read"),
        (called("torch", "FloatTensor", number(2**36)), "'torch.FloatTensor' is not read"),
        (called("torch.storage", "UntypedStorage", number(2**36)), "no tensor"),
        (called("os", "system", b"X\4\0\0\0true"), "'os.system' is not read"),
        (b"\x80\x02}()" + b"\x85" * 300_000 + b"K\1u.", "neither a text nor a place"),
        (b"\x80\x02}(" + number(2**61 - 1) + b"K\1u.", "neither a text nor a place"),
        (b"\x80\x02" + b"]" * 200 + b"a" * 199 + b".", "nested too deeply"),
        (LAUGHS, "repeated too often"),
        (tensor(0, [2**40], [0]), "of 6 numbers"),
        (tensor(0, [2], [2**40]), "of 6 numbers"),
        (tensor(6, [1], [1]), "of 6 numbers"),
        (tensor(2**61, [2, 2], [2**61, 2**61]), "of 6 numbers"),
        (tensor(0, [2], [1, 1]), "without a shape"),
        (b"\x80\x02" + STORAGE + b".", "no tensor"),
        (b"\x80\x02c_codecs\nencode\n.", "is not read"),
        (b"\x80\x02\x8a\xff" + b"\1" * 255 + b".", "int is not read"),
        (b"", "^$"),
    ],
)
def test_read__hostile_pickles_are_refused(pickled, words):
    """PyTorch ends the process, takes all memory, or goes on forever on some of these."""
    with pytest.raises(Exception, match=words):
        read_tensors(archive(pickled))


def test_read__hostile_archives_are_refused(tmp_path):
    one = tensor(0, [6], [1])
    assert read_tensors(archive(one)).tolist() == [0.0] * 6
    for stream, words in (
        (archive(one, bytes(2**20), zipfile.ZIP_DEFLATED), "compressed"),
        (archive(b"", b""), "^$"),
        (io.BytesIO(pickle.dumps({})), "not a zip file"),
        (io.BytesIO(archive(one).getvalue()[:-5]), "not a zip file"),
        (io.BytesIO(archive(one).getvalue().replace(b"\0" * 24, b"\1" * 24)), "Bad CRC-32"),
    ):
        with pytest.raises(Exception, match=words):
            read_tensors(stream)
    stream = archive(one)
    with zipfile.ZipFile(stream, "a") as file:  # members that share their bytes
        shared = file.getinfo("archive/data/0")
        for name in map(str, range(9)):
            file.filelist.append(entry := zipfile.ZipInfo(f"archive/data/1{name}"))
            entry.header_offset, entry.CRC = shared.header_offset, shared.CRC
            entry.file_size = entry.compress_size = 2**20
        file._didModify = True
    with pytest.raises(ValueError, match="more than the file"):
        read_tensors(stream)
    path = tmp_path / "state.pt"
    path.write_bytes(archive(LAUGHS).getvalue())
    with pytest.raises(ParenvsError, match=r"state\.pt: damaged \(nested too deeply, or .* remove"):
        read_saved(path)
    path.write_bytes(archive(b"").getvalue())
    with pytest.raises(ParenvsError, match=r"state\.pt: damaged \(EOFError\)"):
        read_saved(path)
    with pytest.raises(ParenvsError, match=r"none\.pt: damaged \(.*No such file"):
        read_saved(tmp_path / "none.pt")
