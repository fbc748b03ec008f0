"""NVIDIA's profilers on a host: the programs themselves, and the folders they need around them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from envcompare.command import Command
from envcompare.environments import Check
from envcompare.environments.asking import ask
from envcompare.transport import Transport

ToolName = Literal["nsys", "ncu"]

# What PATH leads to is often a script that picks the newest of several installations, so the
# program itself is looked for: nsys runs from a folder `target-linux-*` alone and wants its parent
# around it, ncu stands under `target` of a folder that also holds the script of that name.
# The first place that has one is taken, there the highest version; $1 stands before every path.
_FIND = r"""
root=$1
newest() { for one; do [ ! -x "$one" ] || printf '%s\n' "$one"; done | sort -V | tail -n 1; }
first() { for one; do [ -z "$one" ] || { printf '%s\n' "$one"; break; }; done; }
on_path() { path=$(command -v "$1") && readlink -f -- "$path"; }
tell() { [ -z "$2" ] || printf '%s\t%s\n' "$1" "$2"; }
options() { grep -oE '(^|[[:space:]])--[a-z][a-z-]+' | sort -u | tr -s '[:space:]' ' '; }
case $(uname -m) in
  x86_64) machine=x64 ;;
  aarch64) machine=a64 ;;
  *) machine=$(uname -m) ;;
esac

nsys=$(on_path nsys)
case $nsys in */target-linux-*/nsys) ;; *) nsys= ;; esac
nsys=$(first "$nsys" \
  "$(newest "$root"/opt/nvidia/nsight-systems*/*/target-linux-*/nsys)" \
  "$(newest "$root"/usr/local/cuda*/nsight-systems*/target-linux-*/nsys)" \
  "$(newest "$root"/usr/lib/nsight-systems/target-linux-*/nsys)")
if [ -n "$nsys" ]; then
  nsys=$(readlink -f -- "$nsys") && parent=$(dirname "$(dirname "$nsys")")
  tell nsys.program "$nsys"
  tell nsys.folder "$parent"
  tell nsys.version "$("$nsys" --version 2>&1 | tail -n 1)"
  tell nsys.importer "$(first "$(newest "$parent"/host-linux-*/QdstrmImporter)" \
    "$(newest "$root"/usr/lib/nsight-systems/host-linux-*/QdstrmImporter)")"
  tell nsys.options "$("$nsys" profile --help 2>&1 | options)"
fi

target() { newest "$1"/target/linux-*"$machine"/ncu; }
inside() { for one; do target "$one"; done | sort -V | tail -n 1; }
ncu=$(on_path ncu)
case $ncu in
  */target/linux-*/ncu) ;;
  ?*) ncu=$(target "$(dirname "$ncu")") ;;
esac
ncu=$(first "$ncu" \
  "$(inside "$root"/opt/nvidia/nsight-compute*/*)" \
  "$(inside "$root"/usr/local/cuda*/nsight-compute*)" \
  "$(inside "$root"/usr/lib/nsight-compute)")
if [ -n "$ncu" ]; then
  ncu=$(readlink -f -- "$ncu") && parent=$(dirname "$(dirname "$(dirname "$ncu")")")
  tell ncu.program "$ncu"
  tell ncu.folder "$parent"
  tell ncu.version "$("$ncu" --version 2>&1 | sed -n 's/^Version //p')"
  tell ncu.options "$("$ncu" --help 2>&1 | options)"
fi
exit 0
"""
_NUMBERS = re.compile(r"\d+(?:\.\d+)+")
_NAMES: dict[ToolName, tuple[str, str]] = {
    "nsys": ("Nsight Systems (nsys)", "nsight-systems"),
    "ncu": ("Nsight Compute (ncu)", "nsight-compute"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One profiler of a host; in a container it is started by the same path."""

    name: ToolName
    program: str
    folder: str  # to be shown as a whole, at the same path
    version: str
    options: tuple[str, ...] = ()  # that it knows, with their dashes
    importer: str = ""  # turns what nsys leaves where it could not into a report; on the host

    @property
    def check(self) -> Check:
        """Return what there is to say of it."""
        return Check(is_usable=True, version=f"{self.version} ({self.program})")

    def knows(self, option: str) -> bool:
        """Tell whether this version has an option."""
        return option in self.options


def find_tools(transport: Transport, root: str = "") -> dict[ToolName, Tool | Check]:
    """Return nsys and ncu of a host, or what to say of one that is not there.

    `root` stands before the places they are looked for in.
    """
    command = Command(argv=("sh", "-c", _FIND, "sh", root))
    hint = "run nsys --version and ncu --version there by hand"
    result = ask(transport, command, what="the search for profilers", hint=hint)
    if isinstance(result, Check):
        return dict.fromkeys(_NAMES, result)
    lines = (line.partition("\t") for line in result.stdout.splitlines())
    facts = {name: value for name, _, value in lines}
    return {name: _tool(name, facts) for name in _NAMES}


def _tool(name: ToolName, facts: dict[str, str]) -> Tool | Check:
    title, package = _NAMES[name]
    program, said = facts.get(f"{name}.program", ""), facts.get(f"{name}.version", "")
    version = _NUMBERS.search(said)
    if not program:
        return Check(
            is_usable=False,
            reason=f"{title} is not installed",
            hint=f"install it from https://developer.nvidia.com/{package}, or, on Debian, "
            f"sudo apt-get install {package} (non-free)",
        )
    if version is None:
        return Check(
            is_usable=False,
            reason=f"{program} does not start: {said or 'it says nothing'}",
            hint=f"run {program} --version there, and install what it misses",
        )
    return Tool(
        name=name,
        program=program,
        folder=facts[f"{name}.folder"],
        version=version[0],
        options=tuple(facts.get(f"{name}.options", "").split()),
        importer=facts.get(f"{name}.importer", ""),
    )
