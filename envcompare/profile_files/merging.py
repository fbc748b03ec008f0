"""Several passes over the same launches as one profile: their counters side by side."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from envcompare.profile_files.activity import Shape
from envcompare.profile_files.rawfiles import refusal
from envcompare.run_folder.profiles import Device, Kernel, Note, Profile

_NO_TIME = Note(kind="no-time")


def merge(profiles: Sequence[Profile]) -> Profile:
    """Return passes over one program as one profile; raises ProfileError where launches differ.

    Launches are matched by their order where all files tell it, else by kernel and number of
    calls. Time, and a metric that several passes hold, come from the first pass that has them.
    """
    first = profiles[0]
    if len(profiles) == 1:
        return first
    timed = next((profile for profile in profiles if profile.has_time), first)
    for other in profiles:
        if other is not timed:
            _refuse_other_launches(timed, other)
    merged = [_by_shape(profile) for profile in profiles if profile is not timed]
    kernels = tuple(
        _joined(kernel, [kernels[_shape(kernel)] for kernels in merged]) for kernel in timed.kernels
    )
    return replace(
        timed,
        format=" + ".join(dict.fromkeys(profile.format for profile in profiles)),
        pages=tuple(page for profile in profiles for page in profile.pages),
        files=tuple(name for profile in profiles for name in profile.files),
        devices=_devices(profiles),
        kernels=kernels,
        notes=_notes(profiles, has_time=timed.has_time),
        quantities=(),
    )


def _joined(kernel: Kernel, others: Sequence[Kernel]) -> Kernel:
    metrics = dict(kernel.metrics)
    for other in others:
        metrics = other.metrics | metrics
    return replace(kernel, metrics=metrics)


def _devices(profiles: Sequence[Profile]) -> tuple[Device, ...]:
    """Return each GPU once: a pass that tells the capability alone adds none to one with names."""
    known = max(
        (profile.devices for profile in profiles),
        key=lambda devices: sum(device.multiprocessors or 0 for device in devices),
    )
    capabilities = {device.compute_capability for device in known}
    others = (device for profile in profiles for device in profile.devices)
    added = (device for device in others if device.compute_capability not in capabilities)
    return tuple(dict.fromkeys((*known, *added)))


def _notes(profiles: Sequence[Profile], *, has_time: bool) -> tuple[Note, ...]:
    """Return each note once; where one pass has times, none says that they are missing."""
    notes: list[Note] = []
    for note in (note for profile in profiles for note in profile.notes):
        if note not in notes and not (has_time and note == _NO_TIME):
            notes.append(note)
    return tuple(notes)


def _refuse_other_launches(timed: Profile, other: Profile) -> None:
    """Refuse two passes that do not hold the same launches in the same order."""
    names = f"{timed.files[0]} and {other.files[0]}"
    hint = (
        "profile the same steps of the same program in both passes; what is of other launches, "
        "import apart: one call for each"
    )
    if timed.sequence and other.sequence:
        pairs = zip(_launched(timed), _launched(other), strict=False)
        place = next((n for n, (left, right) in enumerate(pairs) if left != right), None)
        if place is not None:
            left, right = _launched(timed)[place], _launched(other)[place]
            why = f"launch {place} is {_told(left)} in one and {_told(right)} in the other"
            raise refusal(names, why=why, hint=hint)
    ours, theirs = _calls(timed), _calls(other)
    if len(ours) != len(timed.kernels) or len(theirs) != len(other.kernels):
        why = "kernels of one name and shape stand there twice, so passes cannot be matched"
        raise refusal(names, why=why, hint=hint)
    if ours != theirs:
        told = f"{sum(ours.values())} launches of {len(ours)} kernels"
        why = f"{told} in one, {sum(theirs.values())} of {len(theirs)} in the other"
        different = next(
            shape for shape in {**ours, **theirs} if ours.get(shape) != theirs.get(shape)
        )
        raise refusal(names, why=f"{why}; {different[0]} differs", hint=hint)


def _told(shape: Shape) -> str:
    name, grid, block = shape
    return f"{name} (grid {grid}, block {block})"


def _launched(profile: Profile) -> list[Shape]:
    return [_shape(profile.kernels[place]) for place in profile.sequence]


def _calls(profile: Profile) -> dict[Shape, int]:
    return {_shape(kernel): kernel.calls for kernel in profile.kernels}


def _by_shape(profile: Profile) -> dict[Shape, Kernel]:
    return {_shape(kernel): kernel for kernel in profile.kernels}


def _shape(kernel: Kernel) -> Shape:
    return kernel.name, kernel.grid, kernel.block
