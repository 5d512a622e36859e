"""The leaderboard's site: its pages, hostile entries that must not run in them, its folder."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, join, normpath

import pytest

from parenvs.errors import ParenvsError
from parenvs.leaderboard.check import PlanState, check
from parenvs.leaderboard.entry import load_entry
from parenvs.leaderboard.ranking import ranking
from parenvs.leaderboard.site import GENERATOR, PICTURES, site_files, write_folder, write_site
from parenvs.leaderboard.tasks import tasks

SUBMISSIONS = Path(__file__).parents[2] / "leaderboard" / "submissions"
NAMES = (
    "data-parallel/random", "data-parallel/greedy", "operator-partition-paper/expert",
    "operator-partition-step-time/data-parallel", "pipeline-cut/even", "pipeline-cut/exact",
    "hybrid/best-known", "hetero/best-known", "iopddl/partition-milp", "pipeline-drawn/even",
)  # fmt: skip
PROBLEM_COUNTS = {
    "operator-partition-paper": 3,
    "operator-partition-step-time": 3,
    "pipeline-cut": 5,
}
"""Task -> number of its problems in the small site; two of the other tasks."""
HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)> \u05e9\u05dc\u05d5\u05dd"
VOID = {"br", "img", "input", "link", "meta"}


def small_list():
    """Return the list of tasks with fewer problems, so that judging takes little time."""
    known = tasks()
    few = {
        name: replace(
            task, problems=dict(list(task.problems.items())[: PROBLEM_COUNTS.get(name, 2)])
        )
        for name, task in known.tasks.items()
    }
    return replace(known, tasks=few)


def small(entry, known):
    """Judge an entry on the problems in ``known`` alone."""
    task = known.tasks[entry.task]
    plans = {name: plan for name, plan in entry.plans.items() if name in task.problems}
    checked = check(replace(entry, plans=plans))
    verdicts = tuple(v for v in checked.verdicts if v.problem.name in task.problems)
    return replace(checked, task=task, verdicts=verdicts)


@pytest.fixture(scope="module")
def known():
    return small_list()


@pytest.fixture
def todays(known, monkeypatch):
    """The small list is that of today."""
    monkeypatch.setattr("parenvs.leaderboard.ranking.tasks", lambda version=None: known)


@pytest.fixture(scope="module")
def entries(known):
    return [small(load_entry(SUBMISSIONS / f"{name}.json"), known) for name in NAMES]


@pytest.fixture(scope="module")
def files(known, entries):
    return site_files(known, entries)


@pytest.fixture(autouse=True)
def quick_pictures(request, files, monkeypatch):
    """Pictures are drawn once, for ``files``."""
    monkeypatch.setattr("parenvs.view.svg", lambda viewable: "<svg/>")


class Page(HTMLParser):
    """Elements of a page, whose tags must be balanced."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f"{tag} has an attribute twice"
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert "svg" in self.open
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, name):
        return [attributes for tag, attributes in self.elements if tag == name]


def test_site__every_page_is_there_and_no_other(files, entries, known):
    expected = {"index.html", *(f"assets/{name}" for name in ("style.css", "table.js", "theme.js"))}
    expected |= {f"tasks/{name}.html" for name in known.tasks}
    expected |= {f"entries/{e.task.name}/{e.entry.entry}.html" for e in entries}
    expected |= {
        f"plans/{e.task.name}/{e.entry.entry}/{v.problem.name}.json"
        for e in entries
        for v in e.verdicts
        if v.state == PlanState.LEGAL
    }
    pictures = {name for name in files if name.endswith(".svg")}
    assert set(files) - pictures == expected
    best = [
        standings[0].checked
        for task in known.tasks.values()
        if (standings := ranking(task, entries))
    ]
    legal = [sum(v.state == PlanState.LEGAL for v in checked.verdicts) for checked in best]
    assert len(pictures) == sum(min(count, PICTURES) for count in legal)
    assert all("<svg" in files[name] for name in pictures)


