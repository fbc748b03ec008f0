"""Identify the hosts and arms of a run, and compare them when the run is resumed.

Identities are recorded as events before the first measurement. The first record of each counts;
accepted later ones are kept with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from envcompare.errors import ConfigError
from envcompare.fingerprint.facts import fact
from envcompare.run_folder.records import Event, Failure, IdentityChange, Scalar

Identity = dict[str, Scalar]
Place = tuple[str, str]
"""A host, and an arm on it; the arm is empty for the host itself."""

BOOT: Final = "boot.id"
"""The one property that may change: a reboot with other software also changes other properties."""

_GO_ON: Final = "start a new run, or continue with --allow-mismatch; the report then states that"


class DataIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies data; for prepared data only the hash."""

    hash: str
    modified: str | None = None
    changed: str | None = None
    files: str | None = None

    def facts(self) -> Identity:
        """Return it as recorded in an event, without unknown values."""
        times = {"modified": self.modified, "changed": self.changed, "files": self.files}
        return {"data": self.hash, **{f"data.{key}": one for key, one in times.items() if one}}


def changes(
    before: Mapping[str, Scalar], after: Mapping[str, Scalar], *, host: str, arm: str
) -> tuple[IdentityChange, ...]:
    """Return the properties that differ; None means unknown."""
    return tuple(
        IdentityChange(host=host, arm=arm, key=key, before=before.get(key), after=after.get(key))
        for key in (*before, *(key for key in after if key not in before))
        if before.get(key) != after.get(key)
    )


def first_identities(events: Iterable[Event]) -> dict[Place, Identity]:
    """Return what each host and each arm was when it was first prepared."""
    identities: dict[Place, Identity] = {}
    for event in events:
        if event.what == "identity":
            identities.setdefault((event.host, event.arm), dict(event.values))
    return identities


def noted_changes(events: tuple[Event, ...]) -> tuple[IdentityChange, ...]:
    """Return the changes that a resumed run accepted, each once."""
    first = first_identities(events)
    noted = (
        change
        for event in events
        if event.what == "identity"
        for change in changes(
            first[event.host, event.arm], event.values, host=event.host, arm=event.arm
        )
    )
    return tuple(dict.fromkeys(noted))


def refused(noted: Iterable[IdentityChange]) -> tuple[IdentityChange, ...]:
    """Return the changes with which a run is not resumed."""
    return tuple(change for change in noted if change.key != BOOT)


def subject(change: IdentityChange) -> str:
    """Return the host, or the arm and its host, that changed."""
    return f"{change.arm} on {change.host}" if change.arm else change.host


def is_unverified(change: IdentityChange) -> bool:
    """Tell whether one of the values is not known: it may have changed or not."""
    return None in (change.before, change.after)


def change_text(change: IdentityChange) -> str:
    """Return a change with both values: "the kernel was 6.1, now 6.2"."""
    verb = "were" if fact(change.key).is_plural else "was"
    return f"{fact(change.key).name} {verb} {_value(change.before)}, now {_value(change.after)}"


def resumed_text(change: IdentityChange) -> str:
    """Return the message on a change that a resumed run accepts."""
    if change.key == BOOT:
        return f"{change.host} was restarted since the run began"
    verb = "cannot be verified" if is_unverified(change) else "changed since the run began"
    return (
        f"{subject(change)} {verb}: {change_text(change)}; continuing because of --allow-mismatch"
    )


def refusal(folder: Path, noted: tuple[IdentityChange, ...]) -> ConfigError:
    """Return the error for a run whose hosts or arms are not, or may not be, what they were."""
    changed = tuple(change for change in noted if not is_unverified(change))
    first = (changed or noted)[0]
    what = f"{fact(first.key).name} of {subject(first)}"
    details = "; ".join(f"{subject(change)}: {change_text(change)}" for change in noted)
    if not changed:
        return ConfigError(
            f"{folder} cannot be resumed: {what} cannot be verified",
            details=details,
            hint=f"make it readable on {first.host} and resume again, {_GO_ON} it could not be "
            "verified",
        )
    return ConfigError(
        f"{folder} cannot be resumed: {what} changed since it was started",
        details=details,
        hint=f"{' and '.join(_remedies(changed))}, {_GO_ON} both are mixed",
    )


def ended(arm: str, noted: tuple[IdentityChange, ...]) -> Failure:
    """Return why an arm of a cell ends: only inside it could be seen that it changed."""
    return Failure(
        phase="checksum",
        brief=f"{arm} changed since the run began: {change_text(noted[0])}",
        details="; ".join(change_text(change) for change in noted),
        hint=f"{' and '.join(_remedies(noted))}, {_GO_ON} both are mixed",
    )


def _remedies(changed: tuple[IdentityChange, ...]) -> tuple[str, ...]:
    texts = (fact(each.key).restore.format(before=each.before) for each in changed)
    return tuple(dict.fromkeys(filter(None, texts))) or ("restore what changed",)


def _value(value: Scalar) -> str:
    return "not known" if value is None else str(value)
