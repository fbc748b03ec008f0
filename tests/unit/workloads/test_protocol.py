"""Protocol 1, spoken with a real worker about a workload of the standard library."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conversation import Start

from envcompare.measure import Ended

PLACES = ("fork", "rebuild")


@pytest.mark.parametrize("place", PLACES)
def test_conversation_answers_every_request_in_turn(start: Start, toy: str, place: str) -> None:
    """From hello to quit each request has its reply, and the worker exits with 0."""
    worker = start()
    hello = worker.ask("hello", workload=toy, generation=place)
    assert (hello["ok"], hello["protocol"], hello["generation"]) == (True, 1, place)
    assert hello["pid"] == worker.process.pid
    assert 0 < hello["entry_ns"] < hello["now_ns"] <= time.monotonic_ns()
    begun = worker.ask("gen", seed=1, pad=1000)
    assert (begun["pid"] != hello["pid"]) == (place == "fork")
    assert (begun["spawn_ns"] > 0) == (place == "fork")
    block = worker.ask("run", k=5)
    assert [len(block[key]) for key in ("wall_ns", "cpu_ns")] == [5, 5]
    assert (block["gpu_ns"], block["minor_faults"] >= 0) == (None, True)
    over = worker.ask("end")
    assert (over["steps"], over["result"]["steps"]) == (6, 6)
    assert over["max_rss_bytes"] > 1_000_000
    assert worker.ask("quit")["max_rss_bytes"] >= over["max_rss_bytes"] / 2
    assert worker.rest() == b""
    assert worker.process.returncode == 0


def test_block_times_add_up_when_steps_sleep(start: Start, toy: str) -> None:
    """The wall times of a block cover it without a gap; sleeping costs no CPU time."""
    worker = start()
    worker.ask("hello", workload=toy, params={"sleep_s": 0.02})
    worker.ask("gen", seed=1, pad=0)
    block = worker.ask("run", k=4)
    assert all(wall >= 20_000_000 for wall in block["wall_ns"])
    assert sum(block["cpu_ns"]) < sum(block["wall_ns"]) / 2
    assert block["voluntary_switches"] >= 4


@pytest.mark.parametrize("place", PLACES)
def test_steps_are_held_on_a_cpu_until_they_are_done(
    start: Start, tmp_path: Path, place: str
) -> None:
    """On the one they are on or on another; one that cannot be had changes nothing."""
    (tmp_path / "own.py").write_text(
        "import os\n\n\nclass Own:\n    batch = 1\n\n    def setup(self, seed, device):\n"
        "        pass\n\n    def step(self):\n        return len(os.sched_getaffinity(0))\n"
    )
    worker = start()
    assert worker.ask("hello", workload=f"{tmp_path}/own.py:Own", generation=place)["ok"]
    cpus = sorted(os.sched_getaffinity(0))
    assert worker.ask("gen", seed=1, pad=0)["checksum"] == len(cpus)
    for cpu, expected in ((-1, cpus), (cpus[-1], cpus[-1:]), (4095, cpus)):
        block = worker.ask("run", k=2, cpu=cpu)
        assert (block["cpu"] in expected, block["is_held"]) == (True, cpu < 4095)
        assert block["loss"] == (1 if block["is_held"] else len(cpus))
        free = worker.ask("run", k=1)
        assert (free["loss"], free["is_held"]) == (len(cpus), False)
    assert worker.ask("profile", kind="phases", k=1, out="", cpu=cpus[0])["cpu"] == cpus[0]
    refused = worker.ask("run", k=1, cpu=-2)
    assert (refused["ok"], refused["error"]["phase"]) == (False, "protocol")


OWN_THREAD = """
import os, threading


class Own:
    batch = 1
    steps = 0

    def setup(self, seed, device):
        self.thread = threading.Thread(target=threading.Event().wait, daemon=True)

    def step(self):
        self.steps += 1
        if self.steps == 2:
            self.thread.start()
        return len(os.sched_getaffinity(self.thread.native_id or 0))
