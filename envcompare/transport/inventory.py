"""The hosts that a configuration file describes, and what stands for several of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from envcompare.errors import ConfigError

_GROUP, _TAG = "@", "tag:"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHost:
    """A host of the file: where it is reached, by its own name unless said, and its tags."""

    address: str
    tags: tuple[str, ...] = ()
    group: str = ""  # that it is compared in; empty: in none


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The hosts of the file by name, and its groups: names, addresses and `tag:NAME`."""

    hosts: Mapping[str, KnownHost] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def address(self, name: str) -> str:
        """Return where a host is reached; what the file does not name is an address itself."""
        return self.hosts[name].address if name in self.hosts else name

    def members(self, item: str, place: str) -> tuple[str, ...] | None:
        """Return the hosts that `@GROUP` or `tag:TAG` stands for, None where it is a host.

        Raises ConfigError for a group or tag that the file does not have, and for an empty group.
        """
        if item.startswith(_GROUP):
            return self._of_group(item.removeprefix(_GROUP), place)
        if item.startswith(_TAG):
            return self._tagged(item.removeprefix(_TAG), place)
        return None

    def _of_group(self, name: str, place: str) -> tuple[str, ...]:
        if name not in self.groups:
            raise _unknown("group", name, place, self.groups)
        members = tuple(
            host
            for item in self.groups[name]
            for host in (
                self._tagged(item.removeprefix(_TAG), f"the group {name}")
                if item.startswith(_TAG)
                else (item,)
            )
        )
        if not members:
            raise ConfigError(
                f"{place}: the group '{name}' has no hosts",
                hint=f'name hosts in it, as in [groups] {name} = ["gpu01", "gpu02"]',
            )
        return members

    def _tagged(self, tag: str, place: str) -> tuple[str, ...]:
        members = tuple(name for name, host in self.hosts.items() if tag in host.tags)
        if not members:
            tags = dict.fromkeys(tag for host in self.hosts.values() for tag in host.tags)
            raise _unknown("tag", tag, place, tags)
        return members


_EXAMPLES = {
    "group": 'write it into the configuration file, as in [groups] nightly = ["gpu01", "gpu02"]',
    "tag": 'write it into the configuration file, as in [hosts.gpu01] tags = ["a100"]',
}


def _unknown(kind: str, name: str, place: str, known: Iterable[str]) -> ConfigError:
    names = tuple(known)
    near = difflib.get_close_matches(name, names, n=1)
    listed = ", ".join(names)
    return ConfigError(
        f"{place}: there is no {kind} '{name}'",
        details=f"known: {listed}" if names else f"the configuration file has no {kind}s",
        hint=f"did you mean '{near[0]}'?" if near else _EXAMPLES[kind],
    )
