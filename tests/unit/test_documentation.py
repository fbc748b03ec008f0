"""The documents hold together: links lead somewhere, and commands have the options shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from envcompare import cli
from envcompare.gpu import HostGpu, HostGpus
from envcompare.stack import choose

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *ROOT.glob("CONTRIBUTING.md"),
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "results", "workloads")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
GPU_ROW = re.compile(
    r"^\| (\w+)[^|]* \| (\d)\.(\d) \|[^|]*\| (\S+), CUDA (\S+) \| (\S+), CUDA (\S+) \|$",
    re.MULTILINE,
)
FENCE = re.compile(r"^```(?:sh|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


ANCHORED = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(page.read_text("utf-8"))
    plain = (re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", one).lower() for one in headings)
    return {re.sub(r"[^\w\- ]", "", one).replace(" ", "-") for one in plain}


def names(pages: list[Path]) -> list[str]:
    """Return how the pages are called in the checkout."""
    return [str(page.relative_to(ROOT)) for page in pages]


def commands(page: Path) -> list[list[str]]:
    """Return the words of each call of envcompare in the page's shell and YAML blocks."""
    blocks = "\n".join(FENCE.findall(page.read_text("utf-8"))).replace("\\\n", " ")
    calls = [call.strip() for line in blocks.splitlines() for call in line.split("&&")]
    words = [shlex.split(call.removeprefix("- run: "), comments=True) for call in calls]
    return [call[1:] for call in words if call[:1] == ["envcompare"]]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    """A link of a document to another file of the checkout names one that is there."""
    links = [link for link in LINK.findall(page.read_text("utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    anchored = [one for one in ANCHORED.findall(page.read_text("utf-8")) if "://" not in one[0]]
    lost = [
        (link, anchor)
        for link, anchor in anchored
        if anchor not in anchors(page.parent / link if link else page)
    ]
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_commands_have_the_options_that_are_shown(page: Path) -> None:
    """A command in a document names a subcommand and options that envcompare has."""
    for words in commands(page):
        if words[0].startswith("-"):
            assert words[0] in {"--help", "--version"}, words
            continue
        command = cli.app.get_command(click.Context(cli.app), words[0])
        assert command is not None, words
        known = {"--help"} | {flag for option in command.params for flag in option.opts}
        known |= {flag for option in command.params for flag in option.secondary_opts}
        shown = {word.split("=")[0] for word in words[1:] if word.startswith("--")}
        assert shown - known == set(), words


def test_the_page_of_google_cloud_names_the_pytorch_that_is_chosen() -> None:
    """For each GPU and driver of its table."""
    rows = GPU_ROW.findall((ROOT / "docs" / "guide" / "gcp.md").read_text("utf-8"))
    assert len(rows) >= 4
    for name, major, minor, *shown in rows:
        gpu = HostGpu(name=name, capability=(int(major), int(minor)))
        for driver, (release, cuda) in zip(
            ("550.90.07", "570.86.10", "580.65.06"),
            (shown[:2], shown[:2], shown[2:]),
            strict=True,
        ):
            gpus = HostGpus(driver=driver, on_bus=1, gpus=(gpu,))
            tier = choose("auto", gpus, python="3.10", host="gpu1").tier
            assert (tier.torch, "{}.{}".format(*tier.cuda)) == (release, cuda), (name, driver)


def test_the_readme_is_short() -> None:
    """What takes longer to say stands in the guide."""
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 160
