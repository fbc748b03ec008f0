"""What a run measures: hosts and arms by what they are, compared when the run is resumed.

What identifies a host or an arm is noted before the first measurement, as events of the run. The
first note of each counts; a later one stands beside it where another was allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from envcompare.errors import ConfigError
from envcompare.fingerprint.words import fact_name
from envcompare.records import Event, Failure, IdentityChange, Scalar

Identity = dict[str, Scalar]
Place = tuple[str, str]
"""A host, and an arm on it; the arm is empty where the host itself is meant."""

BOOT: Final = "boot.id"
"""The one property that may change: a restart keeps software and settings, or those differ too."""

_NAMES: Final = {
    BOOT: "the boot ID",
    "code": "the code of the workload",
    "cpu.governor": "the frequency governor",
    "cpu.microcode": "the microcode",
    "cpu.model": "the processor",
    "data": "the data",
    "data.modified": "the data",
    "gpu.driver": "the GPU driver",
    "image.id": "the image",
    "kernel.release": "the kernel",
    "lock.sha256": "the lock of the wheels",
    "machine.id": "the machine",
    "program": "the program",
    "program.sha256": "the program",
    "python.build": "the build of Python",
    "python.path": "the interpreter",
    "python.sha256": "the build of Python",
    "python.version": "Python",
    "sif.sha256": "the SIF",
    "site_packages.sha256": "the installed files",
}
_REMEDIES: Final = {
    "image.id": "give the first image its name back (docker tag {before} NAME)",
    "sif.sha256": "put the first SIF back",
    "data": "restore the data",
    "data.modified": "restore the data",
    "kernel.release": "boot the first kernel again",
}


def property_name(key: str) -> str:
    """Return what a property is called in a sentence."""
    return f"the {key}" if key.startswith("program ") else _NAMES.get(key) or fact_name(key)


def changes(
    host: str, arm: str, before: Mapping[str, Scalar], after: Mapping[str, Scalar]
) -> tuple[IdentityChange, ...]:
    """Return the properties that are not the same; None is one that is not known."""
    return tuple(
        IdentityChange(host=host, arm=arm, key=key, before=before.get(key), after=after.get(key))
        for key in (*before, *(key for key in after if key not in before))
        if before.get(key) != after.get(key)
    )


def first_identities(events: Iterable[Event]) -> dict[Place, Identity]:
    """Return what each host and each arm was when it was first prepared."""
    found: dict[Place, Identity] = {}
    for event in events:
        if event.what == "identity":
            found.setdefault((event.host, event.arm), dict(event.values))
    return found


def noted_changes(events: tuple[Event, ...]) -> tuple[IdentityChange, ...]:
    """Return what a resumed run found changed and was measured on, each once."""
    first = first_identities(events)
    found = (
        change
        for event in events
        if event.what == "identity"
        for change in changes(event.host, event.arm, first[event.host, event.arm], event.values)
    )
    return tuple(dict.fromkeys(found))


def is_known(events: tuple[Event, ...]) -> bool:
    """Tell whether it is known of every host that was measured what it was; else it is older."""
    known = {host for host, _ in first_identities(events)}
    return all(event.host in known for event in events if event.what == "cell-started")


def refused(found: Iterable[IdentityChange]) -> tuple[IdentityChange, ...]:
    """Return the changes that a run is not resumed with."""
    return tuple(one for one in found if one.key != BOOT)


def subject(one: IdentityChange) -> str:
    """Return the host, or the arm and its host, that a change is of."""
    return f"{one.arm} on {one.host}" if one.arm else one.host


def change_text(one: IdentityChange) -> str:
    """Return a change with both values."""
    return f"{one.key} {_values(one)}"


def refusal(folder: Path, found: tuple[IdentityChange, ...]) -> ConfigError:
    """Return the error for a run whose hosts or arms are not what they were."""
    first = found[0]
    return ConfigError(
        f"{folder} cannot be resumed: {property_name(first.key)} of {subject(first)} changed "
        "since it was begun",
        details="; ".join(f"{subject(one)}: {change_text(one)}" for one in found),
        hint=f"{' and '.join(_remedies(found))}, or start a new run; with --allow-mismatch this "
        "one goes on, and its report says that it mixes both",
    )


def ended(arm: str, found: tuple[IdentityChange, ...]) -> Failure:
    """Return why an arm of a cell ends: only inside it could be seen that it changed."""
    first = found[0]
    return Failure(
        phase="checksum",
        brief=f"{arm}: {property_name(first.key)} changed since the run was begun: "
        f"{_values(first)}",
        details="; ".join(change_text(one) for one in found),
        hint=f"{' and '.join(_remedies(found))}, or start a new run; --resume with "
        "--allow-mismatch goes on, and the report says that it mixes both",
    )


def mixed_text(failure: Failure) -> str:
    """Return what is said of an arm that goes on although it changed."""
    return f"{failure.brief}; its numbers mix both (--allow-mismatch)"


def unknown(folder: Path) -> ConfigError:
    """Return the error for a run of which nobody noted what it measured."""
    return ConfigError(
        f"{folder} cannot be resumed: it does not say what software it measured",
        details="an earlier version of envcompare wrote it, so that it cannot be seen whether "
        "images, interpreters, hosts and data are still the same",
        hint="start a new run; what was measured stays readable",
    )


def _remedies(found: tuple[IdentityChange, ...]) -> tuple[str, ...]:
    texts = (_REMEDIES[one.key].format(before=one.before) for one in found if one.key in _REMEDIES)
    return tuple(dict.fromkeys(texts)) or ("restore what changed",)


def _values(one: IdentityChange) -> str:
    return f"{_value(one.before)} then, {_value(one.after)} now"


def _value(value: Scalar) -> str:
    return "not known" if value is None else str(value)
