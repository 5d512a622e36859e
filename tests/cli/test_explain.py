"""``parenvs explain`` on plans and on instances, and what the expert says of its plan."""

import json

import pytest
from commands import good

from parenvs.instances import data_folder


@pytest.fixture
def refused(run):
    """One line that names the trouble, and status 2."""

    def call(*arguments, words):
        status, _, err = run(*arguments)
        assert status == 2 and err.startswith("parenvs: ") and err.count("\n") == 1, err
        for word in [words] if isinstance(words, str) else words:
            assert word in err

    return call


def test_explain__takes_a_plan_or_an_instance(run, tmp_path):
    plan = tmp_path / "plan.json"
    good(run("plan", "vgg-19", "--task", "partition", "--devices", "4", "--out", plan))
    assert "decided; it excludes" in good(run("explain", plan))
    said = good(run("explain", "vgg-19", "--devices", "4"))
    assert "nothing forbids it" in said and "decided" not in said
    path = data_folder() / "vgg-19.npz"
    assert good(run("explain", path, "--cluster", "1x4:v100")) == said
    options = ("--rules", "automap", "--uneven", "forbid", "--variable", "fc1/*")
    assert good(run("explain", "vgg-19", *options)).startswith("fc1/bias  f32[4096]\n")


def test_explain__refuses_what_does_not_belong_together(run, refused, tmp_path):
    plan = tmp_path / "plan.json"
    good(run("plan", "vgg-19", "--task", "partition", "--devices", "4", "--out", plan))
    for option, value in (("cluster", "A"), ("devices", 4), ("rules", "shardy"), ("uneven", "pad")):
        refused("explain", plan, f"--{option}", value, words=f"--{option} is an option for inst")
    refused("explain", "vgg-19", "--instance", "vgg-19", words="--instance is an option for plan")
    refused("explain", "vgg-91", words=("unknown instance 'vgg-91'", "vgg-19"))
    refused("explain", "vgg-19", "--rules", "shady", words="unknown rules 'shady'")
    refused("explain", "vgg-19", "--variable", "fc9/*", words="no variable or batch input matches")
    refused("explain", "vgg-19", "--devices", "1", words="at least 2")


def test_explain__json_has_what_the_text_is_made_of(run, tmp_path):
    """Of a hybrid plan the axes with their other values, of partitions variables."""
    where = ("llama3-8b", "--cluster", "1x8:h100", "--batch", "64")
    good(run("plan", *where, "--agent", "uniform", "--out", tmp_path / "h.json"))
    content = json.loads(good(run("explain", tmp_path / "h.json", "--json")))
    said = good(run("explain", tmp_path / "h.json"))
    axes = {row["axis"]: row for row in content["axes"]}
    assert content["report"]["legal"] and len(axes) > 3
    for axis, row in axes.items():
        assert f"({axis.replace('_', '-')}): " in said
        assert all(x["value"] != row["value"] for x in row["others"])
        for other in row["others"]:
            assert (other["length"] is None) == (other["missing_bytes"] > 0)
    content = json.loads(good(run("explain", "vgg-19", "--devices", "4", "--json")))
    assert {row["role"] for row in content["variables"]} == {"variable", "batch input"}
    said = good(run("explain", "vgg-19", "--devices", "4"))
    for row in content["variables"]:
        assert f"{row['name']}  {row['shape']}" in said


def test_explain__wrong_numbers_get_one_line_that_names_them(refused):
    """As bad input does everywhere, without the box of typer's own."""
    where = ("plan", "llama3-8b", "--cluster", "1x8:h100")
    for words in (("--batch", "abc"), ("--batch=abc",)):
        told = "Invalid value for '--batch'", "valid integer", "parenvs plan --help"
        refused(*where, *words, words=told)
    refused(*where, "--batch", "0", words="batch must be a whole number of samples from 1, not 0")
    refused("plan", words="Missing argument 'instance'; see parenvs plan --help")
