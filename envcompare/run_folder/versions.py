"""Schema versions of a run folder: records of an older one are upgraded here as they are read.

Everything else sees records of the newest version alone. A change of a published record raises
what its type holds, and adds a step to `_FROM_1` that turns its older JSON into the newer one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from envcompare.errors import RunFolderError
from envcompare.run_folder.profiles import Lack, Page, ProfileRecord
from envcompare.run_folder.records import SCHEMA, Event

OLDEST: Final = 1
DAMAGE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for content that is no such record."""
_T = TypeVar("_T")
_Json = dict[str, Any]
_GENERATIONS: Final = re.compile(r"generations by (fork|rebuild)(?:: (.*))?", re.DOTALL)
_GPU: Final = re.compile(r"GPU (\d+)(?=:|$)")
_PROGRAM: Final = re.compile("^program ")
_UNNAMED: Final = re.compile(r"compute capability|GPU \d+$")
_PAGES: Final[dict[str, Page]] = {
    "csv raw": "raw", "csv details": "details", "csv summary": "summary",
    "report by ncu": "raw", "report by ncu_report": "raw",
}  # fmt: skip

_PART_MISSING: Final = "some counters could not be read"
_LACKS: Final[dict[str, Lack]] = {  # by how the words of version 1 begin
    "the workload ran on the CPU": "no-gpu",
    "hardware counters were not asked for": "not-requested",
    "a plain command has no steps": "no-steps",
    "nothing was found, and no reason given": "not-measured",
    "the workload does not use PyTorch": "not-measured",
    "its raw file is larger than": "raw-not-kept",
    "only the first": "launches-cut",
}


class _Head(msgspec.Struct):
    schema: int = SCHEMA


def version_of(content: bytes) -> int:
    """Return the schema version that a record names; raises one of DAMAGE."""
    return msgspec.json.decode(content, type=_Head).schema


def decode_record(path: Path, content: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    """Return a record of any known schema version as one of the newest.

    Raises RunFolderError for an unknown version, and one of DAMAGE for what is no such record.
    """
    version = version_of(content)
    if version == SCHEMA:
        return decoder.decode(content)
    if not OLDEST <= version < SCHEMA:
        raise RunFolderError(
            f"{path} has schema {version}",
            details=f"this envcompare reads schemas {OLDEST} to {SCHEMA}",
            hint="use the version of envcompare that wrote it; run.json names it",
        )
    record: _Json = msgspec.json.decode(content)
    try:
        for upgrade in _FROM_1.get(decoder.type, ()):
            upgrade(record)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise msgspec.ValidationError(f"not a record of schema {version}: {error}") from error
    return msgspec.convert({**record, "schema": SCHEMA}, decoder.type)


def _name_gpus(record: _Json) -> None:
    """Version 1 named the GPU of a quantity in the text of its scope alone."""
    for quantity in (record.get("profile") or {}).get("quantities", ()):
        if match := _GPU.match(quantity.get("scope", "")):
            quantity["gpu"] = int(match[1])


def _name_pages(record: _Json) -> None:
    """Version 1 named the pages of Nsight Compute in the text of the format alone."""
    profile = record.get("profile") or {}
    if profile.get("tool") == "ncu" and not profile.get("pages"):
        parts = profile.get("format", "").split(" + ")
        profile["pages"] = [_PAGES[part] for part in parts if part in _PAGES]


def _keep_notes(record: _Json) -> None:
    """Version 1 kept sentences in the place of notes."""
    profile = record.get("profile") or {}
    if notes := profile.get("notes"):
        profile["notes"] = [{"kind": "text", "values": {"text": text}} for text in notes]


def _name_lacks(record: _Json) -> None:
    """Version 1 told in words alone why a profile is missing, or what it lacks."""
    reason, hint = record.pop("reason", ""), record.pop("hint", "")
    is_failure = record.pop("is_failure", False)
    if not reason and not hint:
        return
    is_there = record.get("state", "ok") == "ok"
    known = next((why for start, why in _LACKS.items() if reason.startswith(start)), None)
    why = "failed" if is_failure else known or ("partial" if is_there else "not-usable")
    record["lacks"] = {"why": why, "problem": {"brief": reason or _PART_MISSING, "hint": hint}}


def _name_programs(record: _Json) -> None:
    """Version 1 named the program of a word `program WORD` in the identity of an arm."""
    if record.get("what") == "identity":
        values = record.get("values", {}).items()
        record["values"] = {_PROGRAM.sub("command.", key): value for key, value in values}


def _unname_devices(record: _Json) -> None:
    """Version 1 wrote another text where a file did not name its GPU."""
    for device in (record.get("profile") or {}).get("devices", ()):
        if _UNNAMED.match(device.get("name", "")):
            device["name"] = ""


def _name_values(record: _Json) -> None:
    """Version 1 told in words alone how generations begin, and why no start was a cold one."""
    text, values = record.get("text", ""), record.setdefault("values", {})
    if record.get("what") == "arm-ready" and (match := _GENERATIONS.match(text)):
        values |= {"generation": match[1], "why": match[2] or ""}
    if values.get("cold") is False:
        values["why"] = text.removeprefix("cold start not measured: ")


_FROM_1: Final[dict[object, tuple[Callable[[_Json], None], ...]]] = {
    Event: (_name_programs, _name_values),
    ProfileRecord: (_name_gpus, _name_pages, _keep_notes, _unname_devices, _name_lacks),
}
"""By the type that is read, what changes a record of version 1, in place, into one of version 2.

Steps run in this order, before types are checked: what they raise for other types is damage.
"""
