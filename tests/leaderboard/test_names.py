"""Names that a file system, a table or a reader would take for others are refused."""

import pytest
from cases import each

from parenvs.leaderboard.entry import Entry, EntryError
from parenvs.leaderboard.names import author_fault, entry_fault, is_seen


@each(
    ("name", "words"),
    [
        *((name, "a device of Windows") for name in ("con", "nul", "aux", "prn", "com1", "lpt9")),
        ("nul.tar.gz", "a device of Windows"),
        ("exact.", "leave out the dot"),
        ("exact ", "must be up to 40"),
        ("ex\u0430ct", "must be up to 40"),
        ("e\u200bxact", "must be up to 40"),
        ("exact\n", "must be up to 40"),
        (None, "must be up to 40"),
    ],
)
def test_entry_fault(name, words):
    assert words in entry_fault(name)
    assert entry_fault(name).isprintable()


@pytest.mark.parametrize("name", ["exact", "console", "com10", "nullable", "v1.2", "a..b", "0-a"])
def test_entry_fault__none(name):
    assert entry_fault(name) == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (" Ada", "leave out the spaces"),
        ("Ada ", "leave out the spaces"),
        ("\uff21da", "plain form, 'Ada'"),
        ("\ufb01nn", "plain form, 'finn'"),
        ("Zoe\u0308", "plain form, 'Zo\u00eb'"),
        ("A\u0336da", "combining character U+0336"),
        ("Ada\u3164", "plain form"),
        ("Ada\u115f", "invisible character U+115F"),
        ("Ada\ufe0f", "invisible character U+FE0F"),
        ("A\u2800da", "invisible character U+2800"),
        ("\u0e01" + "\u0e47" * 9, "more than 3 follow"),
        ("\u0410da Lovelace", "in one script; it mixes Cyrillic and Latin"),
        ("\u0391l\u0435x", "in one script; it mixes Cyrillic and Greek and Latin"),
        ("\u0421\u0430\u0440\u0430", "looks like 'Capa'"),
        ("\u13aa\u13a0\u13aa", "looks like 'ADA'"),
        ("Ad\u0251", "looks like 'Ada'"),
    ],
)
def test_author_fault(name, words):
    assert words in author_fault(name)


@pytest.mark.parametrize(
    "name",
    [
        "Ada Lovelace",
        "Zo\u00eb",
        "\u674e\u96ea",
        "\u0939\u093f\u0928\u094d\u0926\u0940",
        "J. R. O'Neil Jr.",
        "\u0e2a\u0e38\u0e14\u0e32",
        "Ng\u00f4 B\u1ea3o Ch\u00e2u",
        "I\u015f\u0131k \u00c6sir",
        "\u041d\u0438\u043a\u043e\u043b\u0430\u0439 (Nikolai)",
        "\u03a0\u03b1\u03cd\u03bb\u03bf\u03c2",
        "PFN\u7814\u7a76\u6240",
        "\u4e8c\u30ce\u5bae",
    ],
)
def test_author_fault__none(name):
    assert author_fault(name) == ""


def test_is_seen():
    assert is_seen("x\ufe0f")
    assert not is_seen(" \u3164\u2800 ")


@pytest.mark.parametrize(
    "name", ["\u202eAda", "A\u200dda", "A\u0301\u0301da", "Ada\x1b[2J", " Ada"]
)
def test_entry__refuses_such_authors(name):
    content = Entry("data-parallel", "mine", (name,), "By hand.", {"vgg-19-shardy-8": {}}).to_json()
    with pytest.raises(EntryError, match="field 'authors'") as caught:
        Entry.from_json(content)
    assert str(caught.value).isprintable()