"""


def test_a_thread_that_starts_while_another_is_held_is_let_go_with_it(
    start: Start, tmp_path: Path
) -> None:
    """It has inherited the CPU, and nothing else would free it."""
    (tmp_path / "own.py").write_text(OWN_THREAD)
    cpus = sorted(os.sched_getaffinity(0))
    worker = start()
    assert worker.ask("hello", workload=f"{tmp_path}/own.py:Own")["ok"]
    assert worker.ask("gen", seed=1, pad=0)["checksum"] == len(cpus)
    assert worker.ask("run", k=1, cpu=cpus[-1])["loss"] == 1
    assert worker.ask("run", k=1)["loss"] == len(cpus)


def test_checksum_is_equal_when_seeds_are(start: Start, toy: str) -> None:
    """Two workers, and a fork and a rebuild, do the same work for the same seed."""
    found = set()
    for place in (*PLACES, "fork"):
        worker = start()
        worker.ask("hello", workload=toy, generation=place)
        for _ in range(2):
            found.add(worker.ask("gen", seed=7, pad=os.getpid())["checksum"])
            found.add(worker.ask("run", k=1)["loss"])
            worker.ask("end")
    assert len(found) == 2
    assert worker.ask("gen", seed=8, pad=0)["checksum"] not in found


@pytest.mark.parametrize("place", PLACES)
def test_generations_share_nothing_when_one_follows_another(
    start: Start, toy: str, place: str
) -> None:
    """A second generation begins at step 1 again."""
    worker = start()
    worker.ask("hello", workload=toy, generation=place)
    for _ in range(2):
        worker.ask("gen", seed=1, pad=0)
        worker.ask("run", k=3)
        assert worker.ask("end")["result"]["steps"] == 4


@pytest.mark.parametrize("place", PLACES)
def test_stdout_is_the_protocols_alone_when_the_workload_prints(
    start: Start, toy: str, place: str
) -> None:
    """Prints of the workload and of its child processes reach stderr, and it reads no request."""
    worker = start()
    worker.ask("hello", workload=toy, generation=place)
    worker.ask("gen", seed=1, pad=0)
    assert worker.ask("end")["result"]["typed"] == ""
    worker.ask("quit")
    assert worker.rest() == b""
    for line in ("printed at import", "printed in setup", "printed by a child"):
        assert worker.printed().count(line) == 1


def test_requests_are_answered_when_they_come_in_pieces_or_together(start: Start, toy: str) -> None:
    """A line may arrive in two pieces, or a whole conversation at once and then the end."""
    worker = start()
    hello = json.dumps({"op": "hello", "workload": toy})
    worker.say(hello[:9])
    time.sleep(0.1)
    worker.say(hello[9:] + "\n")
    assert worker.hear()["ok"]
    worker.say('{"op":"gen","seed":1,"pad":0}\n{"op":"run","k":2}\n{"op":"end"}\n{"op":"quit"}\n')
    assert [worker.hear()["op"] for _ in range(4)] == ["gen", "run", "end", "quit"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("moment", ["after hello", "after gen", "during run"])
def test_no_process_is_left_when_stdin_closes(
    start: Start, toy: str, is_alive: Callable[[int], bool], place: str, moment: str
) -> None:
    """The end of the input ends template and child, even in the middle of a long step."""
    worker = start()
    pids = [worker.process.pid]
    worker.ask("hello", workload=toy, generation=place, params={"sleep_s": 300.0})
    if moment != "after hello":
        pids.append(worker.ask("gen", seed=1, pad=0)["pid"])
    if moment == "during run":
        worker.say('{"op":"run","k":2}\n')
        time.sleep(0.3)
    worker.hang_up()
    assert worker.process.wait(20) == 0
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.parametrize("sleep_s", [0.0, 300.0])
def test_child_ends_when_the_template_is_killed(
    start: Start, toy: str, is_alive: Callable[[int], bool], sleep_s: float
) -> None:
    """A generation does not outlive its template, neither waiting nor computing."""
    worker = start()
    worker.ask("hello", workload=toy, generation="fork", params={"sleep_s": sleep_s})
    child = worker.ask("gen", seed=1, pad=0)["pid"]
    if sleep_s:
        worker.say('{"op":"run","k":2}\n')
        time.sleep(0.3)
    worker.process.kill()
    assert not is_alive(child)


def test_worker_goes_on_when_interrupted(start: Start, toy: str) -> None:
    """SIGINT is the controller's affair: a worker ignores it."""
    worker = start()
    worker.ask("hello", workload=toy, generation="fork")
    child = worker.ask("gen", seed=1, pad=0)["pid"]
    for pid in (child, worker.process.pid):
        os.kill(pid, signal.SIGINT)
    assert worker.ask("run", k=1)["ok"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("where", "error_place"),
    [
        ("setup", ("setup", None)),
        ("step", ("step", 7)),
        ("exit", ("step", 7)),
        ("finish", ("step", None)),
    ],
)
def test_failure_names_phase_and_step_when_the_workload_raises(
    start: Start, toy: str, place: str, where: str, error_place: tuple[str, int | None]
) -> None:
    """The reply says where it failed and how; a new generation can follow, and quit."""
    worker = start()
    worker.ask("hello", workload=toy, generation=place, params={"fails_in": where, "fails_at": 7})
    replies = [worker.ask("gen", seed=1, pad=0)]
    if where != "setup":
        replies.append(worker.ask("run", k=3))
        replies.append(worker.ask("run", k=4))
    if where == "finish":
        replies.append(worker.ask("end"))
    assert all(reply["ok"] for reply in replies[:-1])
    error = replies[-1]["error"]
    assert (error["phase"], error["step"]) == error_place
    assert (
        error["brief"] == "SystemExit: left"
        if where == "exit"
        else f"ValueError: failed in {where}"
    )
    assert len(error["traceback"].splitlines()) <= 10
    assert error["traceback"].splitlines()[-1] in {"and more", "SystemExit: left"}
    assert worker.ask("run", k=1)["error"]["phase"] == "protocol"
    assert worker.ask("gen", seed=1, pad=0)["ok"] == (where != "setup")
    assert worker.ask("quit")["ok"]


