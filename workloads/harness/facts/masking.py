"""The definition of a secret, for the arms and for envcompare itself."""

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
_IS = r"[\"']?\]?\s*(?:=|%3D|:(?!/))\s*"
# A quoted value that is not closed ends with its line; one without quotes goes on over what parts
# values elsewhere, unless a name follows that.
_VALUE = (
    r"(?:\"(?:\\.|[^\"\\\n])*(?:\"|$)|'(?:\\.|[^'\\\n])*(?:'|$)|(?:(?:Basic|Bearer|Token|ApiKey|Negotiate)\s+)?"
    r"(?:[^&;,\s]|[&;,](?![\s&;,]|$|[\"']?[\w-]+[\"']?\s*[=:]))+)"
)
_PART = re.compile(
    rf"((?:\b(?:sig|pw)|{_WORD}){_IS}|{_OPTION}\s+(?!-)"
    r"|(?<!\w)\w*(?:passwd|password|passphrase|pwd|secret|token|api[_-]?key)\s+(?![-/]))"
    rf"(?!(?:true|false|none|null)\b){_VALUE}",
    re.IGNORECASE | re.MULTILINE,
)
_COOKIE = re.compile(r"\b((?:Set-)?Cookie:[ \t]*)[^\r\n\"']+", re.IGNORECASE)
# Prefixes of tokens of forges, model hubs and clouds, and of a JWT.
_TOKEN = re.compile(
    r"\b(?:gh[oprsu]_|github_pat_|glpat-|hf_|npm_|nvapi-|pypi-AgE|sk-|sk_live_|xox[a-z]-|AKIA|ASIA"
    r"|AIza|ya29\.|eyJ)[\w.-]{12,}"
)
_KEY_BEGINS = "-----BEGIN "
# A key ends where something else than base64 and its own headers (RFC 1421) comes.
_PEM = re.compile(
    r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)"
    r"(?:(?:Proc-Type|DEK-Info):[^\n\\]*|[A-Za-z0-9+/=\s]|\\[nr])*"
    r"(-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
)


def masked(value: str) -> str:
    """Return a value with logins in URLs, named secrets and known tokens masked."""
    known = _TOKEN.sub(MASK, _LOGIN.sub(rf"\1{MASK}@", value))
    if _KEY_BEGINS in known:
        known = _PEM.sub(rf"\1{MASK}\n\2", known)
    return _PART.sub(rf"\1{MASK}", _COOKIE.sub(rf"\1{MASK}", known))


def is_open(value: str) -> bool:
    """Return whether a value ends within a private key."""
    if _KEY_BEGINS not in value:
        return False
    return any(key.end() == len(value) and not key[2] for key in _PEM.finditer(value))
