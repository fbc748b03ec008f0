"""Which images are ours: a hash on each tells it from what a user builds on it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

CONFIG_LABEL = "envcompare.config.settings"
_OUR_NAMES = ("envcompare-workload:", "envcompare-skeleton:", "envcompare-part:")
# All of an image's configuration that changes what runs in it, by the names of the engine.
_CONFIG = (
    "Cmd", "Entrypoint", "Env", "ExposedPorts", "Healthcheck", "OnBuild", "Shell", "StopSignal",
    "User", "Volumes", "WorkingDir",
)  # fmt: skip


def config_sha256(facts: Mapping[str, Any], more: Mapping[str, str] | None = None) -> str:
    """Return the hash of an image's layers, configuration and labels, but for the hash itself.

    It stands on the image as a label; `more` are labels that it gets with it. Whatever is built on
    the image inherits the label, and has another layer, setting or label, so another hash.
    """
    config = {name: facts["Config"][name] for name in _CONFIG if facts["Config"].get(name)}
    others = {**labels(facts), **(more or {})}
    others.pop(CONFIG_LABEL, None)
    text = json.dumps([facts["RootFS"].get("Layers"), config, others], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def is_users_own(facts: Mapping[str, Any]) -> bool:
    """Tell whether an image with our labels is a user's own, as the engine describes it.

    What has no hash is ours by a name that we gave: a skeleton, or a build that was cut short.
    """
    own = labels(facts).get(CONFIG_LABEL)
    if own is None:
        return not any(name.startswith(_OUR_NAMES) for name in facts.get("RepoTags") or ())
    return own != config_sha256(facts)


def labels(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of an image as the engine describes it."""
    return dict(facts["Config"].get("Labels") or {})
