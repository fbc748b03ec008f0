"""Nsight Compute: its CSV (raw page, details page, summary per kernel) and its reports.

A report (`.ncu-rep`) is read through NVIDIA's module `ncu_report`, or converted by an `ncu` here.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol

from envcompare.profile_files.ncu.launches import (
    Cell,
    Counted,
    Launch,
    Measured,
    adding,
    counted,
)
from envcompare.profile_files.ncu.pages import device, read_page
from envcompare.profile_files.rawfiles import convert, first_bytes, read_lines, refusal
from envcompare.run_folder.profiles import Device, Dim, Note, Page, Profile

_HINT: Final = (
    "pip install 'envcompare-bench[ncu]', or import what "
    "`LC_ALL=C ncu --import {file} --csv --page raw --print-units base` prints"
)
_NEWER_HINT: Final = (
    "pip install --upgrade ncu-report, or import what the ncu that collected it prints: "
    "`LC_ALL=C ncu --import {file} --csv --page raw --print-units base`"
)
_CUT: Final = "copy the report again, or profile again: it is damaged, cut off, or of a newer ncu"
_MAGIC: Final = b"NVR\0"
_NEWER: Final = re.compile(r"\bnewer\b|[Uu]nsupported .*version|version .*not supported")
_ATTRIBUTES: Final = ("display_name", "compute_capability_major", "compute_capability_minor",
                      "multiprocessor_count")  # fmt: skip


class _Metric(Protocol):
    def value(self) -> float | str | None: ...
    def unit(self) -> str: ...


class _Action(Protocol):
    """A launch; it stands in a range, and that in the context of a report."""

    NameBase_DEMANGLED: int

    def name(self, base: int) -> str | None: ...
    def metric_names(self) -> tuple[str, ...]: ...
    def metric_by_name(self, name: str) -> _Metric | None: ...


def read(path: Path) -> Profile:
    """Return the profile in a `.ncu-rep` report or in CSV of Nsight Compute 2020 to 2026.

    Raises ProfileError for a file that cannot be read or trusted, with the line and the reason.
    """
    if path.suffix == ".ncu-rep":
        return _report(path)
    page, kernels, devices = read_page(read_lines(path), file=path.name)
    return _profile(path, f"csv {page}", page, kernels, devices)


def _profile(
    path: Path, form: str, page: Page, kernels: Counted, devices: tuple[Device, ...]
) -> Profile:
    return Profile(
        tool="ncu",
        format=form,
        pages=(page,),
        files=(path.name,),
        devices=devices,
        kernels=kernels.kernels,
        sequence=kernels.sequence,
        has_time=kernels.has_time,
        notes=(*kernels.notes, Note(kind="controls-unknown")),
    )


def _report(path: Path) -> Profile:
    """Return what a report holds; raises ProfileError where it cannot be read here, or is cut."""
    # The module takes what does not begin as a report for one without launches.
    head = first_bytes(path, len(_MAGIC))
    if head != _MAGIC:
        what = "it is empty" if not head else "it does not begin as one"
        raise refusal(path.name, why=f"it is not an Nsight Compute report: {what}", hint=_CUT)
    try:
        module = importlib.import_module("ncu_report")
    except ImportError:
        program = shutil.which("ncu")
        if program is None:
            raise refusal(
                path.name,
                why="reading it needs the module ncu_report or the program ncu; neither is here",
                hint=_HINT.format(file=path.name),
            ) from None
        return _by_program(program, path)
    return _by_module(module, path)


def _by_program(program: str, path: Path) -> Profile:
    """Return a report as the installed ncu converts it to CSV."""
    argv = [program, "--import", str(path), "--csv", "--page", "raw", "--print-units", "base"]
    done, newer = convert(argv, file=path.name, newer=_NEWER, env=os.environ | {"LC_ALL": "C"})
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        why = f"ncu cannot read it: {said.splitlines()[-1] if said else 'it did not say why'}"
        why = f"the ncu on PATH is older than the report: {newer}" if newer else why
        hint = _NEWER_HINT.format(file=path.name) if newer else _CUT
        raise refusal(path.name, why=why, hint=hint)
    page, kernels, devices = read_page(tuple(done.stdout.splitlines(keepends=True)), file=path.name)
    return _profile(path, "report by ncu", page, kernels, devices)


def _by_module(module: ModuleType, path: Path) -> Profile:
    try:
        launches = tuple(_launches(module, path))
    except (RuntimeError, OSError, ValueError, SystemError) as error:
        raise refusal(path.name, why=f"ncu_report cannot read it: {error}", hint=_CUT) from error
    if not launches:
        # of a report that is newer than itself the module says nothing either
        why = f"ncu_report {_module_version()} finds no launch in it: cut off, or of a newer ncu"
        raise refusal(path.name, why=why, hint=f"{_CUT}; {_NEWER_HINT.format(file=path.name)}")
    devices = dict.fromkeys(gpu for _, gpu in launches if gpu is not None)
    kernels = counted([launch for launch, _ in launches])
    return _profile(path, "report by ncu_report", "raw", kernels, tuple(devices))


def _module_version() -> str:
    try:
        return metadata.version("ncu-report")
    except metadata.PackageNotFoundError:
        return "of an installed ncu"


def _launches(module: ModuleType, path: Path) -> Iterator[tuple[Launch, Device | None]]:
    context = module.load_report(str(path))
    for place in range(context.num_ranges()):
        part = context.range_by_idx(place)
        for number in range(part.num_actions()):
            action: _Action = part.action_by_idx(number)
            # of a report that was cut the module returns launches without a name or a metric
            if not _name(action) or not action.metric_names():
                raise refusal(path.name, why=f"launch {number} has no name or no metric", hint=_CUT)
            yield _launch(action, path.name), _device(action)


def _launch(action: _Action, file: str) -> Launch:
    def numbers() -> Iterator[tuple[Cell, float]]:
        for name in filter(adding, action.metric_names()):
            metric = action.metric_by_name(name)
            value = None if metric is None else metric.value()
            if metric is None or not isinstance(value, (int, float)) or not math.isfinite(value):
                continue
            cell = Cell(None, name, metric.unit(), str(value))
            factor = cell.factor(file)
            if factor is not None:
                yield cell, value * factor

    return Launch(
        name=_name(action),
        grid=_dim(action, "launch__grid_dim"),
        block=_dim(action, "launch__block_dim"),
        measured=Measured.of(numbers(), file),
    )


def _name(action: _Action) -> str:
    return action.name(action.NameBase_DEMANGLED) or ""


def _dim(action: _Action, what: str) -> Dim | None:
    x, y, z = (_text(action, f"{what}_{axis}") for axis in "xyz")
    return (int(float(x)), int(float(y)), int(float(z))) if x and y and z else None


def _device(action: _Action) -> Device | None:
    names = (f"device__attribute_{name}" for name in _ATTRIBUTES)
    return device({name: _text(action, name) for name in names})


def _text(action: _Action, name: str) -> str:
    metric = action.metric_by_name(name)
    value = None if metric is None else metric.value()
    return "" if value is None else str(value)
