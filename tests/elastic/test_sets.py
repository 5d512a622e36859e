"""The sets of chains are what their maker draws."""

from parenvs.datasets.elastic import sets as elastic_sets
from parenvs.shipped import data_folder
from parenvs.tasks.elastic.load import ELASTIC_SETS, elastic_rows
from parenvs.tasks.elastic.markov import FAMILIES


def test_elastic_sets__are_those_of_the_command(tmp_path, capsys):
    assert elastic_sets.main(["--out", str(tmp_path)]) == 0
    for name in ELASTIC_SETS:
        made = (tmp_path / f"{name}.json").read_bytes()
        assert made == (data_folder() / f"{name}.json").read_bytes()
        rows = elastic_rows(name)
        assert {row.split("-")[0] for row in rows} == set(FAMILIES)
    chains = [row.chain for name in ELASTIC_SETS for row in elastic_rows(name).values()]
    assert len(set(chains)) == len(chains)  # none is trained on and tested
    assert elastic_sets.main(["elastic-tes"]) == 2
    assert "no set 'elastic-tes'" in capsys.readouterr().err
