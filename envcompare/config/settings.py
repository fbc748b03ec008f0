"""Flags and TOML become one frozen experiment; each error names file, key and remedy."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomli_w

from envcompare.config.programs import WorkloadTable, table_keys
from envcompare.errors import ConfigError
from envcompare.run_folder.records import ProfileChoice, Scalar

Preset = Literal["quick", "default", "strict"]
Compression = Literal["zstd", "gzip", "none", "sandbox"]
Generation = Literal["auto", "fork", "rebuild"]
Device = Literal["auto", "cpu", "cuda"]
Variant = Literal["auto", "cpu", "cuda"]


class Settings(
    msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True
):
    """What flags and file may hold; a key is spelt as its flag, `None` means not given."""

    envs: str | tuple[str, ...] | None = None
    stacks: str | tuple[str, ...] | None = None
    reference: str | None = None
    hosts: str | tuple[str, ...] | None = None
    workloads: str | tuple[str, ...] | dict[str, WorkloadTable] | None = None
    workload: str | tuple[str, ...] | None = None
    set: dict[str, dict[str, Scalar | tuple[Scalar, ...]]] | None = None
    preset: Preset | None = None
    margin: float | None = None
    target: float | None = None
    budget: float | None = None
    seed: int | None = None
    screen: bool | None = None
    threads: int | None = None
    pin: str | tuple[int, ...] | None = None
    generation: Generation | None = None
    device: Device | None = None
    startup: bool | None = None
    cold_start: bool | None = None
    profile: ProfileChoice | None = None
    quiet_gate: bool | None = None
    quiet_pressure: float | None = None
    quiet_load: float | None = None
    stabilise: bool | None = None
    title: str | None = None
    out: str | None = None
    data: str | None = None
    download: bool | None = None
    base_image: str | None = None
    variant: Variant | None = None
    sif_compression: Compression | None = None
    python: str | None = None
    vm_python: str | None = None
    host_python: str | None = None
    allow_mismatch: bool | None = None
    ssh_config: str | None = None
    accept_new_host_keys: bool | None = None
    connect_timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetValues:
    """Margin and target as fractions, budget of a cell in seconds.

    The target is half the margin: at a target of the margin itself, two equal environments would
    end as equivalent in only a fifth to a third of the runs.
    """

    margin: float
    target: float
    budget_s: float
    min_restarts: int


PRESETS: dict[Preset, PresetValues] = {
    "quick": PresetValues(margin=0.05, target=0.025, budget_s=90, min_restarts=4),
    "default": PresetValues(margin=0.02, target=0.01, budget_s=600, min_restarts=4),
    "strict": PresetValues(margin=0.01, target=0.005, budget_s=1800, min_restarts=6),
}

DEFAULTS = Settings(
    envs=("vm", "docker", "singularity"),
    stacks=("image",),
    workloads=("cnn", "rnn"),
    preset="default",
    screen=False,
    threads=1,
    generation="auto",
    device="auto",
    startup=True,
    cold_start=False,
    profile="auto",
    quiet_gate=True,
    quiet_pressure=10.0,
    stabilise=True,
    title="",
    out="results",
    download=False,
    variant="auto",
    sif_compression="zstd",
    python="3.11",
    allow_mismatch=False,
    accept_new_host_keys=False,
    connect_timeout=10.0,
)


def read_settings(path: Path) -> Settings:
    """Read a TOML configuration file.

    Raises ConfigError naming file, key and remedy for unreadable TOML, unknown keys, wrong types.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"the configuration file {path} cannot be read",
            details=str(error),
            hint="check the path, and the TOML syntax at the place named",
        ) from error
    return parse_settings(content, source=str(path))


def parse_settings(content: dict[str, object], *, source: str) -> Settings:
    """Check a table of settings; `source` is named in errors."""
    try:
        return msgspec.convert(content, type=Settings)
    except msgspec.ValidationError as error:
        raise _refused(str(error), content, source) from error


def _refused(message: str, content: dict[str, object], source: str) -> ConfigError:
    what, _, where = message.partition(" - at `$")
    key = where.rstrip("`").lstrip(".")
    if "unknown field" in what:
        unknown = what.split("`")[1]
        key = f"{key}.{unknown}".lstrip(".")
        known = table_keys() if key.startswith("workloads") else known_keys()
        return ConfigError(f"{source}: unknown key `{key}`", hint=closest(unknown, known))
    value = content.get(re.split(r"[.\[]", key)[0])
    return ConfigError(
        f"{source}: the value of `{key}` is of the wrong kind",
        details=f"{what}; found {value!r}",
        hint=f"correct `{key}`; `envcompare run --help` tells what each key holds",
    )


def closest(word: str, known: tuple[str, ...]) -> str:
    """Return a hint that lists the known words, the likeliest first."""
    near = difflib.get_close_matches(word, known, n=1)
    everything = ", ".join(known)
    return f"did you mean `{near[0]}`? Known: {everything}" if near else f"known: {everything}"


def settings_toml(settings: Settings) -> str:
    """Return settings as the text of a configuration file that says the same."""
    content = msgspec.to_builtins(settings)
    return tomli_w.dumps({key: value for key, value in content.items() if value is not None})


def known_keys() -> tuple[str, ...]:
    """Return the keys a configuration file may hold, as spelt there."""
    return tuple(field.encode_name for field in msgspec.structs.fields(Settings))


def merge(*layers: Settings) -> Settings:
    """Lay settings over each other, the first wins; `set` is merged by workload and parameter."""
    merged: dict[str, Any] = {
        field.name: next(
            (value for layer in layers if (value := getattr(layer, field.name)) is not None), None
        )
        for field in msgspec.structs.fields(Settings)
    }
    parameters: dict[str, dict[str, Scalar | tuple[Scalar, ...]]] = {}
    for layer in reversed(layers):
        for workload, values in (layer.set or {}).items():
            parameters[workload] = {**parameters.get(workload, {}), **values}
    merged["set"] = parameters or None
    return Settings(**merged)


def parse_set(items: tuple[str, ...]) -> dict[str, dict[str, Scalar | tuple[Scalar, ...]]]:
    """Parse `--set WORKLOAD.NAME=VALUE[,VALUE…]` items; raises ConfigError naming the item."""
    parsed: dict[str, dict[str, Scalar | tuple[Scalar, ...]]] = {}
    for item in items:
        left, equals, right = item.partition("=")
        workload, dot, name = left.partition(".")
        if not (equals and dot and workload and name and right):
            raise ConfigError(
                f"--set {item} is not understood",
                details="the form is WORKLOAD.NAME=VALUE[,VALUE…]",
                hint="for example --set rnn.hidden=64,128",
            )
        values = tuple(_scalar(text) for text in right.split(","))
        parsed.setdefault(workload, {})[name] = values if len(values) > 1 else values[0]
    return parsed


def _scalar(text: str) -> Scalar:
    text = text.strip()
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def listed(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the items of a comma list or of a TOML array, without blanks."""
    items = value.split(",") if isinstance(value, str) else (value or ())
    return tuple(item.strip() for item in items if item.strip())
