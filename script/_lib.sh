# What the scripts beside this file share; sourced, never run. bash only.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export ROOT

say() { printf '%s\n' "$*" >&2; }

# fail BRIEF WHY TRY: an error in three sentences.
fail() {
  printf 'error: %s\n  why: %s\n  try: %s\n' "$1" "$2" "$3" >&2
  exit 1
}

# step TEXT COMMAND...: run a command quietly and say how long it took; its output is shown when it fails.
step() {
  local text=$1 log started=$SECONDS code=0
  shift
  log=$(mktemp)
  printf '  … %s\n' "$text" >&2
  ("$@") >"$log" 2>&1 || code=$?
  if [ "$code" -ne 0 ]; then
    printf '  ✕ %s (exit %s after %s s)\n' "$text" "$code" "$((SECONDS - started))" >&2
    tail -n 30 "$log" >&2
  else
    printf '  ✓ %s (%s s)\n' "$text" "$((SECONDS - started))" >&2
  fi
  rm -f "$log"
  return "$code"
}

# retry SECONDS COMMAND...: repeat a quiet command until it succeeds.
retry() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.2
  done
}

can_be_root() { [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif can_be_root; then
    sudo "$@"
  else
    fail "'$1' has to be run as root" "this user is not root and sudo is not installed" \
      "run this script as root, or install sudo"
  fi
}

# apt_install PACKAGE...: install what is missing, and say so first.
apt_install() {
  local package missing=()
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || fail "cannot install ${missing[*]}" \
    "this system has no apt-get" "install them with this system's own package tool, then run this again"
  say "installing with apt-get: ${missing[*]}"
  step "apt-get update" as_root apt-get -qq -o DPkg::Lock::Timeout=600 update ||
    say "  the package lists could not all be renewed; going on with what is there"
  step "apt-get install ${missing[*]}" as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "${missing[@]}" ||
    fail "cannot install ${missing[*]}" "apt-get failed, see above" \
      "mend the package sources in /etc/apt, then run this again"
}

has_buildkit() {
  "$1" buildx version >/dev/null 2>&1 || case $("$1" version --format '{{.Client.Version}}' 2>/dev/null) in
    1[89].* | 20.*) return 0 ;; # built in until 23
    *) return 1 ;;
  esac
}

# pick_docker: set DOCKER to a client that reaches the engine, one with BuildKit where there is one.
pick_docker() {
  local client first=
  while read -r client; do
    "$client" info >/dev/null 2>&1 || continue
    first=${first:-$client}
    if has_buildkit "$client"; then
      export DOCKER=$client DOCKER_BUILDKIT=1
      return 0
    fi
  done < <(type -aP docker | awk '!seen[$0]++')
  [ -n "$first" ] && export DOCKER=$first DOCKER_BUILDKIT=0
}

# need_engine "$0" "$@": make sure that an engine answers; may start the calling script anew, in group docker.
need_engine() {
  pick_docker && return 0
  "$ROOT/script/engine"
  pick_docker && return 0
  # A membership granted a moment ago is not yet this shell's.
  if [ -z "${ENVCOMPARE_IN_GROUP:-}" ] && id -nG "$(id -un)" | grep -qw docker && command -v sg >/dev/null; then
    export ENVCOMPARE_IN_GROUP=1
    exec sg docker -c "$(printf '%q ' "$@")"
  fi
  fail "the Docker engine does not answer to $(id -un)" "$(docker info 2>&1 | tail -n 1)" \
    "log in again, so that the membership of group docker takes effect"
}

# base_image SUITE TAG PACKAGE...: a Debian image with these packages, pulled, or made from the archive alone.
base_image() {
  local suite=$1 tag=$2
  shift 2
  if "$DOCKER" image inspect "$tag" >/dev/null 2>&1; then return 0; fi
  if timeout 20 "$DOCKER" pull -q "debian:$suite-slim" >/dev/null 2>&1; then
    step "add $* to debian:$suite-slim" extend_base "$suite" "$tag" "$@" && return 0
  fi
  say "no base image can be pulled: making Debian $suite from the Debian archive"
  apt_install mmdebstrap debian-archive-keyring
  step "make $tag" as_root env DOCKER="$DOCKER" "$ROOT/containers/base.sh" "$suite" "$tag" "$(IFS=,; echo "$*")" ||
    fail "the base image $tag cannot be made" "see above" "check that this machine reaches a Debian mirror"
}

extend_base() {
  local suite=$1 tag=$2
  shift 2
  printf '%s\n' "FROM debian:$suite-slim" "ENV LANG=C.UTF-8" \
    "RUN apt-get update && apt-get install -y --no-install-recommends $* && rm -rf /var/lib/apt/lists/*" |
    "$DOCKER" build --network=host --build-arg http_proxy --build-arg https_proxy -t "$tag" -
}