@pytest.mark.parametrize(
    ("change", "phase", "brief"),
    [
        ({"workload": "/nowhere/file.py:Toy"}, "import", "no workload file /nowhere/file.py"),
        ({"workload": "vgg"}, "import", "no workload 'vgg'; there are alexnet, capacity, cnn, "),
        ({"params": {"fails_in": "load"}}, "data", "failed in load"),
        ({"params": {"fails_in": "init"}}, "setup", "failed in init"),
        (
            {"params": {"hiden": 3}},
            "setup",
            "unknown parameter 'hiden'; known are: batch, fails_at,",
        ),
        ({"params": {"batch": "3"}}, "setup", "parameter 'batch' is '3' (str) and must be int"),
        ({"params": {"batch": -1}}, "setup", "parameter 'batch' is -1 and must be at least 1"),
        ({"params": {"batch": True}}, "setup", "parameter 'batch' is True (bool) and must be int"),
        ({"params": [1]}, "protocol", "'params' of hello is [1]"),
        (
            {"device": "cuda"},
            "setup",
            "device cuda was asked for and the workload does not use PyTorch",
        ),
        ({"cpus": [4095]}, "process", "cannot run on CPUs [4095]: Invalid argument"),
        ({"cpus": [0, 4095]}, "process", "cannot run on all of CPUs [0, 4095]; allowed: [0"),
        ({"threads": 0}, "protocol", "'threads' is 0 and must be an int from 1"),
        ({"generation": "spoon"}, "protocol", "'generation' of hello must be one of auto, fork"),
    ],
)
def test_hello_says_what_is_wrong(
    start: Start, toy: str, change: dict[str, Any], phase: str, brief: str
) -> None:
    """Each mistake in hello has its phase and a line that names it; quit still works."""
    worker = start()
    error = worker.ask("hello", **{"workload": toy, **change})["error"]
    assert (error["phase"], brief in error["brief"]) == (phase, True), error["brief"]
    assert worker.ask("quit")["ok"]


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"params": {"batch": "3"}}, "correct it in --set, or under [set] of the file"),
        ({"device": "cuda"}, "leave --device out, or give --device cpu"),
    ],
)
def test_hint_fits_a_wrong_flag(start: Start, toy: str, change: dict[str, Any], hint: str) -> None:
    """Where the user's flag is at fault it is named, in words alone: the traceback says nothing."""
    error = start().ask("hello", **{"workload": toy, **change})["error"]
    assert (error["hint"], error["traceback"]) == (hint, "")
    assert "Error: " not in error["brief"]