def test_site__pages_parse_and_have_what_a_reader_without_eyes_needs(files):
    for name, text in files.items():
        if not name.endswith(".html"):
            continue
        parsed = Page(text)
        ids = [x["id"] for _, x in parsed.elements if "id" in x]
        assert len(ids) == len(set(ids)), name
        assert len(parsed.all("h1")) == len(parsed.all("main")) == len(parsed.all("title")) == 1
        assert parsed.all("html") == [{"lang": "en"}]
        assert len(parsed.all("table")) == len(parsed.all("caption"))
        assert all(x["scope"] in ("col", "row") for x in parsed.all("th"))
        for picture in parsed.all("svg"):
            assert picture.get("aria-label") or picture.get("aria-hidden") == "true"


def test_site__links_stay_inside_or_go_to_the_web(files):
    for name, text in files.items():
        if not name.endswith(".html"):
            continue
        parsed = Page(text)
        ids = {x["id"] for _, x in parsed.elements if "id" in x}
        for kind, x in parsed.elements:
            address = x.get("href") or x.get("src")
            if address is None:
                continue
            if kind == "a" and re.match("https?://", address):
                assert x["rel"] == "noopener nofollow"
            elif address.startswith("#"):
                assert address[1:] in ids
            else:
                assert normpath(join(dirname(name), address)) in files, (name, address)


def test_site__nothing_comes_from_elsewhere(files):
    """Pages hold no address but links to click, no inline script and no inline style."""
    for name, text in files.items():
        if name.endswith(".svg"):
            continue
        if not name.endswith(".html"):
            assert not re.search(r"https?:|//\w+\.|@import|url\(", text), name
            continue
        parsed = Page(text)
        assert all(x.get("src", "").endswith(".js") for x in parsed.all("script"))
        assert not parsed.all("style") and not parsed.all("iframe")
        for _, x in parsed.elements:
            assert not [key for key in x if key == "style" or key.startswith("on")]
        policy = next(x for x in parsed.all("meta") if "http-equiv" in x)["content"]
        assert "default-src 'none'" in policy and "unsafe" not in policy


def test_site__scores_are_the_ranking(files, entries, known):
    for name, task in known.tasks.items():
        rows = re.findall(r"<tr data-learned=.*?</tr>", files[f"tasks/{name}.html"], re.S)
        standings = ranking(task, entries)
        assert len(rows) == len(standings)
        for row, standing in zip(rows, standings, strict=True):
            assert f">{standing.checked.entry.entry}</bdi>" in row
            assert f">{standing.score:.4f}<" in row


def test_site__missing_and_unproven_are_marked(files, entries, known):
    page_ = files["entries/operator-partition-step-time/data-parallel.html"]
    assert "1 missing" in files["index.html"]
    assert ">no plan</span>" in page_ and "The entry has no plan of this problem." in page_
    task_text = files["tasks/operator-partition-step-time.html"]
    assert 'class="gone"' in task_text
    entry = next(e for e in entries if e.entry.entry == "exact")
    first = entry.verdicts[0]
    reference = replace(
        first.problem.reference, status="bound", bound=first.problem.reference.cost / 1.25
    )
    verdict = replace(first, problem=replace(first.problem, reference=reference))
    changed = replace(entry, verdicts=(verdict, *entry.verdicts[1:]))
    text = site_files(known, [changed])["entries/pipeline-cut/exact.html"]
    assert "best known, within 25.0 %" in text and ">equals the best known</span>" in text


def test_site__illegal_plans_say_why(known, entries):
    entry = next(e for e in entries if e.entry.entry == "even").entry
    plans = dict(entry.plans)
    problems = known.tasks["pipeline-cut"].problems
    name, other, third, *_ = problems
    variables = problems[third].pipeline.variable_sum
    start = int((variables[1:] == variables[:-1]).nonzero()[0][9])
    bare = [start, start + 1, start + 9]  # the stage between the first two has no variable
    plans[name] = {**plans[name], "instance": "<b>x</b>"}
    plans[other] = {**plans[other], "device_cuts": [2, 1]}
    plans[third] = {**plans[third], "cuts": bare, "cut_after": []}
    checked = small(replace(entry, plans=plans), known)
    files = site_files(known, [checked])
    text = files["entries/pipeline-cut/even.html"]
    Page(text)
    assert text.count(">illegal</span>") == 2 * checked.count(PlanState.ILLEGAL) == 6
    assert "3 illegal" in files["index.html"] and "illegal (0." in files["tasks/pipeline-cut.html"]
    assert "&lt;b&gt;x" in text and "<b>x" not in text


