"""The last look at a profile, whoever wrote the file: no number in it may be impossible."""

from __future__ import annotations

from envcompare.profile_files.refusing import refusal
from envcompare.run_folder.plausible import impossible
from envcompare.run_folder.profiles import Profile


def refuse_impossible(profile: Profile) -> None:
    """Raise ProfileError for a number that is negative or infinite, or a least above a most."""
    why = next(impossible(profile), None)
    if why is not None:
        raise refusal(", ".join(profile.files), why=why)