def test_missing_class_is_answered_with_those_there_are(start: Start, toy: str) -> None:
    """A wrong class name gets the right one in reply."""
    error = start().ask("hello", workload=toy.replace(":Toy", ":Tyo"))["error"]
    assert error["phase"] == "import"
    assert error["brief"].endswith("toy.py; it has: Toy")


def test_import_failure_keeps_its_traceback(start: Start, tmp_path: Path) -> None:
    """A workload file that cannot be imported is a failure of phase import."""
    path = tmp_path / "broken.py"
    path.write_text("import no_such_module_here\n")
    error = start().ask("hello", workload=f"{path}:Toy")["error"]
    assert error["phase"] == "import"
    assert error["brief"] == "ModuleNotFoundError: No module named 'no_such_module_here'"
    assert "has no module no_such_module_here: install the package that" in error["hint"]
    assert "or put its file next to your workload's" in error["hint"]
    assert "broken.py" in error["traceback"]


@pytest.mark.parametrize(
    ("line", "brief"),
    [
        ("{nonsense", "not a JSON line"),
        ("[1]", 'a request is a JSON object with a text "op"'),
        ('{"op":"dance"}', "no operation 'dance'; there are import, hello, gen, run, evaluate, "),
        ('{"op":"run","k":1}', "no generation is alive"),
        ('{"op":"hello","workload":"cnn"}', "hello was said already"),
    ],
)
def test_bad_request_is_answered_and_survived(
    start: Start, toy: str, line: str, brief: str
) -> None:
    """A request that cannot be understood gets an error of phase protocol, nothing else."""
    worker = start()
    worker.ask("hello", workload=toy)
    worker.say(line + "\n")
    reply = worker.hear()
    assert (reply["ok"], reply["error"]["phase"]) == (False, "protocol")
    assert brief in reply["error"]["brief"]
    assert worker.ask("gen", seed=1, pad=0)["ok"]


@pytest.mark.parametrize("place", PLACES)
def test_profile_runs_steps_of_the_live_generation(start: Start, toy: str, place: str) -> None:
    """They count with the others; without a GPU nothing is marked, and that is said."""
    worker = start()
    worker.ask("hello", workload=toy, generation=place)
    worker.ask("gen", seed=1, pad=0)
    seen = worker.ask("profile", kind="marks", k=3, out="")
    assert (seen["ok"], seen["k"], seen["kind"]) == (True, 3, "marks")
    assert seen["reason"] == "no GPU is used: nothing was marked"
    assert seen["wall_ns"] > 0
    assert worker.ask("end")["steps"] == 4


@pytest.mark.parametrize("place", PLACES)
def test_profile_that_fails_gives_a_reason_and_leaves_the_generation(
    start: Start, toy: str, place: str
) -> None:
    """What a profiler would have seen is not measured; the worker goes on."""
    worker = start()
    worker.ask("hello", workload=toy, generation=place, params={"fails_in": "step", "fails_at": 3})
    worker.ask("gen", seed=1, pad=0)
    seen = worker.ask("profile", kind="marks", k=2, out="")
    assert (seen["ok"], seen["reason"]) == (True, "ValueError: failed in step")
    assert worker.ask("run", k=1)["ok"]


@pytest.mark.parametrize(
    ("fields", "brief"),
    [
        ({"kind": "dance", "k": 1}, "no kind of profile 'dance'; there are marks, torch"),
        ({"k": 1}, "'kind' and 'out' are text"),
        ({"kind": "marks", "k": 0}, "'k' is 0"),
    ],
)
def test_profile_is_refused_when_it_cannot_be_meant(
    start: Start, toy: str, fields: dict[str, Any], brief: str
) -> None:
    """As every other request is."""
    worker = start()
    worker.ask("hello", workload=toy)
    worker.ask("gen", seed=1, pad=0)
    reply = worker.ask("profile", **fields)
    assert (reply["ok"], reply["error"]["phase"]) == (False, "protocol")
    assert brief in reply["error"]["brief"]


