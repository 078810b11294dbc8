"""The command that draws the scaling figure."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from tests.benchmarks import scaling


def test_nothing_is_measured_before_the_arguments_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[None] = []
    monkeypatch.setattr(scaling, "draw", lambda: drawn.append(None) or plt.figure())

    for arguments, code in ((["--help"], 0), (["--nothing"], 2)):
        with pytest.raises(SystemExit, match=f"^{code}$"):
            scaling.main(arguments)
    assert not drawn

    assert scaling.main(["--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'scaling.png'}\n") and (tmp_path / "scaling.png").is_file()
