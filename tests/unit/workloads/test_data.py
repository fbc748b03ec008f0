"""Data folders: whole or not there, checked whenever they are read."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conversation import WORKER
from harness.failures import DataError
from harness.formats.data import Folder, Source, data_hash, prepare, state


def write(folder: str) -> None:
    """Make two files, one of them deeper."""
    Path(folder, "deep").mkdir()
    Path(folder, "deep", "a.txt").write_text("a")
    Path(folder, "b.txt").write_text("b")


def source(recipe: str = "letters 1", make: Callable[[str], None] = write) -> Source:
    """Return a source whose download is its making."""
    return Source(recipe, make, make)


def test_prepared_folder_lists_the_checksums_of_its_files(tmp_path: Path) -> None:
    """Every file is listed by its relative name; nothing else is left beside the folder."""
    found = prepare(str(tmp_path / "data"), source(), download=False)
    listed = json.loads((tmp_path / "data" / "checksums.json").read_text())
    assert listed["deep/a.txt"] == hashlib.sha256(b"a").hexdigest()
    assert set(listed) == {"deep/a.txt", "b.txt", "ORIGIN"}
    assert (tmp_path / "data" / "ORIGIN").read_text() == "made letters 1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert found == data_hash(str(tmp_path / "data"))
    assert found == prepare(str(tmp_path / "elsewhere"), source(), download=False)


def test_whole_folder_is_left_alone(tmp_path: Path) -> None:
    """Preparing twice makes once."""
    target = tmp_path / "data"
    first = prepare(str(target), source(), download=False)
    before = (target / "b.txt").stat()
    assert prepare(str(target), source(), download=False) == first
    after = (target / "b.txt").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("harm", ["change", "remove"])
def test_made_data_is_made_again_when_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: str
) -> None:
    """What can be made costs nothing to mend; a word on stderr names the file."""
    target = tmp_path / "data"
    first = prepare(str(target), source(), download=False)
    damaged = target / "deep" / "a.txt"
    damaged.unlink() if harm == "remove" else damaged.write_text("x")
    assert prepare(str(target), source(), download=False) == first
    assert damaged.read_text() == "a"
    assert str(damaged) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_made_data_is_made_again_when_its_recipe_changed(tmp_path: Path) -> None:
    """Data of an older recipe is not taken for that of the new one."""
    first = prepare(str(tmp_path / "data"), source(), download=False)
    assert prepare(str(tmp_path / "data"), source("letters 2"), download=False) != first


def test_downloaded_data_is_an_error_when_damaged(tmp_path: Path) -> None:
    """The message names the file and the remedy, and nothing is removed."""
    target = tmp_path / "data"
    prepare(str(target), source(), download=True)
    (target / "b.txt").write_text("x")
    with pytest.raises(DataError) as caught:
        prepare(str(target), source(), download=True)
    assert str(caught.value) == (
        f"{target}/b.txt is damaged: its checksum differs. Remove {target} and prepare it again"
    )
    assert (target / "b.txt").read_text() == "x"


def test_made_data_is_not_taken_for_downloaded(tmp_path: Path) -> None:
    """Who asks for the real data does not get the small one."""
    prepare(str(tmp_path / "data"), source(), download=False)
    with pytest.raises(DataError, match="holds 'made letters 1', not 'downloaded letters 1'"):
        prepare(str(tmp_path / "data"), source(), download=True)


def test_foreign_folder_is_never_touched(tmp_path: Path) -> None:
    """A folder that was not prepared is an error, its files stay."""
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match=r"has no checksums\.json: nothing here was prepared"):
        prepare(str(tmp_path), source(), download=False)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_nothing_is_left_when_making_fails(tmp_path: Path) -> None:
    """A folder is whole or not there."""

    def fail(folder: str) -> None:
        write(folder)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        prepare(str(tmp_path / "data"), source(make=fail), download=False)
    assert not list(tmp_path.iterdir())


def test_empty_folder_is_filled(tmp_path: Path) -> None:
    """A folder that a mount has made beforehand will do."""
    (tmp_path / "data").mkdir()
    prepare(str(tmp_path / "data"), source(), download=False)
    assert (tmp_path / "data" / "b.txt").exists()


def test_prepared_file_is_compared_with_its_checksum_when_read(tmp_path: Path) -> None:
    """Reading finds the damage that came after preparing; unlisted files are read as they are."""
    prepare(str(tmp_path / "data"), source(), download=False)
    folder = Folder(str(tmp_path / "data"))
    assert folder.read("b.txt") == b"b"
    (tmp_path / "data" / "b.txt").write_text("x")
    with pytest.raises(DataError, match="is damaged"):
        folder.read("b.txt")
    (tmp_path / "data" / "new.txt").write_text("n")
    assert folder.read("new.txt") == b"n"


def test_list_of_checksums_is_named_when_it_is_damaged(tmp_path: Path) -> None:
    """A torn list is damage too."""
    (tmp_path / "checksums.json").write_text('{"a": ')
    with pytest.raises(DataError, match=r"checksums\.json is damaged"):
        data_hash(str(tmp_path))


def prepare_by_command(*argv: str) -> tuple[int, dict[str, object], str]:
    """Run `worker.py --prepare`; return exit code, the one line on stdout, and stderr."""
    done = subprocess.run(
        [sys.executable, WORKER, "--prepare", *argv], capture_output=True, text=True, check=False
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_command_prepares_reviews_without_torch(tmp_path: Path) -> None:
    """One JSON line says the hash, which is the hash hello will say."""
    target = tmp_path / "deep" / "rnn"
    code, reply, _ = prepare_by_command(str(target), "--workload", "rnn", "--params", "{}")
    assert (code, reply["ok"]) == (0, True)
    assert reply["data_hash"] == data_hash(str(target))
    (target / "ORIGIN").write_text("made reviews 1 \n")
    code, again, stderr = prepare_by_command(str(target), "--workload", "rnn")
    assert (code, again) == (0, reply)
    assert "ORIGIN is damaged" in stderr


def test_command_says_why_it_cannot_prepare(tmp_path: Path) -> None:
    """The failure is the error object of the protocol, with exit code 1."""
    (tmp_path / "mine").write_text("x")
    code, reply, _ = prepare_by_command(str(tmp_path), "--workload", "rnn")
    assert (code, reply["ok"]) == (1, False)
    assert reply["error"]["phase"] == "data"  # type: ignore[index]
    code, reply, _ = prepare_by_command(str(tmp_path / "d"), "--workload", "rnn", "--params", "[]")
    assert code == 1
    assert "--params must be a JSON object" in str(reply)


def test_users_class_makes_its_own_data(tmp_path: Path, toy: str) -> None:
    """A static `make` writes the files; without one the folder holds none."""
    code, _, stderr = prepare_by_command(str(tmp_path / "none"), "--workload", toy)
    assert code == 0
    assert "has no make(folder)" in stderr
    path = tmp_path / "maker.py"
    path.write_text(
        "class Maker:\n    @staticmethod\n    def make(folder):\n"
        "        open(folder + '/one.txt', 'w').write('1')\n"
    )
    code, _, _ = prepare_by_command(str(tmp_path / "made"), "--workload", f"{path}:Maker")
    assert code == 0
    assert (tmp_path / "made" / "one.txt").read_text() == "1"


def test_file_replaced_by_an_older_one_changes_the_state_but_not_the_hash(tmp_path: Path) -> None:
    """Its ctime gives it away, which the hash that is compared between hosts leaves out."""
    data, other = tmp_path / "data", tmp_path / "other"
    data.mkdir()
    (data / "a").write_text("aaaa")
    (data / "b").write_text("bbbb")
    os.utime(data / "a", (1_000_000_000, 1_000_000_000))
    before = state(str(data))
    assert before == state(str(data))
    other.write_text("xxxx")
    os.utime(other, (1_000_000_000, 1_000_000_000))
    other.replace(data / "a")
    after = state(str(data))
    assert {key for key in before if before[key] != after[key]} == {"changed", "files"}


def test_prepared_data_are_known_by_their_checksums_alone(tmp_path: Path) -> None:
    """They are the same whenever they were made."""
    found = prepare(str(tmp_path / "data"), source(), download=False)
    none = {"modified": None, "changed": None, "files": None}
    assert state(str(tmp_path / "data")) == {"hash": found, **none}


def test_link_that_leads_nowhere_is_hashed_by_where_it_points(tmp_path: Path) -> None:
    """A folder with one has a hash all the same, and it follows the link."""
    (tmp_path / "a").write_text("a")
    (tmp_path / "link").symlink_to("gone")
    before = state(str(tmp_path))
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("lost")
    assert before["hash"] is not None
    assert state(str(tmp_path))["hash"] != before["hash"]


def test_name_that_is_not_utf8_is_hashed(tmp_path: Path) -> None:
    """File systems keep bytes."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).write_text("a")
    assert state(str(tmp_path))["files"] is not None


def test_small_files_that_an_earlier_version_left_out_are_made(tmp_path: Path) -> None:
    """What a host keeps of a bundled workload is remade where its maker has changed."""
    target = tmp_path / "files"
    empty = Source(recipe="Files", make=lambda _: None, download=lambda _: None)
    prepare(str(target), empty, download=False)
    assert len(list(target.iterdir())) == 2
    code, _, error = prepare_by_command(str(target), "--workload", "files")
    assert code == 0, error
    assert len(list(target.rglob("*.txt"))) == 1000
