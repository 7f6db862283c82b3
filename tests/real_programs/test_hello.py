import pytest


@pytest.mark.parametrize("n", range(5))
def test_square(n):
    assert n * n == n**2


def test_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        (tmp_path / "missing").read_text()


def test_failure():
    assert [1, 2] == [1, 3]
