"""What a cell is shown of its host, and that no other cell is shown it as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from envcompare.choice import Workload
from envcompare.environments import Mount
from envcompare.errors import WorkloadError
from envcompare.folders import CellFolders
from envcompare.sites import Roads, Site
from envcompare.transport.hosts import parse_hosts
from envcompare.transport.local import LOCAL


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Give this machine as a site, its workloads staged."""
    site = Site(
        host=parse_hosts(["local"])[0],
        roads=Roads(watched=LOCAL, bare=LOCAL, local=LOCAL),
        boot_id="",
        run_id="r",
        cache=str(tmp_path / "cache"),
        uid=1000,
        gid=1000,
        has_gpu=False,
    )
    site.stage()
    return site


def folder(path: Path) -> str:
    """Make a folder and return its path."""
    path.mkdir()
    return str(path)


def test_folder_of_one_command_is_not_shown_to_the_next(site: Site, tmp_path: Path) -> None:
    """Two cells of one site see the workloads, and each its own folder and data alone."""
    first, second = CellFolders(site=site), CellFolders(site=site)
    one, other, data = (folder(tmp_path / name) for name in ("one", "other", "data"))
    first.show_command(one, data)
    second.show_command(other, None)
    assert first.mounts == (*site.mounts, Mount(path=one), Mount(path=data))
    assert second.mounts == (*site.mounts, Mount(path=other))
    assert site.mounts == (Mount(path=site.workloads),)


def test_file_of_one_workload_is_not_shown_to_the_next(site: Site, tmp_path: Path) -> None:
    """Every cell of a workload is shown its file, which is sent once and stays the same."""
    path = tmp_path / "own.py"
    path.write_text("first")
    own = Workload(name="own-Work", path=path, class_name="Work")
    cells = [CellFolders(site=site) for _ in range(3)]
    names = {cells[0].name_of(own)}
    path.write_text("changed during the run")
    names.add(cells[1].name_of(own))
    (sent,) = (Path(name.rpartition(":")[0]) for name in names)
    assert sent.read_text() == "first"
    assert cells[0].own == cells[1].own == (Mount(path=str(sent.parent)),)
    assert cells[2].own == ()


def test_folder_that_is_not_there_is_named(site: Site, tmp_path: Path) -> None:
    """Nothing is shown then."""
    cell = CellFolders(site=site)
    with pytest.raises(WorkloadError, match=f"{tmp_path}/none of the command is not on local"):
        cell.show_command(f"{tmp_path}/none", None)
    assert cell.own == ()
