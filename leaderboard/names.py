"""Names of entries and authors: every file system can hold them, every reader tell them apart."""

from __future__ import annotations

import re
import unicodedata

from parenvs.errors import shown

_ENTRY = re.compile(r"[a-z0-9][a-z0-9.+-]{0,39}")
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_ACCENTS = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]")
_PHONETIC = re.compile("[\u0250-\u02af\u1d00-\u1dbf\u2c60-\u2c7f\ua720-\ua7ff\uab30-\uab6f]")
"""Latin letters of phonetic alphabets, which no name is written in."""
_TOGETHER = frozenset({"LATIN", "HAN", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"})
"""Scripts that one word may mix (UTS #39, 5.2: highly restrictive)."""
_MOST_MARKS = 3
"""Marks that follow each other in scripts that need them: a vowel, a tone and one more."""


def entry_fault(name: object) -> str:
    """Return why a value cannot be the name of an entry, and so of a file, or an empty text."""
    if not isinstance(name, str) or not _ENTRY.fullmatch(name):
        return (
            "must be up to 40 lower-case letters, digits, dots, hyphens and plus signs, a letter "
            f"or digit first, not {shown(name)}"
        )
    if name.endswith("."):
        return f"is {shown(name)}; leave out the dot at the end, which Windows drops"
    if _DEVICES.fullmatch(name):
        return f"is {shown(name)}, a device of Windows and no file there; choose another name"
    return ""


def author_fault(name: str) -> str:
    """Return why an author's printable name could be taken for another, or an empty text."""
    if name != name.strip():
        return "leave out the spaces around it"
    plain = unicodedata.normalize("NFKC", name)
    if name != plain:
        return f"write it in its plain form, {shown(plain)} (Unicode's NFKC)"
    odd = _UNSEEN.search(name) or _ACCENTS.search(name)
    if odd:
        kind = "invisible" if _UNSEEN.match(odd[0]) else "combining"
        return f"leave out the {kind} character U+{ord(odd[0]):04X}"
    marks = 0
    for character in name:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks > _MOST_MARKS:
            return f"leave out combining characters: more than {_MOST_MARKS} follow each other"
    return "" if name.isascii() else _look_alike(name)


def _look_alike(name: str) -> str:
    """Return why a name could be taken for another by the look of its letters, or an empty text.

    Look-alikes are the confusables of UTS #39. A word of several scripts is refused, and so is a
    name of another script all of whose letters look like those of ASCII.
    """
    from confusable_homoglyphs import categories  # it reads its tables when it is imported

    for word in re.findall(r"\w+", name):
        scripts = set(categories.unique_aliases(word)) - {"COMMON", "INHERITED"}
        if len(scripts) > 1 and not scripts <= _TOGETHER:
            mixed = " and ".join(sorted(x.title() for x in scripts))
            return f"write {shown(word)} in one script; it mixes {mixed}, whose letters look alike"
    letters = [x for x in name if x.isalpha()]
    odd = [x for x in letters if _PHONETIC.match(x)]
    is_latin = categories.unique_aliases("".join(letters)) == {"LATIN"}
    if any(map(_twin, odd)) or (not is_latin and all(map(_twin, letters))):
        looks = "".join(_twin(x) or x if x.isalpha() else x for x in name)
        return f"it looks like {shown(looks)}, letter by letter; write that, or more of the name"
    return ""


def _twin(letter: str) -> str:
    """Return the letters of ASCII that a letter looks like, itself if it is one, or nothing."""
    from confusable_homoglyphs import confusables

    if letter.isascii():
        return letter
    twins = confusables.is_confusable(letter, greedy=True) or [{"homoglyphs": ()}]
    alike = (x["c"] for x in twins[0]["homoglyphs"])
    return next((x for x in alike if x.isascii() and x.isalnum()), "")


def is_seen(text: str) -> bool:
    """Return whether a text has a character that leaves a mark on a page."""
    return bool(_UNSEEN.sub("", text).strip())
