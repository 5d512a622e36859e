"""What tests of exports share."""

import pytest


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
