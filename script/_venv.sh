# The tool's own virtual environment, from the locked requirements; sourced after _lib.sh.

VENV=$ROOT/.venv

# find_python: set PYTHON to an interpreter of version 3.10 or later.
find_python() {
  # a venv that is activated would be removed under its own interpreter
  local name PATH=${PATH//"$VENV/bin:"/}
  for name in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      PYTHON=$(command -v "$name")
      return 0
    fi
  done
  fail "no Python 3.10 or later is on PATH" "envcompare needs one for itself" "install python3, or set PYTHON"
}

make_venv() {
  find_python
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    apt_install "python$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
  rm -rf "$VENV"
  "$PYTHON" -m venv "$VENV" && "$VENV/bin/pip" install -q --require-hashes "${@/#/--requirement=}" &&
    "$VENV/bin/pip" install -q --no-deps --no-build-isolation --editable "$ROOT"
}

# need_venv FILE...: a venv with these requirement files installed and envcompare in it; made once.
need_venv() {
  local stamp
  stamp=$(cat "$@" "$ROOT/pyproject.toml" | sha256sum)
  if [ "$(cat "$VENV/.stamp" 2>/dev/null)" != "$stamp" ] || ! "$VENV/bin/envcompare" --version >/dev/null 2>&1; then
    find_python
    step "install envcompare and its locked dependencies into .venv ($PYTHON)" make_venv "$@" ||
      fail "the virtual environment cannot be made" "see above" "check that pip reaches a package index"
    printf '%s\n' "$stamp" >"$VENV/.stamp"
  fi
  export PATH="$VENV/bin:$PATH"
}
