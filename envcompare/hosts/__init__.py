"""Hosts: how each is got, opened and held for a run; here, the arms that are ready on one."""

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
    mismatch: StackError | None = None  # what its proof is at odds with, where that is allowed
    has_pipes: bool | None = None  # of the host, in place of stdin; None: not tried, or no need

    @property
    def gpu(self) -> Gpu:
        """Return how the arm reaches the GPU, by the software it has."""
        return self.check.gpu.with_host_files if self.arm.stack == "host" else self.check.gpu

    @property
    def engine_version(self) -> dict[str, Scalar]:
        """Return `ENVIRONMENT.version`, of what isolates the arm; empty where it is not known."""
        version = self.check.version
        return {f"{self.arm.environment}.version": version} if version else {}

    @property
    def way_of_requests(self) -> dict[str, FingerprintValue]:
        """Return `engine.requests` where requests pass through the client of an engine."""
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
    """Return as what the software of the stack `image` is made for the arms, each kind once."""
    made = (arm for arm in experiment.arms if is_of_wheels(arm))
    return tuple(dict.fromkeys(arm.traits.made_as for arm in made))


def is_of_wheels(arm: Arm | ArmRecord) -> bool:
    """Say whether the software of an arm is made of the wheels that its host gets."""
    return arm.stack == "image" and not arm.reference


def stack_options(experiment: Experiment) -> Options:
    """Return what the experiment asks of the software."""
    # what a workload of the user's own imports is known only once it runs
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
