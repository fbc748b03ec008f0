"""What a secret is: the one place that decides it, inside the arms and in envcompare itself."""

from __future__ import annotations

import re

# An allowed prefix can carry a secret (NVIDIA_API_KEY): such names are left out.
_HIDDEN = r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|API|COOKIE|PRIVATE|LICEN[CS]E|SIGNATURE"
SECRET_WORDS = re.compile(_HIDDEN, re.IGNORECASE)
MASK = "***"
# Each pattern begins where a word does and takes it whole: hostile text must not cost time that
# grows with the square of its length.
# Of a URL (RFC 3986, section 3.2.1), up to the last @: some passwords hold one as it is.
_LOGIN = re.compile(r"(?<![\w+.-])([\w+.-]+://)[^/\s]*@")
_WORD = rf"(?<!\w)(?=\w*(?:{_HIDDEN}))\w+(?!\w)"
_OPTION = rf"(?<![\w-])--?(?=[\w-]*(?:{_HIDDEN}))[\w-]+(?![\w-])"
# A colon before a slash parts the folders of a list, one of which may be called `private`.
_PART = re.compile(
    rf"((?:\b(?:sig|pw)|{_WORD})[\"']?\s*(?:=|:(?!/))\s*|{_OPTION}\s+(?!-)"
    r"|(?<!\w)\w*(?:passwd|password|passphrase|pwd|secret|token|api[_-]?key)\s+(?![-/]))"
    r"(?!(?:true|false|none|null)\b)"
    r"(?:\"[^\"]*\"|'[^']*'|(?:(?:Basic|Bearer)\s+)?[^&;,\s]+)",
    re.IGNORECASE,
)
# What a token is known by wherever it stands: those of forges, model hubs and clouds, and a JWT.
_TOKEN = re.compile(r"\b(?:gh[oprsu]_|github_pat_|glpat-|hf_|nvapi-|sk-|AKIA|eyJ)[\w.-]{12,}")


def masked(value: str) -> str:
    """Return a value without the login of a URL, what is named as a secret, and known tokens."""
    known = _TOKEN.sub(MASK, _LOGIN.sub(rf"\1{MASK}@", value))
    return _PART.sub(rf"\1{MASK}", known)