def test_gen_is_refused_when_it_comes_early_or_twice(start: Start, toy: str) -> None:
    """There is no generation before hello and no second one beside the first."""
    worker = start()
    assert "must be hello" in worker.ask("gen", seed=1, pad=0)["error"]["brief"]
    worker.ask("hello", workload=toy)
    worker.ask("gen", seed=1, pad=0)
    assert "end it first" in worker.ask("gen", seed=1, pad=0)["error"]["brief"]
    assert worker.ask("run", k=1)["ok"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "fields", [{"seed": 1}, {"seed": -1, "pad": 0}, {"seed": 1, "pad": 1 << 40}]
)
def test_gen_is_refused_when_its_numbers_are_wrong(
    start: Start, toy: str, place: str, fields: dict[str, int]
) -> None:
    """Seed and pad are whole numbers in bounds."""
    worker = start()
    worker.ask("hello", workload=toy, generation=place)
    assert worker.ask("gen", **fields)["error"]["phase"] == "protocol"
    assert worker.ask("gen", seed=1, pad=0)["ok"]


@pytest.mark.parametrize("moment", ["in a step", "waiting"])
def test_killed_generation_is_reported_and_survived(start: Start, toy: str, moment: str) -> None:
    """A child that dies by a signal gives a reply that names the signal; the next one works."""
    worker = start()
    worker.ask("hello", workload=toy, generation="fork", params={"fails_in": "kill", "fails_at": 3})
    child = worker.ask("gen", seed=1, pad=0)["pid"]
    if moment == "waiting":
        os.kill(child, signal.SIGKILL)
    reply = worker.ask("run", k=5)
    assert reply["op"] == "run"
    assert reply["error"]["phase"] == "process"
    assert "was killed by signal 9 (SIGKILL)" in reply["error"]["brief"]
    assert worker.ask("gen", seed=1, pad=0)["ok"]
    assert worker.ask("quit")["ok"]
    assert worker.rest() == b""


def test_generation_is_rebuilt_when_a_thread_lives_in_the_template(start: Start, toy: str) -> None:
    """A fork beside a second thread is unsafe: auto avoids it and says why, fork is refused."""
    threaded = {"name": "starts a thread"}
    hello = start().ask("hello", workload=toy, params=threaded)
    assert hello["generation"] == "rebuild"
    assert hello["generation_reason"] == "2 threads live in the template"
    error = start().ask("hello", workload=toy, params=threaded, generation="fork")["error"]
    assert error["phase"] == "process"
    assert "is unsafe: 2 threads live in the template" in error["brief"]


def test_loss_is_null_when_it_is_not_finite(start: Start, toy: str) -> None:
    """A diverged loss stays strict JSON: null."""
    worker = start()
    worker.ask("hello", workload=toy, params={"name": "nan"})
    assert worker.ask("gen", seed=1, pad=0)["checksum"] is None


def test_params_are_answered_with_their_defaults(start: Start, toy: str) -> None:
    """The reply holds every parameter, so that a cell says what it ran."""
    hello = start().ask("hello", workload=toy, params={"sleep_s": 1})
    assert hello["params"]["sleep_s"] == 1.0
    assert hello["params"]["batch"] == hello["batch"] == 4


def test_code_hash_follows_the_users_file(start: Start, toy: str) -> None:
    """The same file has the same hash, an edited one another."""
    first, second = (start().ask("hello", workload=toy)["code_hash"] for _ in range(2))
    with Path(toy.rpartition(":")[0]).open("a") as file:
        file.write("# edited\n")
    assert first == second != start().ask("hello", workload=toy)["code_hash"]


def test_code_hash_follows_what_was_sent_with_the_file(start: Start, tmp_path: Path) -> None:
    """What lies beside it and was not sent, as what it writes there, does not count."""
    own = f"{write(tmp_path, 'import helper', returns='helper.VALUE')}:Own"
    hashes = []
    for name, text in (("helper.py", "VALUE = 1"), ("helper.py", "VALUE = 2"), ("note", "1")):
        (tmp_path / name).write_text(text)
        files = ["helper.py", "own.py"]
        hashes.append(start().ask("hello", workload=own, files=files)["code_hash"])
    assert hashes[0] != hashes[1] == hashes[2]


