"""The packages in which the Pythons of two plain lines differ, and folders that hold some of them.

A folder holds links to the packages of the fast line's Python. With the folder first on PYTHONPATH,
the slow line's Python imports those in place of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

from envcompare.fingerprint import PACKAGE_FOLDERS
from envcompare.fingerprint.evidence import entries
from envcompare.proof.levers import Change, Edit
from envcompare.run_folder.records import FingerprintValue
from envcompare.text import counted, first_few

_VERSION: Final = "python.version"
Facts = Mapping[str, FingerprintValue]


def package_changes(fast: Facts, slow: Facts, *, place: Path) -> list[Change]:
    """Return a change for each package in which two Pythons of one minor version differ.

    `fast` and `slow` are the facts of the lines' processes on this machine; links are made in a new
    folder below `place`. Packages that share a folder, as those of a namespace do, are one change.
    One more change links the packages that are equal: if it closes much, the place of the files
    counts, and not their versions. Left out are packages without a list of their files, editable
    ones, and those that only the slow line's Python has.
    """
    if fast.get(_VERSION) is None or fast.get(_VERSION) != slow.get(_VERSION):
        return []
    place /= "packages"
    place.mkdir()
    wanted, given = (_installed(entries(facts.get(PACKAGE_FOLDERS))) for facts in (fast, slow))
    wanted = {name: package for name, package in wanted.items() if _modules(package)}
    differing = {
        name: package
        for name, package in wanted.items()
        if name not in given or _content(package) != _content(given[name])
    }
    changes = [
        _change(group, given, place / str(number))
        for number, group in enumerate(_groups(differing.values()))
    ]
    changed = {top for package in differing.values() for top in _tops(package)}
    equal = [
        package
        for name, package in wanted.items()
        if name not in differing and not _tops(package) & changed
    ]
    if changes and equal:
        _link(equal, place / "equal")
        changes.append(
            Change(
                key="packages.place",
                what=f"{counted(len(equal), 'equal package')} → from the fast line's folder",
                edit=Edit(paths=(str(place / "equal"),)),
                fix="keep the environment on the same disk, with byte code",
            )
        )
    return changes


def _installed(folders: Sequence[str]) -> dict[str, Distribution]:
    """Return what is installed in folders, by name; the first of a name counts, as for imports."""
    known: dict[str, Distribution] = {}
    for package in distributions(path=list(folders)):
        if package.metadata["Name"]:
            known.setdefault(_name(package), package)
    return known


def _name(package: Distribution) -> str:
    return package.metadata["Name"].lower().replace("_", "-").replace(".", "-")


def _content(package: Distribution) -> tuple[str, frozenset[str]]:
    """Return the version, and the files with their hashes as the installer has listed them."""
    own = frozenset(
        f"{path} {path.hash.value}"
        for path in package.files or ()
        # programs, byte code and notes depend on how the package was installed
        if path.hash
        and not (path.suffix == ".pyc" or path.parts[0] == "..")
        and not path.parts[0].endswith((".dist-info", ".egg-info"))
    )
    return package.version, own


def _tops(package: Distribution) -> set[str]:
    """Return the names in the folder of packages that belong to one, with its metadata."""
    of_other_files = {"__pycache__", "..", "/"}
    return {path.parts[0] for path in package.files or ()} - of_other_files


def _modules(package: Distribution) -> set[str]:
    """Return the names that can be imported; none of an editable installation."""
    own = {name for name in _tops(package) if not name.startswith("__editable__")}
    return {name for name in own if not name.endswith((".dist-info", ".egg-info", ".pth"))}


def _groups(every: Iterable[Distribution]) -> list[list[Distribution]]:
    """Return packages that share a folder together, such as those of a namespace."""
    groups: list[tuple[set[str], list[Distribution]]] = []
    for package in sorted(every, key=_name):
        names = _tops(package)
        same = [group for group in groups if group[0] & names]
        groups = [group for group in groups if group not in same]
        names = names.union(*(known for known, _ in same))
        groups.append((names, [*(each for _, members in same for each in members), package]))
    return [members for _, members in groups]


def _change(
    group: Sequence[Distribution], given: Mapping[str, Distribution], place: Path
) -> Change:
    _link(group, place)
    said = []
    for package in group:
        own = given.get(_name(package))
        before, after = own.version if own else "none", package.version
        said.append(f"{_name(package)} {before} → {'another build' if before == after else after}")
    pins = " ".join(f"{_name(package)}=={package.version}" for package in group)
    return Change(
        key="packages",
        what=first_few(said, most=3),
        edit=Edit(paths=(str(place),)),
        fix=f"install {pins}, built as for the fast line",
    )


def _link(group: Iterable[Distribution], place: Path) -> None:
    place.mkdir()
    for package in group:
        for name in sorted(_tops(package)):
            source = Path(str(package.locate_file(name)))
            # Packages of a namespace share a folder, which is linked once.
            if source.exists() and not (place / name).is_symlink():
                (place / name).symlink_to(source)
