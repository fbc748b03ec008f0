"""What the report says of hosts: their devices, their builds of PyTorch, and how those differ."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path

import msgspec
import pytest
from summaries import markdown, printed

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import HostDifference, RunComparison
from envcompare.analysis.two_runs.changes import compare_runs, read_run
from envcompare.report import markdown as as_markdown
from envcompare.report.page import render
from envcompare.report.sections.cards import summary_cards
from envcompare.report.wording.changewords import change_blocks
from envcompare.report.wording.headlines import headlines
from envcompare.report.wording.methodwords import device_sentences
from envcompare.run_folder.records import Event, FingerprintValue, Scalar
from envcompare.run_folder.results import RunFolder
from runfolders import Arm, Shape, write

HOSTS = ("gpu01", "gpu02")
SHAPE = Shape(
    seed=5,
    hosts=HOSTS,
    arms=(Arm(id="docker", ratio=1.08),),
    restarts=4,
    generations=2,
    rounds=3,
    steps=3,
    launches=2,
)
NEW = {"torch.version": "2.13.0+cu130", "torch.cuda": "13.0", "lock.sha256": "aa" * 32}
OLD = {"torch.version": "2.10.0+cu128", "torch.cuda": "12.8", "lock.sha256": "bb" * 32}
L4 = {"gpu.name": "NVIDIA L4", "gpu.driver": "570.86.10"}
H100 = {"gpu.name": "NVIDIA H100 80GB HBM3", "gpu.driver": "580.65.06"}
CHOICE = "driver 570.86.10 supports CUDA 12, NVIDIA L4 has 8.9: torch 2.10.0 with CUDA 12.8"
DIFFERENT = (
    "The hosts have different builds of PyTorch: torch 2.13.0+cu130 with CUDA 13.0 on gpu01; "
    "torch 2.10.0+cu128 with CUDA 12.8 on gpu02"
)
SHORT = "These cells are from hosts with different builds of PyTorch."


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What is planted of a host: facts of every arm, the device, and what the runner noted.

    The device is empty where no worker tells it.
    """

    facts: dict[str, FingerprintValue]
    device: str = "cuda"
    ready: dict[str, Scalar] | None = None
    wheels: str = ""


NEW_HOST = Host(facts={**NEW, **H100})
OLD_HOST = Host(facts={**OLD, **L4}, wheels=CHOICE)


def made(out: Path, hosts: dict[str, Host], *, shape: Shape = SHAPE) -> RunFolder:
    """Write a run folder whose hosts found these facts around themselves."""
    folder = write(out, replace(shape, hosts=tuple(hosts)))
    for record in folder.read_fingerprints():
        facts = {**record.facts, **hosts[record.host].facts}
        folder.write_fingerprint(msgspec.structs.replace(record, facts=facts))
    events = [
        event for one in folder.read_events().events for event in planted(one, hosts.get(one.host))
    ]
    folder.write_bytes("events.jsonl", msgspec.json.Encoder().encode_lines(events))
    return folder


def planted(event: Event, host: Host | None) -> tuple[Event, ...]:
    """Return an event with what its host is to say, the choice of wheels before `host-ready`."""
    if host is None:
        return (event,)
    if "device" in event.values:
        values = {**event.values, "device": host.device or None}
        return (msgspec.structs.replace(event, values=values),)
    if event.what != "host-ready":
        return (event,)
    wheels = Event(t=event.t, what="wheels", host=event.host, text=host.wheels)
    ready = msgspec.structs.replace(event, values=host.ready or {})
    return (*(wheels,) * bool(host.wheels), ready)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> RunComparison:
    """Return a run on two hosts that got different builds of PyTorch."""
    out = tmp_path_factory.mktemp("mixed")
    return compare_run(made(out, {"gpu01": NEW_HOST, "gpu02": OLD_HOST}))


def text_of(run: RunComparison) -> str:
    """Return the words of the page."""
    words = re.sub(r"<[^>]+>", "", render(run))
    return " ".join(unescape(words).split())


def section(run: RunComparison, anchor: str) -> str:
    """Return the words of one section of the page."""
    html = render(run)
    start = html.index(f'id="{anchor}"')
    words = re.sub(r"<[^>]+>", "", html[start : html.index("</section>", start)])
    return " ".join(unescape(words).split())