def test_file_in_a_package_is_a_module_of_it(start: Start, tmp_path: Path) -> None:
    """It imports what is beside it and above it, and they count as its code."""
    inner = tmp_path / "project" / "train"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").touch()
    (inner.parent / "values.py").write_text("VALUE = 0.25")
    head = "from ..values import VALUE\nimport project.values\n"
    own = f"{write(inner, head, returns='VALUE')}:Own"
    files = ["project/__init__.py", "project/values.py", "project/train/own.py"]
    worker = start()
    hello = worker.ask("hello", workload=own, files=files)
    assert "error" not in hello
    assert "error" not in worker.ask("gen", seed=1, pad=0)
    assert not hello["fingerprint"]["packages.outside"]
    (inner.parent / "values.py").write_text("VALUE = 0.5")
    assert start().ask("hello", workload=own, files=files)["code_hash"] != hello["code_hash"]


def test_package_that_is_installed_too_is_refused(start: Start, tmp_path: Path) -> None:
    """Else another version of it would be measured."""
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").touch()
    own = write(tmp_path / "json", returns="0.5").rename(tmp_path / "json" / "decoder.py")
    error = start().ask("hello", workload=f"{own}:Own")["error"]
    assert error["phase"] == "import"
    assert error["brief"].startswith("json.decoder is installed here too, as ")
    assert error["hint"]


def write(folder: Path, head: str = "", *, returns: str) -> Path:
    """Write a workload whose step returns this expression."""
    path = folder / "own.py"
    path.write_text(
        f"{head}\nclass Own:\n    def setup(self, seed, device): pass\n"
        f"    def step(self): return {returns}\n    def evaluate(self): return {returns}\n"
    )
    return path


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        ("None", "None"),
        ("'much'", "a value of type str (could not convert string to float: 'much')"),
        ("[1.0]", "a value of type list (float() argument must be a string or a real number, "),
    ],
)
def test_a_step_that_returns_no_number_is_told_so(
    start: Start, tmp_path: Path, returns: str, said: str
) -> None:
    """In the words of the contract, with what to return."""
    worker = start()
    worker.ask("hello", workload=f"{write(tmp_path, returns=returns)}:Own")
    error = worker.ask("gen", seed=1, pad=0)["error"]
    assert (error["phase"], error["step"]) == ("step", 1)
    assert error["brief"].startswith(f"`step` must return a number, and returned {said}")
    assert "or 0.0" in error["hint"]


def test_an_evaluation_that_is_no_dict_of_numbers_is_told_so(start: Start, tmp_path: Path) -> None:
    """As `step` is."""
    worker = start()
    worker.ask("hello", workload=f"{write(tmp_path, returns='0.5')}:Own")
    worker.ask("gen", seed=1, pad=0)
    error = worker.ask("evaluate")["error"]
    assert error["brief"] == "`evaluate` must return a dict of numbers, and returned 0.5"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def step(self): return 0.0", "the class Own has no method `setup`"),
        ("def setup(self, seed, device): pass", "the class Own has no method `step`"),
        (
            "batch = None\n    def setup(self, seed, device): pass\n    def step(self): return 0.0",
            "`batch` must be a whole number, not None",
        ),
    ],
)
def test_a_class_that_lacks_a_part_is_told_which(
    start: Start, tmp_path: Path, body: str, said: str
) -> None:
    """Before anything is measured, and not as an AttributeError."""
    (tmp_path / "own.py").write_text(f"class Own:\n    {body}\n")
    error = start().ask("hello", workload=f"{tmp_path}/own.py:Own")["error"]
    assert (error["phase"], error["brief"]) == ("setup", said)
    assert error["hint"]


def test_data_hash_follows_names_and_sizes(start: Start, toy: str, tmp_path: Path) -> None:
    """A user's own data is known by the names and sizes of its files."""
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "a").write_text("1")
    first = start().ask("hello", workload=toy, data=str(data))["data_hash"]
    assert first == start().ask("hello", workload=toy, data=str(data))["data_hash"]
    (data / "deep" / "a").write_text("12")
    assert first != start().ask("hello", workload=toy, data=str(data))["data_hash"]
    assert start().ask("hello", workload=toy)["data_hash"] is None


