"""Two arms with planted facts, and how they differ."""

from __future__ import annotations

from typing import Any

from envcompare.fingerprint.comparing import compare_fingerprints
from envcompare.fingerprint.evidence import ArmsContext
from envcompare.run_folder.records import (
    ArmRecord,
    FactDifference,
    FingerprintRecord,
    FingerprintValue,
)

VM = ArmRecord(id="vm", environment="vm", is_reference=True)
DOCKER = ArmRecord(id="docker", environment="docker")
OWN = ArmRecord(id="new", environment="docker", reference="app:2")
Facts = dict[str, FingerprintValue]


def differences(
    reference: Facts, other: Facts, *, both: Facts | None = None, **seen: Any
) -> dict[str, FactDifference]:
    """Compare vm with another arm, docker unless `arm` says which; `both` is found in each."""
    arm = seen.pop("arm", DOCKER)
    host = seen.pop("host", "local")
    sides = (
        FingerprintRecord(host=host, arm=one.id, facts={**(both or {}), **facts})
        for one, facts in ((VM, reference), (arm, other))
    )
    pair = ArmsContext(arms=(VM, arm), **seen)
    return {one.key: one for one in compare_fingerprints(*sides, pair)}