def test_software_that_differs_between_hosts_is_data(mixed: RunComparison) -> None:
    """Each arm has its release, its CUDA and its lock with the values of all hosts."""
    told = {
        (difference.arm, difference.key): difference.values
        for difference in mixed.between_hosts.differences
    }
    assert {arm for arm, _ in told} == {"vm", "docker"}
    assert {difference.fact_class for difference in mixed.between_hosts.differences} == {
        "confounder"
    }
    for key, value in NEW.items():
        assert told["docker", key] == {"gpu01": value, "gpu02": OLD[key]}


def test_the_data_are_read_back_as_they_were_written(mixed: RunComparison) -> None:
    """comparison.json holds them."""
    again = msgspec.json.decode(msgspec.json.encode(mixed), type=RunComparison)
    assert again.between_hosts.differences == mixed.between_hosts.differences
    assert again.hosts == mixed.hosts


def test_hosts_with_the_same_software_are_no_confounder(tmp_path: Path) -> None:
    """Other GPUs alone are told with the devices, and nothing is said of PyTorch."""
    run = compare_run(made(tmp_path, {"gpu01": NEW_HOST, "gpu02": Host(facts={**NEW, **L4})}))
    assert run.between_hosts.differences == ()
    assert "different builds" not in text_of(run)
    assert "different builds" not in markdown(run)


def test_every_statement_over_hosts_says_it(mixed: RunComparison) -> None:
    """Headline, card, method, terminal and Markdown do, with the values where there is room."""
    (headline,) = headlines(mixed)
    assert SHORT in headline.caution
    assert any(DIFFERENT in item.text for item in summary_cards(mixed).cautions.items)
    assert DIFFERENT in section(mixed, "answer")
    assert DIFFERENT in section(mixed, "method")
    for text in (printed(mixed), markdown(mixed).replace("\\", "")):
        assert SHORT in text
        assert DIFFERENT in text


@pytest.mark.parametrize(("count", "is_told"), [(2, True), (5, False)])
def test_two_hosts_are_said_to_tell_little_of_others(
    tmp_path: Path, *, count: int, is_told: bool
) -> None:
    """Else a reader would take an interval of ±30 % for one of their measurements."""
    hosts = tuple(f"gpu{number:02}" for number in range(count))
    run = compare_run(write(tmp_path, replace(SHAPE, hosts=hosts)))
    assert {estimate.outcome == "inconclusive" for estimate in run.between_hosts.estimates} == {
        is_told
    }
    assert ("as two hosts say little about others" in text_of(run)) is is_told


def test_overview_says_it_beside_its_means(tmp_path: Path) -> None:
    """Its rows are means over hosts."""
    shape = replace(SHAPE, workloads=tuple(f"work{number}" for number in range(5)))
    run = compare_run(made(tmp_path, {"gpu01": NEW_HOST, "gpu02": OLD_HOST}, shape=shape))
    assert SHORT in section(run, "overview")


def test_two_runs_compared_say_it_of_both(tmp_path: Path) -> None:
    """The changes of several hosts stand beside each other, in a table and in counts."""
    hosts = {"gpu01": NEW_HOST, "gpu02": OLD_HOST}
    before = read_run(made(tmp_path / "before", hosts))
    after = read_run(made(tmp_path / "after", hosts, shape=replace(SHAPE, seed=6)))
    change = compare_runs(before, after)
    assert change.after.host_differences == after.comparison.between_hosts.differences != ()
    text = as_markdown(change_blocks(change, {})).replace("\\", "")
    assert f"In both runs: {DIFFERENT}" in text


def test_hosts_of_which_only_the_lock_differs_are_told_too(tmp_path: Path) -> None:
    """The same PyTorch may come with other packages for another Python."""
    other = Host(facts={**NEW, **L4, "lock.sha256": "cc" * 32})
    run = compare_run(made(tmp_path, {"gpu01": NEW_HOST, "gpu02": other}))
    assert {difference.key for difference in run.between_hosts.differences} == {"lock.sha256"}
    assert "different locked packages: lock aaaaaaaa on gpu01; lock cccccccc on gpu02" in (
        text_of(run)
    )


