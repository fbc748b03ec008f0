"""The stack `host`: the interpreter and packages that a plain login on the host has."""

from __future__ import annotations

import json

from envcompare.errors import UnusableError
from envcompare.stack import Prepared
from envcompare.stack.cache import shell
from envcompare.transport import Transport

DEFAULT_PYTHON = "python3"
# A login shell, since that is where a user's PATH, conda or modules come from.
_ASK = """
exec "${SHELL:-sh}" -lc 'exec "$0" -c "$1"' "$1" "$2"
"""
_DESCRIBE = """
import json, sys, torch
version = sys.version.split()[0]
print(json.dumps({"path": sys.executable, "version": version, "torch": torch.__version__}))
"""


def prepare_host(transport: Transport, *, python: str | None) -> Prepared:
    """Return the host's own interpreter; raises UnusableError when it cannot import torch."""
    asked = python or DEFAULT_PYTHON
    result = shell(transport, _ASK, asked, _DESCRIBE)
    lines = result.stdout.strip().splitlines()
    if not result.succeeded or not lines:
        raise UnusableError(
            f"the host's own {asked} on {transport.name} cannot be used",
            details=result.tail(1) or "it printed nothing",
            hint="name an interpreter that imports torch with --host-python",
        )
    found = json.loads(lines[-1])
    identity = (("stack", "host"), ("python", found["version"]), ("torch", found["torch"]))
    return Prepared(interpreter=found["path"], identity=identity)
