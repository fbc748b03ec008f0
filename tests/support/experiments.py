"""What an experiment of a test may name: environments, and workloads with their parameters."""

from __future__ import annotations

from envcompare.config.workloads import Known, Range, WorkloadInfo
from envcompare.environments.registry import all_traits
from envcompare.run_folder.records import Scalar


def known(
    *environments: str,
    ranges: dict[str, dict[str, Range]] | None = None,
    **workloads: dict[str, Scalar],
) -> Known:
    """Return the names that may be used; each workload with its parameters and their defaults."""
    infos = {
        name: WorkloadInfo(
            name=name,
            summary="",
            parameters=parameters,
            ranges=(ranges or {}).get(name, {}),
            spreads_ranks=name == "ddp",
        )
        for name, parameters in workloads.items()
    }
    return Known(
        environments={name: all_traits()[name] for name in environments or all_traits()},
        workloads=infos,
    )
