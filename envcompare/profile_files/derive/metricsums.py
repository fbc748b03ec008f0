"""Sum or average the metrics of all kernels; quantities are derived from these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from envcompare.gpu import ncu_name, tensor_pipes
from envcompare.run_folder.profiles import Kernel, Profile, Quantity, Rule
from envcompare.text import counted, counted_kernels

# NVIDIA's table maps this to a ratio of 0 to 32, but nvprof prints percent
_PER_CENT = {
    "warp_execution_efficiency": "smsp__thread_inst_executed_per_inst_executed.pct",
}
_FRACTIONS = frozenset({"achieved_occupancy"})  # nvprof: 0 to 1, Nsight Compute: percent


def launch_text(kernels: Sequence[Kernel]) -> str:
    """Return the number of launches and kernels, such as "9 launches of 2 kernels"."""
    launches = sum(kernel.calls for kernel in kernels)
    names = len({kernel.name for kernel in kernels})
    return " of ".join(
        (counted(launches, "launch", "launches"), counted_kernels(names, len(kernels)))
    )


@dataclass(frozen=True, slots=True)
class Total:
    """A sum or mean over all kernels, or the reason why it is unknown."""

    value: float | None = None
    reason: str = ""
    is_partial: bool = False  # some kernels have it


def sum_of(totals: Iterable[Total]) -> Total:
    """Return the sum of sums; unknown if one is unknown."""
    known = list(totals)
    lacking = next((total for total in known if total.value is None), None)
    return lacking or Total(sum(total.value or 0.0 for total in known))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSums:
    """A profile with its metrics, their sums and means."""

    profile: Profile
    names: frozenset[str]
    kernel_ns: float | None
    source: str
    scope: str

    @classmethod
    def of(cls, profile: Profile) -> MetricSums:
        """Return the sums of a profile; nvprof metrics get the names of Nsight Compute."""
        if profile.tool == "nvprof":
            profile = replace(
                profile, kernels=tuple(_with_ncu_names(kernel) for kernel in profile.kernels)
            )
        times = [kernel.total_ns for kernel in profile.kernels]
        known = [time for time in times if time is not None]
        is_timed = profile.has_time and bool(times) and len(known) == len(times)
        return cls(
            profile=profile,
            names=frozenset(name for kernel in profile.kernels for name in kernel.metrics),
            kernel_ns=sum(known) if is_timed else None,
            source=f"{profile.tool} {profile.version}".strip(),
            scope=launch_text(profile.kernels),
        )

    @property
    def chip(self) -> str:
        """Return the chip if all GPUs of the profile share one; empty if unknown."""
        chips = {device.chip for device in self.profile.devices}
        return chips.pop() if len(chips) == 1 else ""

    @property
    def pipes(self) -> tuple[str, ...]:
        """Return the counters of all tensor pipes of the GPUs; empty if unknown."""
        return tensor_pipes(self.profile.devices)

    @property
    def why_no_time(self) -> str:
        """Return why kernels have no time."""
        if not self.profile.has_time:
            return "the collected counters change kernel times"
        return "the file does not record the time of every kernel"

    def has(self, starts: tuple[str, ...]) -> bool:
        """Return whether any metric with one of these prefixes was collected."""
        return any(name.startswith(starts) for name in self.names)

    def total(self, metric: str) -> Total:
        """Return the sum of a metric over all kernels; unknown if a kernel lacks it."""
        values = self._values(metric)
        return values if isinstance(values, Total) else Total(sum(values))

    def _values(self, metric: str) -> list[float] | Total:
        """Return the metric of each kernel, or the reason if one lacks it."""
        kernels = self.profile.kernels
        values = [kernel.metrics[metric] for kernel in kernels if metric in kernel.metrics]
        if not values:
            return Total(reason=f"{metric} was not collected")
        lacking = len(kernels) - len(values)
        if lacking:
            why = f"{metric} is missing for {lacking} of {len(kernels)} kernels"
            return Total(reason=why, is_partial=True)
        return values

    def first_total(self, metrics: Iterable[str]) -> Total:
        """Return the sum of the first metric that is complete, else the reason."""
        totals = [self.total(metric) for metric in metrics]
        known = next((total for total in totals if total.value is not None), None)
        partial = next((total for total in totals if total.is_partial), None)
        return known or partial or totals[0]

    def mean(self, metric: str) -> Total:
        """Return the mean of a rate, weighted by kernel time."""
        values = self._values(metric)
        if isinstance(values, Total) and not values.is_partial:
            return values
        if isinstance(values, list) and len(values) == 1:
            return Total(values[0])
        if not self.kernel_ns:
            return Total(reason=f"rates are weighted by time, and {self.why_no_time}")
        if isinstance(values, Total):
            return values
        pairs = zip(values, self.profile.kernels, strict=True)
        weighted = sum(value * (kernel.total_ns or 0.0) for value, kernel in pairs)
        return Total(weighted / self.kernel_ns)

    def quantity(  # noqa: PLR0913 — the parts of a quantity
        self, name: str, unit: str, rule: Rule, total: Total, *, scope: str = "", reason: str = ""
    ) -> Quantity:
        """Return a total as a quantity; an unknown total is missing, with its own reason.

        `reason` is a caveat for a known value.
        """
        is_known = total.value is not None
        return Quantity(
            name=name,
            value=total.value,
            unit=unit,
            rule=rule,
            source=self.source,
            scope=scope or self.scope,
            status="ok" if is_known else "missing",
            reason=reason if is_known else total.reason,
        )


def _with_ncu_names(kernel: Kernel) -> Kernel:
    metrics: dict[str, float] = {}
    for name, value in kernel.metrics.items():
        known = _PER_CENT.get(name) or ncu_name(name) or name
        metrics[known] = 100 * value if name in _FRACTIONS else value
    return replace(kernel, metrics=metrics)
