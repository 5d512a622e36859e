import pytest

from parenvs.errors import ParenvsError, need_extra


def test_need_extra__names_the_pip_line():
    with pytest.raises(ParenvsError) as caught, need_extra("agents", "training"):
        import parenvs.no_such_module  # noqa: F401
    words = str(caught.value)
    assert words.startswith("training needs the extra 'agents' (No module named")
    assert words.endswith("; pip install 'parenvs[agents]'")
    assert caught.value.__cause__ is None
    assert "\n" not in words


def test_need_extra__lets_other_errors_through():
    with pytest.raises(KeyError), need_extra("agents", "training"):
        raise KeyError("x")