SUMS = """
class Own:
    batch = 1

    def setup(self, seed, device):
        pass

    def step(self):
        return 1.0

    def finish(self):
        return {"small": 2**63 - 1, "large": 2**64 - 1, "below": -(2**63), "is_done": True}
"""


def test_large_numbers_of_finish_are_told_as_text(start: Start, tmp_path: Path) -> None:
    """An unsigned checksum of 64 bits is a result, and no answer that cannot be true."""
    (tmp_path / "own.py").write_text(SUMS)
    worker = start()
    worker.ask("hello", workload=f"{tmp_path}/own.py:Own")
    worker.ask("gen", seed=1, pad=0)
    ended = msgspec.convert(worker.ask("end"), Ended)
    large, below = str(2**64 - 1), str(-(2**63))
    assert ended.result == {"small": 2**63 - 1, "large": large, "below": below, "is_done": True}


LOADS = """
import multiprocessing, os, sys, time


def fill(path):
    while True:
        time.sleep(0.002)


class Own:
    batch = 1

    def setup(self, seed, device):
        self.other = multiprocessing.Process(target=fill, args=("",), daemon=True)
        self.other.start()

    def step(self):
        return self.other.pid

    def finish(self):
        self.other.terminate()
        self.other.join()
"""


def state_of(process: int) -> str:
    """Return the state of a process, empty where it has ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def has_ended(process: int) -> bool:
    """Tell whether a process ends within seconds; one that does not is killed."""
    until = time.monotonic() + 10
    while state_of(process) not in {"", "Z"}:
        if time.monotonic() > until:
            os.kill(process, signal.SIGKILL)
            return False
        time.sleep(0.05)
    return True


# Before any generation: a fork of the process that loads could not stop it.
LOADS_EARLY = LOADS.replace("def setup(self, seed, device):", "def load(self, data):").replace(
    "class Own:", "class Own:\n    def setup(self, seed, device):\n        pass\n"
)


@pytest.mark.parametrize(
    ("source", "place"), [(LOADS, "fork"), (LOADS, "rebuild"), (LOADS_EARLY, "auto")]
)
def test_what_a_workload_started_stands_between_its_turns(
    start: Start, tmp_path: Path, source: str, place: str
) -> None:
    """That takes time of the turn and of no step; the next request lets it go on."""
    (tmp_path / "own.py").write_text(source)
    worker = start()
    hello = worker.ask("hello", workload=f"{tmp_path}/own.py:Own", generation=place)
    assert hello["generation"] == ("rebuild" if place == "auto" else place)
    begun = worker.ask("gen", seed=1, pad=0)
    other = int(begun["checksum"])
    first, second = (worker.ask("run", k=2, stops=True) for _ in range(2))
    assert (first["is_stopped"], second["is_stopped"]) == (False, True)
    assert second["t0_ns"] >= first["t0_ns"] + sum(first["wall_ns"])
    assert state_of(other) == "T"
    assert place != "fork" or state_of(begun["pid"]) == "T"
    assert worker.ask("facts")["ok"]
    assert state_of(other) != "T"
    assert worker.ask("run", k=1)["is_stopped"] is False
    assert worker.ask("end")["ok"]


@pytest.mark.parametrize("place", ["fork", "rebuild"])
def test_nothing_stays_stopped_when_the_client_is_gone(
    start: Start, tmp_path: Path, place: str
) -> None:
    """The end of its input ends what steps and all that it has started."""
    (tmp_path / "own.py").write_text(LOADS)
    worker = start()
    assert worker.ask("hello", workload=f"{tmp_path}/own.py:Own", generation=place)["ok"]
    other = int(worker.ask("gen", seed=1, pad=0)["checksum"])
    worker.ask("run", k=2, stops=True)
    assert state_of(other) == "T"
    worker.hang_up()
    assert worker.rest() == b""
    assert has_ended(other)


@pytest.mark.parametrize("which", ["worker", "generation"])
def test_nothing_stays_stopped_when_one_of_its_processes_is_killed(
    start: Start, tmp_path: Path, which: str
) -> None:
    """What is stopped cannot see the end of its parent: that of the worker wakes it."""
    (tmp_path / "own.py").write_text(LOADS)
    worker = start()
    assert worker.ask("hello", workload=f"{tmp_path}/own.py:Own", generation="fork")["ok"]
    begun = worker.ask("gen", seed=1, pad=0)
    other = int(begun["checksum"])
    worker.ask("run", k=2, stops=True)
    assert (state_of(begun["pid"]), state_of(other)) == ("T", "T")
    os.kill(worker.process.pid if which == "worker" else begun["pid"], signal.SIGKILL)
    if which == "generation":
        failed = worker.ask("run", k=2, stops=True)
        assert "was killed by signal 9" in failed["error"]["brief"]
    assert has_ended(begun["pid"])
    assert has_ended(other)


def test_turn_may_begin_with_untimed_steps(start: Start, toy: str) -> None:
    """They use up what became ready while all was stopped; the block follows them."""
    worker = start()
    assert worker.ask("hello", workload=toy)["ok"]
    worker.ask("gen", seed=1, pad=0)
    ran = worker.ask("run", k=2, stops=True, run_in=7)
    assert len(ran["wall_ns"]) == 2
    assert worker.ask("facts")["steps"] == 1 + 7 + 2
    error = worker.ask("run", k=2, stops=True, run_in=-1)["error"]
    assert "run_in" in error["brief"]


LOADS_SLOWLY = LOADS + "\n\nos.register_at_fork(after_in_child=lambda: time.sleep(0.05))\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", [LOADS, LOADS_SLOWLY])
def test_fork_of_a_workload_outlives_no_worker_in_secret(
    start: Start, tmp_path: Path, source: str
) -> None:
    """Where the worker itself steps: its end is seen at once, and what it has stopped goes on.

    A fork is not stopped before it has closed the pipes of the protocol.
    """
    (tmp_path / "own.py").write_text(source)
    worker = start()
    assert worker.ask("hello", workload=f"{tmp_path}/own.py:Own", generation="rebuild")["ok"]
    other = int(worker.ask("gen", seed=1, pad=0)["checksum"])
    worker.ask("run", k=2, stops=True)
    assert state_of(other) == "T"
    worker.process.kill()
    try:
        assert worker.rest() == b""  # the fork does not hold its output
    finally:
        state = state_of(other)
        os.kill(other, signal.SIGKILL)
    assert state in {"R", "S"}


FORKS = """
import os


