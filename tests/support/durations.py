"""Add up how long the tests of a JUnit file took, by function: durations.py FILE.

Every run of `script/test` writes build/tests.xml.
"""

from __future__ import annotations

import csv
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict


def main() -> None:
    """Print the slowest test functions: the sum over their cases, and the longest case."""
    cases: dict[str, list[float]] = defaultdict(list)
    for case in ET.parse(sys.argv[1]).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name', '').partition('[')[0]}"
        cases[name].append(float(case.get("time", 0)))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("test", "cases", "seconds", "longest_s"))
    slowest = sorted(cases.items(), key=lambda item: (-sum(item[1]), item[0]))
    for name, times in slowest[:40]:
        writer.writerow((name, len(times), f"{sum(times):.2f}", f"{max(times):.2f}"))


if __name__ == "__main__":
    main()