def test_a_build_for_the_cpu_is_known_to_have_no_cuda(tmp_path: Path) -> None:
    """None is then a value, and not a gap."""
    cpu = Host(facts={"torch.version": "2.13.0", "torch.cuda": None}, device="cpu")
    gpu = Host(facts={**L4, "torch.version": "2.13.0", "torch.cuda": "13.0"})
    run = compare_run(made(tmp_path, {"gpu01": gpu, "gpu02": cpu}))
    expected = HostDifference(arm="vm", key="torch.cuda", values={"gpu01": "13.0", "gpu02": None})
    assert run.between_hosts.differences[0] == expected


def test_the_first_screen_names_the_device_of_each_host(mixed: RunComparison) -> None:
    """A GPU with its driver, and PyTorch with its CUDA."""
    told = (
        "gpu01 on NVIDIA H100 80GB HBM3 (driver 580.65.06, torch 2.13.0 with CUDA 13.0)",
        "gpu02 on NVIDIA L4 (driver 570.86.10, torch 2.10.0 with CUDA 12.8)",
    )
    assert device_sentences(mixed) == told
    head = text_of(mixed).partition("docker is")[0]
    for sentence in told:
        assert sentence in head
        assert sentence in printed(mixed)
        assert sentence in markdown(mixed).replace("\\", "")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (Host(facts={"cpu.model": "Intel Xeon"}, device="cpu"), "on the CPU (Intel Xeon)"),
        (OLD_HOST, "on NVIDIA L4 (driver 570.86.10, torch 2.10.0 with CUDA 12.8)"),
        (
            Host(
                facts={"cpu.model": "Intel Xeon"},
                device="cpu",
                ready={"gpu.unused": "Tesla T4", "gpu.driver": "570.86.10"},
            ),
            (
                "on the CPU (Intel Xeon); its GPU (Tesla T4, driver 570.86.10) was not used "
                "(--device cpu)"
            ),
        ),
        # no worker says on what a plain program computed
        (Host(facts={"cpu.model": "Intel Xeon"}, device=""), "on Intel Xeon"),
        (
            Host(
                facts={"cpu.model": "Intel Xeon"},
                device="",
                ready={"gpu.unused": "Tesla T4", "gpu.driver": "570.86.10"},
            ),
            "on Intel Xeon; its GPU (Tesla T4, driver 570.86.10) was not to be used (--device cpu)",
        ),
        # NVML tells of the GPU where the work is on the CPU
        (Host(facts={**L4, "cpu.model": "Intel Xeon"}, device="cpu"), "on the CPU (Intel Xeon)"),
    ],
)
def test_one_host_is_told_without_its_name(tmp_path: Path, host: Host, expected: str) -> None:
    """The worker says on what it computed; that a GPU is there is not enough."""
    run = compare_run(made(tmp_path, {"gpu01": host}))
    assert device_sentences(run) == (expected,)
    assert f" · {expected} · " in text_of(run)
    assert f"measured {expected}" in printed(run)


def test_a_host_with_cells_on_both_devices_tells_how_many(tmp_path: Path) -> None:
    """System calls are measured on the CPU, whatever the host has."""
    folder = made(tmp_path, {"gpu01": OLD_HOST})
    events = [
        msgspec.structs.replace(event, values={**event.values, "device": "cpu"})
        if "device" in event.values and "/rnn/" in event.cell
        else event
        for event in folder.read_events().events
    ]
    folder.write_bytes("events.jsonl", msgspec.json.Encoder().encode_lines(events))
    (text,) = device_sentences(compare_run(folder))
    assert text.endswith("with CUDA 12.8); 1 of 2 cells on the CPU (made up)")


def test_method_says_why_a_host_got_its_pytorch(mixed: RunComparison) -> None:
    """The sentence of the choice is kept in the run folder."""
    assert f"gpu02: {CHOICE}." in section(mixed, "method")


def test_what_hosts_say_stays_text(tmp_path: Path) -> None:
    """Names are escaped, on one line, and nothing in them is hidden."""
    evil = "<b>L4</b>\u202e\n</script>"
    hostile = Host(
        facts={**OLD, "gpu.name": evil, "gpu.driver": evil, "torch.version": evil},
        wheels=evil,
    )
    run = compare_run(made(tmp_path, {"gpu01": NEW_HOST, "gpu02": hostile}))
    html = render(run)
    assert "<b>L4" not in html
    assert "\u202e" not in html
    assert "&lt;b&gt;L4&lt;/b&gt;⟨U+202E⟩" in html
    assert "\u202e" not in printed(run) + markdown(run)
