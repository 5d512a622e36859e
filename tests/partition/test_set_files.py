import json

import partition_sets
import pytest
from cases import each

from parenvs.datasets.partition.problems import SetRow, read_set, save_set
from parenvs.errors import ParenvsError

ROW = {"name": "a-0", "instance": "vgg-19", "cluster": "1x8:v100"}


def test_files__what_is_written_is_read(tmp_path):
    rows = read_set(partition_sets.write(tmp_path))
    assert list(rows) == ["lstm-000", "vgg-000", "vgg-001"]
    assert rows["vgg-000"] == SetRow("vgg-19", "2x4:v100", 1.2e9, 4, 4)
    assert rows["vgg-001"].options["memory_limit"] == "device"
    save_set(tmp_path / "again.json", rows)
    assert read_set(tmp_path / "again.json") == rows


@each(
    ("row", "says"),
    [
        ({**ROW, "clusters": "A"}, r"problems\[0\]: unknown field 'clusters' .*'cluster'"),
        ({"name": "a", "instance": "vgg-19"}, "field 'cluster' is missing"),
        ({**ROW, "instance": 3}, "field 'instance' must be a text"),
        ({**ROW, "cluster": "1x8:v1000"}, r"problems\[0\]: .*v1000"),
        ({**ROW, "cluster": 7}, r"problems\[0\]: cluster"),
        ({**ROW, "micro_batch": 1}, "micro_batch must be a whole number from 2"),
        ({**ROW, "recompute": "half"}, "field 'recompute' must be one of none, full, not 'half'"),
        ({**ROW, "rules": "xla"}, "field 'rules' must be one of shardy, automap"),
        ({**ROW, "memory_limit": -1}, "must be a positive number of bytes or 'device', not -1"),
        ({**ROW, "name": "a/b"}, "leave '/' out"),
        ({**ROW, "name": ""}, "field 'name' must be a text of 1 to"),
        (7, r"field 'problems\[0\]' must be an object, not 7"),
    ],
)
def test_files__wrong_rows_are_one_line(tmp_path, row, says):
    with pytest.raises(ParenvsError, match=says) as error:
        read_set(partition_sets.write(tmp_path, row))
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


@each(
    ("content", "says"),
    [
        ("[", "not a JSON file"),
        ('{"schema": 2, "problems": []}', "field 'schema' is 2"),
        ('{"schema": 1, "problems": []}', "a list of one problem or more"),
        (json.dumps({"schema": 1, "problems": [ROW, ROW]}), "'a-0' a second time"),
    ],
)
def test_files__wrong_files_are_one_line(tmp_path, content, says):
    path = tmp_path / "set.json"
    path.write_text(content)
    with pytest.raises(ParenvsError, match=says) as error:
        read_set(path)
    assert "\n" not in str(error.value)
