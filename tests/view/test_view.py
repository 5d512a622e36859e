"""The one door to texts and pictures."""

import html
import json
import re
import subprocess
import sys

import pytest
import toys
from cases import each

import parenvs
from parenvs import view as viewer
from parenvs.errors import ParenvsError
from parenvs.view import page
from parenvs.view.words import clip_start, paint, plural, reason_lines, signed, size


@each("show", [viewer.text, viewer.figure, viewer.rgb_array])
def test_door__refuses_what_is_no_plan_or_problem(show):
    with pytest.raises(ParenvsError, match="expected a judged plan or a problem, not 't5-3b'"):
        show("t5-3b")
    with pytest.raises(TypeError, match="undecided"):
        show(toys.dense().pipeline, undecided={"w"})


@pytest.mark.thorough
def test_show__prints_the_text_or_writes_the_picture(tmp_path, capsys):
    problem = toys.dense().pipeline
    parenvs.show(problem)
    assert capsys.readouterr().out == viewer.text(problem) + "\n"
    answer = parenvs.plan(problem, "even")
    parenvs.show(answer)
    price = "\n".join(answer.report.price.lines())
    assert "no seconds by the hybrid model" in price
    assert capsys.readouterr().out == f"{viewer.text(answer.report)}\n{price}\n"
    path = tmp_path / "plan.svg"
    parenvs.show(answer.report, path)
    assert path.read_text().startswith("<?xml") and not capsys.readouterr().out
    parenvs.show(answer.report, path.with_suffix(".html"))
    content = path.with_suffix(".html").read_text()
    assert "<svg" in content and "<script" not in content and "src=" not in content
    words, plan = map(html.unescape, re.findall("<pre>(.*?)</pre>", content, re.DOTALL))
    assert words == viewer.text(answer.report) and json.loads(plan) == answer.plan.to_json()


def test_door__save_of_something_else_leaves_no_file(tmp_path):
    with pytest.raises(ParenvsError):
        viewer.save(tmp_path / "plan.png", None)
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_door__importing_it_loads_no_task_and_no_matplotlib():
    code = """
import sys
from parenvs import view
print(sorted(x for x in sys.modules if x.startswith(("parenvs.view.", "matplotlib"))))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "matplotlib" not in done.stdout and "figure" not in done.stdout


def test_words():
    assert plural(1, "class", "es") == "1 class" and plural(1200, "class", "es") == "1,200 classes"
    assert clip_start("encoder/layer_0/q", 8) == "…yer_0/q"
    assert [signed(x) for x in ("1 s", "-1 s", "0 s", "0")] == ["+1 s", "-1 s", "0 s", "0"]
    assert size(-28.8e9) == "-28.8 GB" and size(-12) == "-12 B"
    assert paint("x", 3, color=False) == "x"
    assert paint("x", 3, color=True) == paint("x", 11, color=True) != paint("x", 4, color=True)
    assert reason_lines(["a " * 60, "c\x1b"]) == [
        f"  ! {'a ' * 53}".rstrip(),
        "    " + " ".join("a" * 7),
        "  ! c?",
    ]


@pytest.mark.thorough
def test_save__an_svg_file_follows_a_dark_page(tmp_path):
    """Paper and ink have other colors there; letters on light cells stay dark."""
    path = tmp_path / "plan.svg"
    viewer.save(path, parenvs.plan(toys.dense().pipeline, "even").report)
    sheet = re.search(r"@media \(prefers-color-scheme: dark\)\{(.*)\}</style>", path.read_text())[1]
    changed = re.findall(r'(\w*)\[style\*="(fill|stroke): (#\w+)"\]\{\2:(#\w+)!important\}', sheet)
    fills = {light: dark for _, part, light, dark in changed if part == "fill"}
    assert page.INK.lower() in fills and page.ON_LIGHT.lower() not in fills
    assert all(dark.lower() != light for light, dark in fills.items())
    papers = {tag for tag, part, light, _ in changed if (part, light) == ("fill", "#ffffff")}
    assert papers == {"path"}
    assert f"fill: {page.INK.lower()}" in path.read_text()
