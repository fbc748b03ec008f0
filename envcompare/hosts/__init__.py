"""Hosts: get, open and hold each for a run; this file: the arms that are ready on one."""

from __future__ import annotations

from dataclasses import dataclass

from envcompare.config.arms import Arm, SoftwareKind
from envcompare.config.experiment import Experiment
from envcompare.environments import Check, Gpu
from envcompare.errors import StackError
from envcompare.run_folder.records import ArmRecord, FingerprintValue, Scalar
from envcompare.stack import Options, Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyArm:
    """An arm that is usable on a host."""

    arm: ArmRecord
    prepared: Prepared
    check: Check
    mismatch: StackError | None = None  # how it contradicts its proof, if that is allowed
    has_pipes: bool | None = None  # of the host, instead of stdin; None: not tried, or not needed

    @property
    def gpu(self) -> Gpu:
        """Return how the arm's software reaches the GPU."""
        return self.check.gpu.with_host_files if self.arm.stack == "host" else self.check.gpu

    @property
    def engine_version(self) -> dict[str, Scalar]:
        """Return `ENVIRONMENT.version`, of what isolates the arm; empty if unknown."""
        version = self.check.version
        return {f"{self.arm.environment}.version": version} if version else {}

    @property
    def way_of_requests(self) -> dict[str, FingerprintValue]:
        """Return `engine.requests` if requests pass through the client of an engine."""
        return {"engine.requests": "through its client"} if self.has_pipes is False else {}

    @property
    def installed(self) -> dict[str, FingerprintValue]:
        """Return what is installed in parts, as far as it was hashed."""
        parts = {
            "site_packages.parts": self.prepared.parts,
            "site_packages.changed": self.prepared.changed,
        }
        return {key: value for key, value in parts.items() if value}


def kinds_of_software(experiment: Experiment) -> tuple[SoftwareKind, ...]:
    """Return the kinds of software that the stack `image` is built as, each once."""
    made = (arm for arm in experiment.arms if is_of_wheels(arm))
    return tuple(dict.fromkeys(arm.traits.made_as for arm in made))


def is_of_wheels(arm: Arm | ArmRecord) -> bool:
    """Return whether the software of an arm is built from the wheels chosen for its host."""
    return arm.stack == "image" and not arm.reference


def stack_options(experiment: Experiment) -> Options:
    """Return what the experiment asks of the software."""
    # What the user's own workload imports is known only once it runs.
    is_bundled = any(w.path is None and w.program is None for w in experiment.workloads)
    return Options(
        python=experiment.python or "",
        base_image=experiment.base_image,
        variant=experiment.variant,
        sif_compression=experiment.sif_compression,
        vm_python=experiment.vm_python,
        host_python=experiment.host_python,
        host_imports=("torch",) if is_bundled else (),
    )
