"""The command line; the only place that prints results or exits."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from types import TracebackType

import click

from envcompare import bundled
from envcompare.bundled import __version__
from envcompare.cli import measuring, reading
from envcompare.console import Display
from envcompare.errors import (
    ConfigError,
    EnvcompareError,
    InterruptedRunError,
    RunFolderError,
    as_known,
    unexpected,
)
from envcompare.text import masked, visible

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="envcompare")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show progress.")
@click.pass_context
def app(context: click.Context, *, debug: bool, quiet: bool) -> None:
    """Measure whether the same ML work is slower in another environment, by how much, and why.

    \b
    envcompare run --envs vm,docker,singularity          on this machine
    envcompare run --envs vm,docker --hosts me@gpu01     over SSH
    envcompare doctor                                    what works here, and how to fix the rest
    """
    context.obj = Display(is_quiet=quiet)
    context.meta["debug"] = debug


for _part in (measuring, reading):
    for _command in _part.COMMANDS:
        app.add_command(_command)


def main() -> None:
    """Run the command line; print an expected error in three sentences and exit with its code."""
    _have_stdout()
    _have_files()
    _leave_out_slow_imports()
    sys.excepthook = _show_traceback
    threading.excepthook = _report_thread
    try:
        app(standalone_mode=False)
    except EnvcompareError as error:
        if "--debug" in sys.argv:
            raise
        Display().error(error)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        sys.exit(InterruptedRunError.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        _usage_error(error)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        shown = _error_to_show(error)
        Display().error(shown)
        sys.exit(shown.exit_code)


def _show_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print what `--debug` shows, without secrets."""
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write(visible(masked(text)))


def _report_thread(what: threading.ExceptHookArgs) -> None:
    """Report that a thread failed; whatever waits for it ends by its own time limit."""
    if what.exc_value is None:
        return
    if "--debug" in sys.argv:
        _show_traceback(what.exc_type, what.exc_value, what.exc_traceback)
    elif isinstance(what.exc_value, Exception):
        Display().error(as_known(what.exc_value))


def _have_stdout() -> None:
    """Discard results if the caller closed stdout, for which Python has no stream."""
    try:
        os.fstat(1)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 — to the end


def _leave_out_slow_imports() -> None:
    """Save each command that draws the 2 s of importing jsonschema's optional IRI check.

    No chart specification has an IRI. The package comes with cyclonedx-bom.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # None: not there


def _have_files() -> None:
    """Exit if files of the package are missing, such as the rule that masks secrets in errors."""
    try:
        bundled.root()
    except EnvcompareError as error:
        for name, text in error.problem.parts():
            sys.stderr.write(f"{name}: {text}\n")
        sys.exit(error.exit_code)


def _error_to_show(error: Exception) -> EnvcompareError:
    """Return the error to show: an unusable file is not a fault of envcompare."""
    if isinstance(error, MemoryError):
        return RunFolderError(
            "this machine ran out of memory",
            details=f"{error}" or "the files need more than this process may use",
            hint="raise its limit (`ulimit -v`), or use a larger machine",
        )
    if not (isinstance(error, OSError) and error.filename):
        return unexpected(error)
    return RunFolderError(
        f"{os.fsdecode(error.filename)} cannot be used",
        details=str(error.strerror),
        hint="check the path and its permissions",
    )


def _usage_error(error: click.ClickException) -> None:
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else ""
    Display().error(ConfigError(error.format_message(), hint=f"{command or 'envcompare'} --help"))
    sys.exit(ConfigError.exit_code)
