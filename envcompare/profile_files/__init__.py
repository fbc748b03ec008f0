"""Read the files of profilers, and derive quantities from them.

`read` is the entry point to all readers. It detects the tool from the first bytes, and names it
when it refuses a file of another tool. Several passes over the same launches become one profile
with the counters of all.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from envcompare.errors import ConfigError
from envcompare.files import PRINTED_BYTES, is_hollow
from envcompare.gpu.kernelnames import is_nameless
from envcompare.profile_files.activity import Shape
from envcompare.profile_files.derive import with_quantities
from envcompare.profile_files.rawfiles import GZIP, SQLITE, encoding_of, first_bytes, refusal
from envcompare.run_folder.profiles import Device, Kernel, Note, Profile, impossible

READERS: Final = {
    "kineto": "envcompare.profile_files.kineto",
    "ncu": "envcompare.profile_files.ncu",
    "nsys": "envcompare.profile_files.nsys",
    "nvprof": "envcompare.profile_files.nvprof",
}
"""The module of each tool, with a function `read(path) -> Profile`; imported on demand."""

SEVERAL: Final = frozenset({"ncu", "nvprof"})
"""Tools that collect counters in several runs over the same launches."""

_KINDS: Final = {
    "kineto": "a trace of torch.profiler",
    "ncu": "a file of Nsight Compute",
    "nsys": "a file of Nsight Systems",
    "nvprof": "a file of nvprof",
}
_CONTROLS_UNKNOWN: Final = Note(kind="controls-unknown")
_NO_TIME: Final = Note(kind="no-time")
_HEAD_BYTES: Final = 1 << 20
_POINTERS: Final = (
    (re.compile(rb"version https://(?:git-lfs|hawser)\.github\.com/spec/"), "Git LFS",
     "git lfs pull --include '*{file}'"),
    (re.compile(rb"/annex/objects/\S+"), "git-annex", "git annex get {file}"),
)  # fmt: skip
_ARCHIVES: Final = (
    (re.compile(rb".{257}ustar", re.DOTALL), "a tar archive", "tar xf {file}"),
    (re.compile(rb"PK\x03\x04"), "a zip archive", "unzip {file}"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "packed by zstd", "zstd -d {file}"),
    (re.compile(rb"\xfd7zXZ"), "packed by xz", "xz -d {file}"),
    (re.compile(rb"BZh\d"), "packed by bzip2", "bzip2 -d {file}"),
)
_STATS: Final = re.compile(
    rb"^Processing \[.*\] with \[|^ \*\* [^\n]{0,99}?(?:Summary|Trace)[^\n]{0,99}? \(\w{1,40}\):"
    rb'|^"?Start \(ns\)"?,"?Duration|"?Time ?\(%\)"?[\s,]+"?Total Time'
    rb'|\[\s*\{\s*"Time \(%\)" ?:',
    re.MULTILINE,
)
_PAGE: Final = re.compile(rb"\s*<(?:!doctype html|html)\b", re.IGNORECASE)
_TEXT_TOOLS: Final = frozenset({"ncu", "nvprof"})
_TEXTS: Final = (
    (
        "nvprof",
        re.compile(rb'^"?==\d+== |^"Type","Time\(%\)"|^"Device","Kernel","Inv', re.MULTILINE),
    ),
    (
        "ncu",
        re.compile(rb'^==PROF== |^"ID","Process ID"|^"Process ID","Process Name"', re.MULTILINE),
    ),
    ("kineto", re.compile(rb'^\s*\{\s*"|"traceEvents"\s*:|^\s*\[\s*\{')),
)


def read(
    tool: str, paths: Sequence[Path], *, version: str = "", controls: Note | None = None
) -> Profile:
    """Read the files of one tool, with quantities; several passes of ncu or nvprof are merged.

    `version` and `controls` (cache and clock control) supply what the file does not record.

    Raises ConfigError for an unknown tool, or for several files of a tool with one; ProfileError
    for a file that cannot be trusted or is another tool's, and for passes whose launches differ.
    """
    if tool not in READERS:
        raise ConfigError(
            f"unknown profiler {tool!r}", hint=f"choose one of {', '.join(sorted(READERS))}"
        )
    if len(paths) != 1 and not (paths and tool in SEVERAL):
        raise ConfigError(
            f"{len(paths)} files for one profile of {tool}",
            hint="import one file at a time; each gets its own name",
        )
    for path in paths:
        check(tool, path)
    merged = _with_nameless(_merge([_reader(tool)(path) for path in paths]))
    notes = tuple(
        controls if controls and note == _CONTROLS_UNKNOWN else note for note in merged.notes
    )
    profile = replace(merged, version=version or merged.version, notes=notes)
    return validate(with_quantities(profile))


def validate(profile: Profile) -> Profile:
    """Return the profile.

    Raises ProfileError for an impossible number: negative, infinite, or a minimum above a maximum.
    """
    why = next(impossible(profile), None)
    if why is not None:
        raise refusal(", ".join(profile.files), why=why)
    return profile


def _with_nameless(profile: Profile) -> Profile:
    """Return the profile with a note on launches whose kernel was not recorded."""
    lost = sum(kernel.calls for kernel in profile.kernels if is_nameless(kernel.name))
    notes = (Note(kind="nameless-launches", values={"launches": lost}),) * bool(lost)
    return replace(profile, notes=(*profile.notes, *notes))


def check(tool: str, path: Path) -> None:
    """Raise ProfileError for a file of another tool, too large, or only partly copied.

    Only the beginning is read.
    """
    is_text = tool in _TEXT_TOOLS and not _by_name(path)
    writer = recognise(path, most=PRINTED_BYTES if is_text else None)
    if writer and writer != tool:
        raise refusal(
            path.name,
            why=f"this is {_KINDS[writer]}, not {_KINDS[tool]}",
            hint=f"use `envcompare import {writer}`",
        )
    if is_hollow(path):
        why = "nearly all of it are holes, which nothing was written to: it was not copied whole"
        raise refusal(path.name, why=why)


def _reader(tool: str) -> Callable[[Path], Profile]:
    reader: Callable[[Path], Profile] = import_module(READERS[tool]).read
    return reader


def recognise(path: Path, *, most: int | None = None) -> str:
    """Return nsys, ncu, kineto or nvprof, or an empty string for an unknown file.

    `most` is in bytes. Raises ProfileError when the file cannot be opened, is larger than `most`,
    or is something else in its place: a repository pointer, zeros, an archive, a web page, or text
    in an encoding that the reader does not support.
    """
    head = first_bytes(path, _HEAD_BYTES, most=most)
    plain = _plain(head)
    _refuse_placeholder(path.name, head, plain)
    tool = _by_name(path) or _by_content(plain)
    if tool in {"", "kineto"} and _STATS.search(plain):
        why = "it is the output of `nsys stats`, which has neither launch order nor busy time"
        hint = "import the report, or: nsys export --type sqlite -o OUT.sqlite REPORT.nsys-rep"
        raise refusal(path.name, why=why, hint=hint)
    if tool not in _TEXT_TOOLS and encoding_of(head).startswith("utf-16"):
        raise refusal(
            path.name,
            why="the file is UTF-16, which a PowerShell redirect writes; this format must be UTF-8",
            hint=f"iconv -f UTF-16 -t UTF-8 {path.name} > NEW, and import that",
        )
    return tool


def _refuse_placeholder(name: str, head: bytes, plain: bytes) -> None:
    """Refuse a repository pointer, a web page, zeros or an archive in place of the file.

    `head` is the start of the file, `plain` the same unpacked.
    """
    for pattern, form, command in _ARCHIVES:
        if pattern.match(plain):
            hint = f"{command.format(file=name)}, then import the files that come out"
            raise refusal(name, why=f"it is {form}", hint=hint)
    for pattern, keeper, command in _POINTERS:
        if pattern.match(head):
            size = re.search(rb"^size (\d+)$", head, re.MULTILINE)
            length = f" ({int(size[1]):,} bytes)" if size else ""
            why = f"it is a {keeper} pointer: the file itself{length} was not fetched"
            raise refusal(name, why=why, hint=f"{command.format(file=name)}, then import it again")
    if len(head) == _HEAD_BYTES and not any(head):
        why = f"its first {_HEAD_BYTES >> 20} MiB are zero bytes: the copy is incomplete"
        raise refusal(name, why=why)
    if _PAGE.match(head):
        why = "it is a web page, not the file itself"
        raise refusal(name, why=why, hint="download the raw file, and import that")


def _by_name(path: Path) -> str:
    endings = {".nsys-rep": "nsys", ".qdrep": "nsys", ".ncu-rep": "ncu"}
    return endings.get(path.suffix.lower(), "")


def _plain(head: bytes) -> bytes:
    """Return the head unpacked if it is gzip, and as UTF-8 if it is UTF-16.

    Data that cannot be unpacked gives empty bytes.
    """
    encoding = encoding_of(head)
    if encoding.startswith("utf-16"):
        return head.decode(encoding, "ignore").encode()
    if not head.startswith(GZIP):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""


def _by_content(head: bytes) -> str:
    if head.startswith(SQLITE):
        # Both write SQLite with the same table names; only nsys keeps strings in `StringIds`.
        return "nvprof" if b"StringTable" in head and b"StringIds" not in head else "nsys"
    return next((tool for tool, pattern in _TEXTS if pattern.search(head)), "")


def _merge(profiles: Sequence[Profile]) -> Profile:
    """Merge the passes over one program; raises ProfileError if their launches differ.

    Launches are matched by order if all files record it, else by kernel and number of calls.
    Times and repeated metrics come from the first pass that has them.
    """
    first = profiles[0]
    if len(profiles) == 1:
        return first
    timed = next((profile for profile in profiles if profile.has_time), first)
    _refuse_repeated(profiles)
    for other in profiles:
        if other is not timed:
            _refuse_other_launches(timed, other)
    merged = [
        {_shape(kernel): kernel for kernel in profile.kernels}
        for profile in profiles
        if profile is not timed
    ]
    kernels = tuple(
        _join_metrics(kernel, [kernels[_shape(kernel)] for kernels in merged])
        for kernel in timed.kernels
    )
    return replace(
        timed,
        format=" + ".join(dict.fromkeys(profile.format for profile in profiles)),
        pages=tuple(page for profile in profiles for page in profile.pages),
        files=tuple(name for profile in profiles for name in profile.files),
        devices=_devices(profiles),
        kernels=kernels,
        notes=_merged_notes(profiles, has_time=timed.has_time),
        quantities=(),
    )


def _refuse_repeated(profiles: Sequence[Profile]) -> None:
    """Refuse a file that adds no counter, such as one from another process or rank."""
    known, has_time = set[str](), False
    for profile in profiles:
        metrics = {name for kernel in profile.kernels for name in kernel.metrics}
        if not metrics - known and (has_time or not profile.has_time):
            raise refusal(
                " and ".join(name for each in profiles for name in each.files),
                why=f"{profile.files[0]} adds no counter: it is not a further pass of the same run",
                hint="import each process or rank as a separate environment: one call for each",
            )
        known |= metrics
        has_time = has_time or profile.has_time


def _join_metrics(kernel: Kernel, others: Sequence[Kernel]) -> Kernel:
    metrics = dict(kernel.metrics)
    for other in others:
        metrics = other.metrics | metrics
    return replace(kernel, metrics=metrics)


def _devices(profiles: Sequence[Profile]) -> tuple[Device, ...]:
    """Return each GPU once; a pass that records only the capability adds no named GPU twice."""
    known = max(
        (profile.devices for profile in profiles),
        key=lambda devices: sum(device.multiprocessors or 0 for device in devices),
    )
    capabilities = {device.compute_capability for device in known}
    others = (device for profile in profiles for device in profile.devices)
    added = (device for device in others if device.compute_capability not in capabilities)
    return tuple(dict.fromkeys((*known, *added)))


def _merged_notes(profiles: Sequence[Profile], *, has_time: bool) -> tuple[Note, ...]:
    """Return each note once, without the note on missing times if any pass has times."""
    notes: list[Note] = []
    for note in (note for profile in profiles for note in profile.notes):
        if note not in notes and not (has_time and note == _NO_TIME):
            notes.append(note)
    return tuple(notes)


def _refuse_other_launches(timed: Profile, other: Profile) -> None:
    """Refuse two passes whose launches or launch order differ."""
    names = f"{timed.files[0]} and {other.files[0]}"
    hint = (
        "profile the same steps of the same program in both passes; import profiles of other "
        "launches separately: one call for each"
    )
    if timed.sequence and other.sequence:
        pairs = zip(_launch_shapes(timed), _launch_shapes(other), strict=False)
        place = next((n for n, (left, right) in enumerate(pairs) if left != right), None)
        if place is not None:
            left, right = _launch_shapes(timed)[place], _launch_shapes(other)[place]
            why = f"launch {place} is {_label(left)} in one and {_label(right)} in the other"
            raise refusal(names, why=why, hint=hint)
    ours, theirs = _calls(timed), _calls(other)
    if len(ours) != len(timed.kernels) or len(theirs) != len(other.kernels):
        why = "a kernel of one name and shape is listed twice, so passes cannot be matched"
        raise refusal(names, why=why, hint=hint)
    if ours != theirs:
        counts = f"{sum(ours.values())} launches of {len(ours)} kernels"
        why = f"{counts} in one, {sum(theirs.values())} of {len(theirs)} in the other"
        different = next(
            shape for shape in {**ours, **theirs} if ours.get(shape) != theirs.get(shape)
        )
        raise refusal(names, why=f"{why}; {different[0]} differs", hint=hint)


def _label(shape: Shape) -> str:
    name, grid, block = shape
    return f"{name} (grid {grid}, block {block})"


def _launch_shapes(profile: Profile) -> list[Shape]:
    return [_shape(profile.kernels[place]) for place in profile.sequence]


def _calls(profile: Profile) -> dict[Shape, int]:
    return {_shape(kernel): kernel.calls for kernel in profile.kernels}


def _shape(kernel: Kernel) -> Shape:
    return kernel.name, kernel.grid, kernel.block
