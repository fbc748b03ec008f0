"""How generations begin is chosen by the tool, said, and alike in all arms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benches import Measured, bench, measure

from envcompare.report import plain
from envcompare.report.sections import cells_table
from envcompare.run_folder.records import Block

SOURCE = """
import os, threading, time


class Plain:
    def setup(self, seed, device):
        pass

    def step(self):
        return float(sum(i * i for i in range(20000)) % 97)


class HasAThread(Plain):
    def load(self, data):
        if os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker":
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
"""


def tried(path: Path, name: str) -> Measured:
    """Measure a workload of the source for a moment."""
    (path / "chosen.py").write_text(SOURCE, encoding="utf-8")
    return measure(bench(path, f"{path}/chosen.py:{name}", budget_s=1.5))


def test_way_of_generations_is_said_when_all_can_fork(tmp_path: Path) -> None:
    """The report tells the choice and its reason."""
    found = tried(tmp_path, "Plain")
    assert found.comparison.cells[0].generation == "fork"
    assert found.comparison.cells[0].generation_reason.startswith("one thread")
    assert "generations by fork" in plain(cells_table(found.comparison).rows[1].cells[0])
    assert "cannot fork" not in found.cautions


def test_all_arms_rebuild_when_one_cannot_fork(tmp_path: Path) -> None:
    """A fork in one arm and a rebuild in another would compare two kinds of process."""
    found = tried(tmp_path, "HasAThread")
    assert "all arms rebuild, since docker cannot fork: 2 threads live in the template" in (
        found.cautions
    )
    blocks = [sample for sample in found.folder.read_samples().samples if isinstance(sample, Block)]
    assert {block.arm for block in blocks} == {"vm", "docker", "vm~control"}
    assert found.docker.primary is not None


def test_block_holds_the_wait_of_all_threads_beside_that_of_its_own(tmp_path: Path) -> None:
    """One thread lives in a fork, so both are the same to what passes between two readings."""
    found = tried(tmp_path, "Plain")
    blocks = [sample for sample in found.folder.read_samples().samples if isinstance(sample, Block)]
    assert blocks
    for one in blocks:
        assert one.wait_ns is not None
        assert one.all_wait_ns is not None


def test_launch_order_of_each_restart_is_in_the_run_folder(tmp_path: Path) -> None:
    """Whatever was drawn at random can be read again."""
    found = tried(tmp_path, "Plain")
    orders = [set(event.text.split()) for event in found.events if event.what == "restart"]
    assert orders
    assert all(order == {"vm", "docker", "vm~control"} for order in orders)


def test_restarts_are_planned_after_the_first_round_where_a_gpu_is_to_be_used(
    tmp_path: Path,
) -> None:
    """The plan rests on the launch and a first round; elsewhere there is none."""
    (tmp_path / "chosen.py").write_text(SOURCE, encoding="utf-8")
    context = bench(tmp_path, f"{tmp_path}/chosen.py:Plain", budget_s=3)
    found = measure(replace(context, has_gpu=True))
    (plan,) = [event for event in found.events if "planned_restarts" in event.values]
    assert "left of the budget: " in plan.text
    assert "a launch of all arms takes" in plan.text
    kinds = [event.what for event in found.events]
    assert kinds.index("restart") < found.events.index(plan) < kinds.index("stopped")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "chosen.py").write_text(SOURCE, encoding="utf-8")
    on_cpu = tried(tmp_path / "cpu", "Plain")
    assert not [event for event in on_cpu.events if "planned_restarts" in event.values]
