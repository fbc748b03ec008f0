"""The subcommands that read files and reach no host: import, list."""

from __future__ import annotations

import shlex
from typing import Any

import click

from envcompare.cli.concluding import command_line, conclude, show_summary
from envcompare.cli.options import IMPORT, taking
from envcompare.console import Display, print_lines


@click.command(name="import")
@taking(IMPORT)
@click.pass_obj
def import_(display: Display, /, **values: Any) -> None:  # noqa: ANN401
    """Put profiler files of any origin into a run folder and compare them; nothing is timed.

    \b
    envcompare import nsys --env vm vm.sqlite            makes a run folder and prints its name
    envcompare import nsys --env docker docker.sqlite --into results/RUN
    envcompare import ncu --env docker dram.csv flops.csv --into results/RUN --steps 20
    envcompare import nvprof --env vm old.log            kineto takes trace.json and .json.gz

    One call adds the files of one environment; the environment that is named first is the
    reference. Files of ncu or nvprof in one call are passes over the same launches; each file of
    nsys or kineto, as of a rank, is a profile of its own. The files must cover the same work in
    each environment; where they do not cover as many steps, say with --steps how many each covers.
    """
    from envcompare.importing import import_files
    from envcompare.importing.place import Request

    done = import_files(Request(**values, command_line=command_line()))
    for line in done.lines:
        display.say(line)
    comparison, report = conclude(done.folder)
    show_summary(comparison, report)
    if done.is_alone:
        into = shlex.quote(str(done.folder.path))
        print_lines([f"next: envcompare import {values['tool']} --env NAME --into {into} FILE…"])


@click.command(name="list")
def list_() -> None:
    """List the bundled workloads with their parameters, and the environments."""
    from envcompare.config.catalogue import catalogue
    from envcompare.environments.registry import ENVIRONMENTS

    lines = ["workloads:"]
    for info in catalogue().values():
        lines.append(f"  {info.name}: {info.summary}")
        parameters = ", ".join(f"{name}={value}" for name, value in info.parameters.items())
        lines.append(f"      --set {info.name}.…: {parameters}")
    lines.append("  --command 'PROGRAM ARG …': any program of your own, timed as a whole process")
    lines += ["environments:", *(f"  {name}" for name in ENVIRONMENTS)]
    print_lines(lines)


COMMANDS = (import_, list_)