def test_site__hostile_words_are_words(known, entries):
    """No text of an entry becomes an element, whichever field it is in."""
    checked = entries[0]
    entry = replace(
        checked.entry, authors=(HOSTILE, '" onclick="x'), method=HOSTILE, search_budget=HOSTILE,
        hardware=HOSTILE, learned=True, trained_on=(f"other: {HOSTILE}",),
    )  # fmt: skip
    files = site_files(known, [replace(checked, entry=entry)])
    texts = [text for name, text in files.items() if name.endswith(".html")]
    occurrences = 0
    for text in texts:
        parsed = Page(text)
        assert all(x["src"].endswith(".svg") for x in parsed.all("img"))
        assert all("src" in x for x in parsed.all("script"))
        assert not [x for _, x in parsed.elements if any(key.startswith("on") for key in x)]
        occurrences += sum(HOSTILE in words for words in parsed.texts)
    assert occurrences >= 6


def test_site__a_name_that_leads_out_of_the_folder_is_refused(known, todays, entries, tmp_path):
    for name in ("../../x", "/x", "", "<b>", "x y", "a/../../b", ".hidden", "n" * 300):
        checked = replace(entries[0], entry=replace(entries[0].entry, entry=name))
        with pytest.raises(ParenvsError, match="is no name for a page"):
            write_site(tmp_path / "site", [checked])
    with pytest.raises(ParenvsError, match="two entries would be"):
        site_files(known, [entries[0], entries[0]])
    assert not list(tmp_path.iterdir())


def test_site__only_links_to_the_web_are_links(entries, known):
    checked = entries[0]
    for address in ("javascript:alert(1)", "data:text/html,x", "//a", "http:x", 'https://a" b'):
        entry = replace(checked.entry, link=address)
        pages = site_files(known, [replace(checked, entry=entry)])
        parsed = Page(pages[f"entries/{entry.task}/{entry.entry}.html"])
        assert address in parsed.texts and address not in [x["href"] for x in parsed.all("a")]


def test_site__templates_leave_nothing_unescaped():
    """What is marked as safe, or escapes by hand, would be a way past the autoescape."""
    for path in (SUBMISSIONS.parent / "templates").iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*(safe|e|escape|tojson)\b|autoescape |Markup", text), path


def test_site__only_a_site_is_replaced(tmp_path):
    files = {"index.html": f'<meta name="generator" content="{GENERATOR}">'}
    folder = tmp_path / "home"
    folder.mkdir()
    write_folder(folder, files)  # empty before
    write_folder(folder, files)
    (folder / "thesis.tex").write_text("x")
    with pytest.raises(ParenvsError, match=r"'thesis.tex', which is no part of a site"):
        write_folder(folder, files)
    (folder / "thesis.tex").unlink()
    (folder / "index.html").write_text("<p>mine")
    with pytest.raises(ParenvsError, match="is not a site"):
        write_folder(folder, files)
    assert (folder / "index.html").read_text() == "<p>mine"
    with pytest.raises(ParenvsError, match="is a file"):
        write_folder(folder / "index.html", files)


def test_site__plans_are_shown(files, known):
    """As text on every page, as pictures on that of the best entry."""
    for name, words in (
        ("pipeline-cut/even", "stage"), ("hybrid/best-known", "stage"),
        ("operator-partition-paper/expert", "reward"), ("iopddl/partition-milp", "617 nodes"),
    ):  # fmt: skip
        page = Page(files[f"entries/{name}.html"])
        texts = [attributes for tag, attributes in page.elements if tag == "pre"]
        assert texts and any(words in text for text in page.texts), name
    best = Page(files["entries/pipeline-cut/exact.html"])
    assert len(best.all("img")) == PICTURES
    assert not Page(files["entries/pipeline-cut/even.html"]).all("img")
