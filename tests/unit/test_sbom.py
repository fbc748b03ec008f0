"""The bill of materials: what it holds, that it is valid, and what is said where there is none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from envcompare.errors import ConfigError, StackError
from envcompare.stack import wheelhouse
from envcompare.stack.storage import local_cache
from envcompare.stack.wheelhouse import lock_text
from envcompare.transport import LOCAL

WHEELS = (
    ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "a" * 64),
    ("typing_extensions-4.16.0-py3-none-any.whl", "b" * 64),
)


KEY = "0123456789abcdef" * 4


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the key of a lock that is in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = local_cache() / KEY / "wheelhouse"
    folder.mkdir(parents=True)
    (folder / "requirements.lock").write_text(lock_text(WHEELS))
    return KEY


def test_the_bill_holds_name_version_and_hash_of_each_wheel(lock: str, tmp_path: Path) -> None:
    """And it is valid CycloneDX."""
    target = tmp_path / "sbom.json"
    wheelhouse.write_sbom([lock, lock], target, local=LOCAL)
    text = target.read_text()
    version = SchemaVersion.from_version(json.loads(text)["specVersion"])
    assert JsonStrictValidator(version).validate_str(text) is None
    found = {
        (one["name"], one["version"], one["externalReferences"][0]["hashes"][0]["content"])
        for one in json.loads(text)["components"]
    }
    assert found == {
        ("torch", "2.13.0+cpu", "a" * 64),
        ("typing-extensions", "4.16.0", "b" * 64),
    }


def test_the_same_lock_gives_the_same_bytes(lock: str, tmp_path: Path) -> None:
    """No time and no random number stands in it, so that it can be compared and signed."""
    for name in ("first", "second"):
        wheelhouse.write_sbom([lock], tmp_path / name, local=LOCAL)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


@pytest.mark.parametrize(
    ("locks", "details", "hint"),
    [
        ([], "no arm that could be made has them", "--envs vm"),
        (["cpu", "cuda"], "the hosts have wheels of different variants", "--variant"),
    ],
)
def test_a_bill_is_of_one_lock(locks: list[str], details: str, hint: str, tmp_path: Path) -> None:
    """One file that mixes two locks would describe neither."""
    with pytest.raises(StackError) as caught:
        wheelhouse.write_sbom(locks, tmp_path / "sbom.json", local=LOCAL)
    assert caught.value.details == details
    assert hint in caught.value.hint


def test_the_label_of_an_image_leads_to_no_other_folder(lock: str, tmp_path: Path) -> None:
    """It says what who built the image wants, and is no path of this machine."""
    label = f"../envcompare/{lock}"
    with pytest.raises(StackError, match="the image's label does not name a lock") as caught:
        wheelhouse.write_sbom([label], tmp_path / "sbom.json", local=LOCAL)
    assert label in caught.value.details
    assert not (tmp_path / "sbom.json").exists()


def test_a_folder_that_is_not_there_is_an_error(lock: str, tmp_path: Path) -> None:
    """With what the tool said."""
    with pytest.raises(StackError) as caught:
        wheelhouse.write_sbom([lock], tmp_path / "none" / "sbom.json", local=LOCAL)
    assert "No such file or directory" in caught.value.details


@pytest.mark.parametrize("name", ["none/sbom.json", "", "/proc/sbom.json", "x" * 300])
def test_a_file_that_cannot_be_written_is_refused_first(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a wrong flag, before minutes are spent on building."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        wheelhouse.check_sbom(Path(name))
    assert caught.value.brief.startswith("--sbom ")


def test_the_check_leaves_what_is_there(tmp_path: Path) -> None:
    """No empty file, and no bill of before that is lost."""
    before = tmp_path / "before.json"
    before.write_text("{}")
    wheelhouse.check_sbom(before)
    wheelhouse.check_sbom(tmp_path / "new.json")
    assert [path.name for path in tmp_path.iterdir()] == ["before.json"]
    assert before.read_text() == "{}"


def test_the_extra_is_named_where_the_tool_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before minutes are spent on building."""
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "cyclonedx_py", raising=False)
    with pytest.raises(StackError) as caught:
        wheelhouse.check_sbom_tool()
    assert caught.value.hint == "pip install '.[sbom]' in a clone of envcompare"
