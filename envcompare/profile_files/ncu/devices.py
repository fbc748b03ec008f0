"""The GPUs that a table of Nsight Compute tells of."""

from __future__ import annotations

import re
from collections.abc import Mapping

from envcompare.gpu.chips import chip_of
from envcompare.profile_files.ncu.text import Table
from envcompare.run_folder.profiles import Device

_MAJOR = "device__attribute_compute_capability_major"
_MINOR = "device__attribute_compute_capability_minor"


def devices_of(table: Table) -> tuple[Device, ...]:
    """Return each GPU once; a file that names none, as those before 2024, gives none."""
    if table.column("Metric Name") is not None and "Average" in table.header.cells:
        return _of_summary(table)
    rows = (dict(zip(table.header.cells, row.cells, strict=False)) for row in table.rows)
    found = (device(one) for one in rows)
    return tuple(dict.fromkeys(one for one in found if one is not None))


def device(told: Mapping[str, str]) -> Device | None:
    """Return the GPU of a launch from its columns; None where nothing names it."""
    capability = told.get("CC", "")
    if told.get(_MAJOR, "").isdigit():
        capability = f"{told[_MAJOR]}.{told.get(_MINOR, '0')}"
    if not re.fullmatch(r"\d+\.\d", capability):
        return None
    name = told.get("device__attribute_display_name", "") or f"compute capability {capability}"
    count = re.sub(r"\D", "", told.get("device__attribute_multiprocessor_count", ""))
    return Device(
        name=name,
        chip=chip_of(capability),
        compute_capability=capability,
        multiprocessors=int(count) if count else None,
    )


def _of_summary(table: Table) -> tuple[Device, ...]:
    name, average = table.column("Metric Name"), table.column("Average")
    told = (
        {}
        if name is None or average is None
        else {row.cells[name]: row.cells[average] for row in table.rows}
    )
    column = table.column("CC")
    told |= {"CC": table.rows[0].cells[column]} if column is not None else {}
    found = device(told)
    return () if found is None else (found,)
