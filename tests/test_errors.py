import sys

import pytest

from parenvs.errors import ParenvsError, cut, did_you_mean, need_extra, one_line, printable


def test_need_extra__names_the_pip_line():
    with pytest.raises(ParenvsError) as caught, need_extra("agents", "training"):
        import parenvs.no_such_module  # noqa: F401
    words = str(caught.value)
    assert words.startswith("training needs the extra 'agents' (No module named")
    assert words.endswith("; pip install 'parenvs[agents]'")
    assert caught.value.__cause__ is None
    assert "\n" not in words


@pytest.mark.parametrize(
    ("version", "words"), [((3, 10, 13), "on Python 3.11 or newer, "), ((3, 11), "")]
)
def test_need_extra__jax_is_of_newer_pythons(monkeypatch, version, words):
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(ParenvsError) as caught, need_extra("jax", "verifying"):
        import parenvs.no_such_module  # noqa: F401
    assert str(caught.value).endswith(f"); {words}pip install 'parenvs[jax]'")


def test_need_extra__lets_other_errors_through():
    with pytest.raises(KeyError), need_extra("agents", "training"):
        raise KeyError("x")


def test_cut():
    assert cut("short") == "short"
    assert cut("a" * 600) == "a" * 600 and len(cut("a" * 601)) == 600
    assert cut("a" * 99 + "b" * 99, 20) == "aaaaaaa ... bbbbbbbb"


def test_printable():
    assert printable("a\x1b[31m\r\n\u202eb\ud800 \u00e9") == "a?[31m???b? \u00e9"
    assert one_line(ValueError("a\x1b\n b\n c")) == "a? b"


def test_did_you_mean__takes_endless_names():
    assert did_you_mean("exact" + " " * 10**6, ["exact"]) == ""
    assert did_you_mean("exat", ["exact", "even"]) == " (did you mean 'exact'?)"


def test_did_you_mean__is_near_in_letters_or_silent():
    known = ["vgg-19", "t5-base", "t5-3b", "bert-48", "llama3-70b", "resnet-50", "gpt3-175b"]
    for name, wanted in {
        "t5-bsae": "t5-base", "resnet50": "resnet-50", "llama": "llama3-70b", "VGG-20": "vgg-19",
        "bert-base": "", "alexnet": "", "opt-175b": "", "t5-large": "", "gpt-2": "",
    }.items():  # fmt: skip
        assert did_you_mean(name, known) == (wanted and f" (did you mean {wanted!r}?)"), name
