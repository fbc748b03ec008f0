"""The workload of the trials of faults: light and steady, until SIGUSR1 asks for its one deed.

The signal goes to the process that runs the steps, or to the one that writes the answers.
"""

_SOURCE = r"""
import collections, itertools, json, mmap, os, signal, tempfile, time

DEED = __DEED__
PRECIOUS = __PRECIOUS__
asked = []
write = os.write


def stuck():
    collections.deque(itertools.repeat(None), maxlen=0)  # in C: no other thread gets its turn


def links():
    # what a clean-up may not follow
    folder = tempfile.mkdtemp()
    for name, target in (("up", ".."), ("root", "/"), ("kept", PRECIOUS), ("loop", "loop")):
        os.symlink(target, os.path.join(folder, name))
    os.mkdir(os.path.join(folder, "closed"))
    os.chmod(os.path.join(folder, "closed"), 0)


def line(reply, **changes):
    return json.dumps({**reply, **changes}).encode() + b"\n"


def paths(reply):
    path = "../../../../../../../../etc/passwd"
    return {key: path if isinstance(value, str) else value for key, value in reply.items()}


DEEDS = {"stuck": stuck, "links": links}
LIES = {
    "endless": lambda reply: itertools.repeat(b"x" * 65536, 100_000),
    "million": lambda reply: itertools.chain(itertools.repeat(line({"op": "x"}) * 1000, 1000)),
    "nan": lambda reply: [line(reply, wall_ns=[float("nan")] * len(reply["wall_ns"]))],
    "operation": lambda reply: [line(reply, op="hello")],
    "paths": lambda reply: [line({**paths(reply), "file": "/etc/passwd", "out": "/etc/passwd"})],
}


def ask(number, frame):
    if DEED in DEEDS:
        DEEDS[DEED]()
    else:
        asked.append(DEED)


def write_or_lie(file, data):
    try:
        reply = json.loads(bytes(data)) if asked else {}
    except ValueError:
        reply = {}
    if not isinstance(reply, dict) or reply.get("op") != "run":
        return write(file, data)
    for part in LIES[asked.pop()](reply):
        while part:
            part = part[write(file, part):]
    return len(data)


os.write = write_or_lie
signal.signal(signal.SIGUSR1, ask)


class Faulty:
    batch = 1

    def setup(self, seed, device):
        pass

    def step(self):
        with mmap.mmap(-1, 1 << 16) as fresh:  # touched, so that a limit of memory is met
            for place in range(0, 1 << 16, 4096):
                fresh[place] = 1
        time.sleep(0.004)  # leaves the CPU to others
        return float(sum(i * i for i in range(5000)) % 97)
"""


def source(deed: str, *, precious: str) -> str:
    """Return the file of the workload with its deed; links lead to a path that must stay."""
    return _SOURCE.replace("__DEED__", repr(deed)).replace("__PRECIOUS__", repr(precious))
