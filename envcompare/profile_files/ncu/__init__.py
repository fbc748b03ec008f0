"""Nsight Compute: its CSV (raw page, details page, summary per kernel) and its reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from envcompare.profile_files.ncu import report
from envcompare.profile_files.ncu.devices import devices_of
from envcompare.profile_files.ncu.launches import CONTROLS_UNTOLD, Counted, Launch, counted
from envcompare.profile_files.ncu.pages import details_launches, gap_note, raw_launches
from envcompare.profile_files.ncu.summary import summary_kernels
from envcompare.profile_files.ncu.text import Table, find_table
from envcompare.profile_files.tables import read_lines
from envcompare.run_folder.profiles import Device, Page, Profile


def read(path: Path) -> Profile:
    """Return the profile in a `.ncu-rep` report or in CSV of Nsight Compute 2020 to 2026.

    Raises ProfileError for a file that cannot be read or trusted, with the line and the reason.
    """
    if path.suffix == ".ncu-rep":
        found_report = report.read_report(path)
        found = counted(found_report.launches)
        return _profile(path, found_report.format, "raw", found, found_report.devices)
    table = find_table(read_lines(path), file=path.name)
    if table.header.cells[0] == "Process ID":
        return _profile(path, "csv summary", "summary", summary_kernels(table), devices_of(table))
    page, launches = _page(table)
    found = counted(launches)
    notes = (*found.notes, *filter(None, (gap_note(table),)))
    return _profile(path, f"csv {page}", page, replace(found, notes=notes), devices_of(table))


def _page(table: Table) -> tuple[Page, tuple[Launch, ...]]:
    if table.column("Metric Name") is not None:
        return "details", details_launches(table)
    return "raw", raw_launches(table)


def _profile(
    path: Path, form: str, page: Page, found: Counted, devices: tuple[Device, ...]
) -> Profile:
    return Profile(
        tool="ncu",
        format=form,
        pages=(page,),
        files=(path.name,),
        devices=devices,
        kernels=found.kernels,
        sequence=found.sequence,
        has_time=found.has_time,
        notes=(*found.notes, CONTROLS_UNTOLD),
    )
