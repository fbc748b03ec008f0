"""Add up how long the tests of a JUnit file took, by function: durations.py FILE.

Every run of `script/test` writes build/tests.xml; `tests/durations.csv` is of the last whole run of
`.ci/run` that was kept.
"""

from __future__ import annotations

import csv
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict


def main() -> None:
    """Print a line for each test function, the longest first: all its cases, and their longest."""
    cases: dict[str, list[float]] = defaultdict(list)
    for case in ET.parse(sys.argv[1]).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name', '').partition('[')[0]}"
        cases[name].append(float(case.get("time", 0)))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("test", "cases", "seconds", "longest_s"))
    for name, times in sorted(cases.items(), key=lambda one: (-sum(one[1]), one[0])):
        writer.writerow((name, len(times), f"{sum(times):.2f}", f"{max(times):.2f}"))


if __name__ == "__main__":
    main()
