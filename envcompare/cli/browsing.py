"""`ls` and `view`: the runs of a folder, and one of them in a browser."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envcompare.cli.options import PATH
from envcompare.console import print_lines
from envcompare.errors import ConfigError, EnvcompareError, RunFolderError
from envcompare.run_folder import owner_of
from envcompare.text import one_line, visible

if TYPE_CHECKING:
    from envcompare.report import Row, Words
    from envcompare.run_folder.results import RunFolder


@click.command("ls")
@click.argument("parent", type=PATH, metavar="[DIR]", default=Path("results"))
def list_runs(parent: Path) -> None:
    """Show the runs in a folder, the newest first: state, what was compared, and the answer.

    `envcompare status` shows which run holds a host, and `status RUN` how far a run is.
    """
    from envcompare.cli.conclusion import show
    from envcompare.report import Column, Table
    from envcompare.run_folder.results import RunFolder

    if not parent.is_dir():
        hint = "name the folder that holds the runs: envcompare ls DIR"
        raise RunFolderError(f"there is no folder {parent}", hint=hint)
    paths = sorted((path.parent for path in parent.glob("*/run.json")), reverse=True)
    if not paths:
        print_lines([f"no runs in {visible(str(parent))}"])
        return
    rows = tuple(_row(path, RunFolder(path)) for path in paths)
    heads = tuple(Column(head=head) for head in ("run", "state", "reference", "answer"))
    show([Table(label="Runs", columns=heads, rows=rows)])


def _row(path: Path, folder: RunFolder) -> Row:
    from envcompare.analysis.compare import compare_run
    from envcompare.report import Row
    from envcompare.report.wording.headlines import headlines

    cells: tuple[Words, ...]
    try:
        # Asked first: the files of a run that ends meanwhile are then read as they are at its end,
        # or it is said to be measured still.
        is_measured = owner_of(path) is not None
        run = compare_run(folder)
        answers = [f"{headline.arm} {headline.badge}" for headline in headlines(run)]
        ended = "ended" if run.course.is_complete else "interrupted"
        state = "being measured" if is_measured else ended
        cells = (state, visible(run.reference_arm), "; ".join(answers))
    except EnvcompareError as error:
        # The run is of another version, or damaged.
        cells = ("cannot be read", "", one_line(error.brief, most=60))
    return Row(cells=(visible(path.name), *cells))


@click.command()
@click.argument("run_folder", type=PATH, metavar="RUN")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8642,
    show_default=True,
    help="Port on this machine; 0 takes a free one.",
)
@click.option("--open", "is_opened", is_flag=True, help="Open the page in the browser.")
def view(run_folder: Path, *, port: int, is_opened: bool) -> None:
    """Serve a run's page and files to a browser on this machine, until Ctrl-C.

    The printed address is secret. While a run is being measured, the page is redrawn. Over SSH,
    forward the port: ssh -L 8642:127.0.0.1:8642 HOST
    """
    from envcompare.cli.serving import RunServer
    from envcompare.run_folder.results import RunFolder

    folder = RunFolder.open(run_folder)
    try:
        server = RunServer(folder, port)
    except OSError as error:
        if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
            raise
        raise ConfigError(
            f"--port {port} cannot be used: {error.strerror}",
            hint="envcompare view RUN --port 0",
        ) from error
    with server:
        print_lines([f"{server.address} (Ctrl-C ends)"])
        if is_opened and click.launch(server.address):
            print_lines(["the page was not opened: no program to open it was found"])
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


COMMANDS = (list_runs, view)
