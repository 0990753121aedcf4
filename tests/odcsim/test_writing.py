"""Files are written whole or not at all."""

import pytest

from odcsim.errors import InputError
from odcsim.files import replacing


def test_the_new_content_takes_the_old_ones_place(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent
        assert temporary.suffix == path.suffix
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("odd")])
def test_a_failing_write_leaves_the_old_content_and_nothing_beside_it(error, tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    expected = InputError if isinstance(error, OSError) else type(error)

    def write_half() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(expected) as caught:
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    if expected is InputError:
        assert str(caught.value) == f"{path}: cannot be written (No space left on device); see its folder"


def test_places_that_cannot_be_written_are_named(tmp_path):
    with pytest.raises(InputError, match=r"is a folder; name a file"), replacing(tmp_path):
        pass
    with pytest.raises(InputError, match=r"its folder does not exist"), replacing(tmp_path / "no" / "a"):
        pass
