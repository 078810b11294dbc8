"""Files are written whole, and where none can be, one line says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvlenv.common.errors import InputError
from nvlenv.common.files import make_folder, write_json, write_text, written_whole


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_text(path, "old")

    with pytest.raises(RuntimeError), written_whole(path) as part:
        part.write_text("half")
        raise RuntimeError

    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]


def test_equal_data_give_equal_bytes(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"x": 1, "y": 2})
    write_json(tmp_path / "b", {"y": 2, "x": 1})

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_place_where_no_file_can_be_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(InputError, match="found a folder, expected a place to write the file"):
        write_text(tmp_path, "text")
    with pytest.raises(InputError, match="expected a folder, or a place where one can be made"):
        write_text(file / "below", "text")
    with pytest.raises(InputError, match="expected a folder, or a place where one can be made"):
        make_folder(file)
    assert list(tmp_path.iterdir()) == [file]


def test_only_mistakes_about_the_file_itself_are_the_users(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or directory, expected a place"), written_whole(tmp_path / "a"):
        pass
    with pytest.raises(FileNotFoundError), written_whole(tmp_path / "a"):
        (tmp_path / "other").read_text()