def in_fork(work):
    child = os.fork()
    if child == 0:
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def open_some():
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
    return in_fork(lambda: sum(len(os.read(fd, 1)) for fd in files))


class Own:
    batch = 1

    def setup(self, seed, device):
        pass

    def step(self):
        return in_fork(open_some)
"""


def test_fork_of_a_fork_keeps_the_files_that_it_finds(start: Start, tmp_path: Path) -> None:
    """Their numbers may be those of the pipes that the first one has closed."""
    (tmp_path / "own.py").write_text(FORKS)
    worker = start()
    assert worker.ask("hello", workload=f"{tmp_path}/own.py:Own", generation="rebuild")["ok"]
    assert worker.ask("gen", seed=1, pad=0)["checksum"] == 0


def test_nothing_stays_stopped_when_the_client_goes_during_a_block(
    start: Start, tmp_path: Path
) -> None:
    """What steps finds nobody to reply to; what it has stopped by then goes on."""
    source = LOADS.replace("return self.other.pid", "time.sleep(0.2); return self.other.pid")
    (tmp_path / "own.py").write_text(source)
    worker = start()
    assert worker.ask("import", workload=f"{tmp_path}/own.py:Own", threads=1, cpus=None)["stays"]
    assert worker.ask("hello", workload=f"{tmp_path}/own.py:Own")["ok"]
    begun = worker.ask("gen", seed=1, pad=0)
    other = int(begun["checksum"])
    worker.ask("run", k=1, stops=True)
    worker.say('{"op": "run", "k": 2, "stops": true}\n')
    time.sleep(0.1)
    worker.hang_up()
    assert worker.rest() == b""
    assert has_ended(begun["pid"])
    assert has_ended(other)
