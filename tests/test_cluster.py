"""Clusters: presets, parsing, bandwidths and synchronization."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from parenvs.cluster import (
    DEVICES,
    LINKS,
    PRESETS,
    SYNC_METHODS,
    Cluster,
    Device,
    Links,
    ring_of,
    spanned,
)
from parenvs.errors import ClusterError

GOOD = {
    "servers": 2,
    "devices_per_server": 4,
    "intra_bw": 1e11,
    "inter_bw": 1e9,
    "device": {"name": "tpu", "peak_flops": 1e14, "memory_bw": 1e12, "memory_bytes": 16e9},
}


@each(("name", "servers"), [("A", 2), ("B", 3), ("C", 4)])
def test_cluster__presets_are_the_papers(name, servers):
    """Table 2 of arXiv 2007.04069: servers of 8 V100, 25 Gbit/s between them."""
    cluster = PRESETS[name]
    assert (cluster.servers, cluster.devices_per_server, cluster.devices) == (
        servers,
        8,
        8 * servers,
    )
    assert cluster.device.name == "v100"
    assert cluster.inter_bw == 25e9 / 8
    assert cluster.intra_bw == 150e9
    assert cluster.device.peak_flops == 15.7e12
    assert cluster.device.memory_bytes == 32e9
    assert Cluster.parse(name) is cluster
    assert Cluster.parse(f"{servers}x8:v100,25Gbps") == cluster
    assert str(cluster) == f"{name} ({servers}x8 v100)"


@each(
    ("text", "inter", "intra"),
    [
        ("2x4:v100", 25e9 / 8, 150e9),
        ("2x4:v100,100Gbps", 100e9 / 8, 150e9),
        ("2x4:V100, 10 GB/s", 10e9, 150e9),
        ("2x4:v100,1.5Tbit/s,300GBps", 1.5e12 / 8, 300e9),
    ],
)
def test_cluster__short_form(text, inter, intra):
    cluster = Cluster.parse(text)
    assert (cluster.servers, cluster.devices_per_server) == (2, 4)
    assert (cluster.inter_bw, cluster.intra_bw) == (inter, intra)
    assert cluster.device == DEVICES["v100"]


def test_cluster__bandwidth_by_brute_force():
    cluster = Cluster.parse("3x4:v100,1GB/s,9GB/s")
    pairs = [(a, b) for a in range(12) for b in range(a + 1, 13)]
    first, end = np.array(pairs).T
    expected = [9e9 if len({device // 4 for device in range(a, b)}) == 1 else 1e9 for a, b in pairs]
    np.testing.assert_array_equal(cluster.bandwidth(first, end), expected)
    assert set(expected) == {1e9, 9e9}


@each("method", SYNC_METHODS)
def test_cluster__sync_seconds_by_formula(method):
    cluster = Cluster.parse("3x4:v100,1GB/s,9GB/s")
    pairs = [(a, b) for a in range(12) for b in range(a + 1, 13)]
    size = 5e8
    first, end = np.array(pairs).T
    for (a, b), seconds in zip(pairs, cluster.sync_seconds(size, first, end, method), strict=True):
        count, rate = b - a, 9e9 if a // 4 == (b - 1) // 4 else 1e9
        if count == 1:
            expected = 0.0
        elif method == "parameter-server":
            expected = 2 * size * count / rate
        else:
            expected = 2 * size * (count - 1) / (count * rate)
        assert seconds == pytest.approx(expected, rel=1e-15)


@each(
    ("text", "message"),
    [
        ("", "does not parse: give a preset"),
        ("4x8:", "does not parse"),
        ("4x8:v100,25Gbps,1GB/s,2GB/s", "does not parse"),
        ("9" * 5000 + "x8:v100", "does not parse"),
        ("4x8:v100,25", "bandwidth '25' does not parse; write it like 25Gbps"),
        ("4x8:v100,-25Gbps", "bandwidth '-25Gbps' does not parse"),
        ("4x8:v100,0Gbps", "inter_bw must be a positive number, not 0.0"),
        ("4x8:v100," + "9" * 400 + "Gbps", "inter_bw must be a positive number, not inf"),
        ("0x8:v100", "servers must be a whole number from 1 to 100,000, not 0"),
        ("4x8:v10", r"unknown device 'v10' \(did you mean 'v100'\?\); known: v100"),
        ("missing.json", "no file 'missing.json'"),
        (None, "expected a name"),
    ],
)
def test_cluster__bad_text(text, message):
    with pytest.raises(ClusterError, match=message) as caught:
        Cluster.parse(text)
    assert "\n" not in str(caught.value)


BAD = [
    ({"servers": "2"}, "servers must be a whole number from 1 to 100,000, not '2'"),
    ({"servers": True}, "servers must be a whole number from 1 to 100,000, not True"),
    ({"servers": 10**400}, "servers must be a whole number"),
    ({"devices_per_server": -1}, "devices_per_server must be a whole number"),
    ({"intra_bw": "1e9"}, "intra_bw must be a positive number, not '1e9'"),
    ({"inter_bw": float("nan")}, "inter_bw.* (must be .*, not nan|NaN is not a JSON number)"),
    ({"inter_bw": float("inf")}, "inter_bw.* (must be .*, not inf|Infinity is not a JSON)"),
    ({"speed": 1}, r"unknown field 'speed' \(did you mean 'speeds'\?\)"),
    ({"name": 3}, "field 'name' must be a text, not 3"),
    ({"device": 3}, "field 'device' must be a name or an object, not 3"),
    ({"device": "a10"}, "did you mean 'a100'"),
    ({"device": {"name": "x"}}, "field 'device.peak_flops' is missing"),
    ({"device": {**GOOD["device"], "cores": 1}}, "unknown field 'device.cores'"),
    ({"device": {**GOOD["device"], "name": 1}}, "field 'device.name' must be a text, not 1"),
    ({"device": {**GOOD["device"], "peak_flops": "1e14"}}, "device.peak_flops must be a positive"),
    (
        {"device": {**GOOD["device"], "memory_bytes": None}},
        "device.memory_bytes must be a positive",
    ),
]


@each(("change", "message"), BAD)
def test_cluster__bad_object(change, message, tmp_path):
    path = tmp_path / "my.json"
    path.write_text(json.dumps({**GOOD, **change}))
    assert Cluster.parse(GOOD).devices == 8
    for given_, where in ({**GOOD, **change}, "cluster"), (str(path), str(path)), (path, str(path)):
        with pytest.raises(ClusterError, match=message) as caught:
            Cluster.parse(given_)
        assert str(caught.value).startswith(f"{where}: ")
        assert "\n" not in str(caught.value)


positive = st.floats(1e-30, 1e30) | st.integers(1, 10**18)
devices = st.sampled_from(list(DEVICES.values())) | st.builds(
    Device, st.text(max_size=8), positive, positive, positive
)
clusters = st.sampled_from(list(PRESETS.values())) | st.builds(
    Cluster,
    st.integers(1, 100),
    st.integers(1, 100),
    devices,
    positive,
    positive,
    st.sampled_from(["", "A", "mine"]),
)


@pytest.mark.thorough
@given(clusters)
def test_cluster__json_round_trip(cluster):
    content = json.loads(json.dumps(cluster.to_json()))
    assert Cluster.parse(content) == cluster


def test_cluster__parts():
    """Whole servers, then the divisors of one server; each a cluster with the same links."""
    cluster = Cluster.parse("3x6:v100,25Gbps")
    assert [part.devices for part in cluster.parts()] == [18, 12, 6, 3, 2]
    assert cluster.parts()[0] is cluster
    part = cluster.part(3)
    assert (part.servers, part.devices_per_server) == (1, 3)
    assert (part.device, part.inter_bw) == (cluster.device, cluster.inter_bw)
    assert Cluster.parse(part.to_json()) == part
    assert str(PRESETS["C"].part(16)) == "2x8 v100"
    assert [part.devices for part in Cluster.parse("4x1:v100").parts()] == [4, 3, 2]
    assert cluster.part(5).devices_per_server == 5
    for devices in (0, -1, 7, 13, 19, 24):
        with pytest.raises(
            ClusterError, match=f"{devices} devices are no part of cluster 3x6 v100"
        ):
            cluster.part(devices)


@each(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("{", "not a JSON file"),
        ("[1, 2]", "expected one JSON object"),
        ('{"servers": 1, "servers": 2}', "field 'servers' stands twice"),
        (json.dumps(GOOD).replace('"servers": 2', '"servers": 1e999'), "servers must be"),
        (json.dumps(GOOD).replace('"servers": 2', f'"servers": {2**64}'), "servers must be"),
        (json.dumps(GOOD).replace('"servers": 2', '"servers": NaN'), "NaN is not a JSON number"),
        (json.dumps({**GOOD, "x\x1b" * 9999: 1}), "unknown field 'x"),
    ],
)
def test_cluster__hostile_file(text, words, tmp_path):
    path = tmp_path / "my.json"
    path.write_text(text)
    assert text != json.dumps(GOOD)
    with pytest.raises(ClusterError) as caught:
        Cluster.parse(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and words in line
    assert line.isprintable() and len(line) < 500


def test_device__peaks_by_precision():
    a100, v100 = DEVICES["a100"], DEVICES["v100"]
    assert a100.peak("bf16") == 312e12
    assert a100.peak_flops == a100.peak("tf32") == 156e12
    assert v100.peak_flops == v100.peak("fp32")
    with pytest.raises(ClusterError, match="a v100 has no bf16; it has fp16, fp32"):
        v100.peak("bf16")
    with pytest.raises(ClusterError, match="did you mean 'bf16'"):
        a100.peak("bf61")
    assert Device("own", 1e12, 1e9, 1e9).peak("fp8") == 1e12


def test_cluster__at_a_precision():
    cluster = Cluster.parse("2x8:a100-fp32")
    assert cluster == Cluster.parse("2x8:a100").at("fp32")
    assert cluster.device.peak_flops == cluster.device.peak_of("bf16") == 19.5e12
    assert Cluster.parse(cluster.to_json()) == cluster
    assert PRESETS["a100-2"].at("fp32").to_json()["device"] == "a100-fp32"
    with pytest.raises(ClusterError, match="unknown device 'a100-fp16x'"):
        Cluster.parse("2x8:a100-fp16x")


def test_cluster__whole_numbers_beyond_those_of_arrays_are_floats():
    large = 2**64
    device = {"name": "x", "peak_flops": large, "memory_bw": large, "memory_bytes": large}
    figures = {"servers": 2, "devices_per_server": 1, "intra_bw": large, "inter_bw": large}
    cluster = Cluster.parse({**figures, "nic_bw": large, "speeds": [1, large], "device": device})
    rates = [*cluster.speeds, cluster.intra_bw, cluster.inter_bw, cluster.nic_bw]
    rates += [cluster.device.peak_flops, cluster.device.memory_bw, cluster.device.memory_bytes]
    assert np.array(rates).dtype == np.float64
    assert max(rates) == 2.0**64 and rates[0] == 1
    with pytest.raises(ClusterError, match="intra_bw must be a positive number"):
        Cluster.parse({**figures, "intra_bw": 10**400, "device": device})


def test_cluster__network_cards_and_speeds():
    figures = {**GOOD, "nic_bw": 5e9, "speeds": [1.0, 0.8]}
    cluster = Cluster.parse(figures)
    assert cluster.device_nic_bw == 5e9
    assert Cluster.parse(cluster.to_json()) == cluster
    assert Cluster.parse(GOOD).device_nic_bw == 1e9 / 4
    assert cluster.part(cluster.devices_per_server).speeds == (1.0,)
    for key, value, message in (
        ("speeds", [1.0], "speeds has 1 numbers"),
        ("speeds", [1.0, 0.0], r"speeds\[1\] must be a positive number"),
        ("speeds", 3, "field 'speeds' must be a list of numbers, one for each server"),
        ("nic_bw", -1.0, "nic_bw must be a positive number"),
    ):
        with pytest.raises(ClusterError, match=message):
            Cluster.parse({**figures, key: value})


@each(
    ("group", "stride", "ranks", "servers"),
    [(8, 1, 8, 1), (16, 1, 8, 2), (4, 8, 1, 4), (4, 4, 2, 2), (2, 16, 1, 2), (1, 1, 1, 1)],
)
def test_links__ranks_of_a_group_in_each_server(group, stride, ranks, servers):
    links = Links(8, 100.0, 10.0)
    assert spanned(links, group, stride) == (ranks, servers)
    slow = 100.0 if servers == 1 else min(100.0, 10.0 * ranks)
    assert ring_of(links, group, stride)[0] == slow
    gathered = links.all_gather(7.0, group, stride)
    assert gathered == 7.0 * (group - 1) / group / slow
    assert links.all_reduce(7.0, group, stride) == 2 * gathered


def test_links__whole_servers_as_in_the_pure_tasks():
    """Groups of whole servers cost the same by both rules, as cards add up to the server's link."""
    cluster = PRESETS["C"]
    for rule in LINKS:
        links = Links(8, cluster.intra_bw, cluster.device_nic_bw, rule=rule)
        for group in (2, 4, 8, 16, 32):
            found = links.all_reduce(1e9, group, 1)
            asked = cluster.sync_seconds(np.array(1e9), np.array(0), np.array(group))
            assert found == pytest.approx(float(asked), rel=1e-12)


@each("rate", [1e-31, 5e-324, 1e31, 1e308])
@each("key", ["intra_bw", "memory_bytes"])
def test_cluster__rates_with_which_costs_would_overflow(key, rate):
    content = {"servers": 1, "devices_per_server": 2, "intra_bw": 1e9, "inter_bw": 1e9}
    device = {"name": "x", "peak_flops": 1e12, "memory_bw": 1e12, "memory_bytes": 1e9}
    (content if key in content else device)[key] = rate
    with pytest.raises(ClusterError, match=rf"{key} must be .*, not .*; 1e-30 to 1e\+30"):
        Cluster.parse({**content, "device": device})
