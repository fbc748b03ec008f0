"""The JSON Schemas of the run folder, made from its types; docs/schema/ holds them written out."""

from __future__ import annotations

import json

import msgspec

from envcompare.analysis.compare import RunStatus
from envcompare.analysis.model import RunComparison
from envcompare.analysis.two_runs import CombinedRuns, GatedRun, RunChange
from envcompare.doctor.checks import Examination
from envcompare.report.exports import Answer
from envcompare.run_folder.captures import Capture
from envcompare.run_folder.profiles import ProfileRecord, Roofs
from envcompare.run_folder.records import Event, FingerprintRecord, Proof, RunRecord, Sample

_TYPES = {
    "run": RunRecord,
    "samples": Sample,  # one line of samples.jsonl
    "events": Event,  # one line of events.jsonl
    "fingerprint": FingerprintRecord,
    "proof": Proof,
    "capture": Capture,  # of `envcompare capture`
    "profile": ProfileRecord,
    "roofs": Roofs,
    "comparison": RunComparison,
    "gates": GatedRun,  # of `envcompare compare RUN --format json`
    "doctor": Examination,  # of `envcompare doctor --format json`
    "status": RunStatus,  # of `envcompare status --format json`
    "change": RunChange,  # of `envcompare compare BEFORE AFTER --format json`
    "answer": Answer,  # of `envcompare report RUN --format json --columns main`, and of the page
    "combined": CombinedRuns,  # of `envcompare combine RUN RUN… --format json`
}
SCHEMA_NAMES = tuple(_TYPES)


def schema_text(name: str) -> str:
    """Return the JSON Schema (draft 2020-12) of a file of the run folder as text."""
    schema = msgspec.json.schema(_TYPES[name])
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name}
    return json.dumps({**head, **schema}, indent=1, ensure_ascii=False) + "\n"
