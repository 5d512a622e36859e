"""What tests of exports share."""

import pytest


@pytest.fixture(scope="session")
def moving():
    """The helper that trains and moves the example."""
    pytest.importorskip("torch")
    import resharding

    return resharding


@pytest.fixture(scope="session")
def example():
    """The example as a module, which processes that it starts can import, too."""
    pytest.importorskip("torch")
    import torch_transformer

    return torch_transformer


@pytest.fixture(scope="session")
def graph(example):
    pytest.importorskip("jax")
    return example.read()


@pytest.fixture(scope="session")
def plans(moving, graph):
    """Plans of four processes and of two, by their degrees."""
    rows = [(name, 4, *x) for name, x in moving.FOUR.items()]
    rows += [(name, 2, *x) for name, x in moving.TWO.items()]
    return {name: moving.plan_of(graph, "net.npz", *row) for name, *row in rows}


@pytest.fixture
def first_of_two():
    """The first process of two, whose messages go nowhere: sums are its own part."""
    torch = pytest.importorskip("torch")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def alone():
    """A group of this process alone."""
    torch = pytest.importorskip("torch")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
