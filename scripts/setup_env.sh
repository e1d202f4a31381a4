#!/usr/bin/env bash
# Makes .venv in the root of this checkout, or finishes or reuses it: `setup_env.sh run` installs what translation
# needs, and CTranslate2 where there is a wheel of it; `setup_env.sh test` the tools of the tests too. Safe to
# interrupt: what was not finished is made again.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
RECIPE=setup_env
# shellcheck source=examples/common.sh
. "$ROOT/examples/common.sh"

case ${1:-run} in
    run) EXTRA='' ;;
    test) EXTRA='[test]' ;;
    *) usage_error "usage: setup_env.sh [run|test], not '$1'" ;;
esac
KIND=${1:-run}
VENV=$ROOT/.venv
OURS=$VENV/made-by-setup_env
LOG=$VENV/install.log

# What a finished environment was made from: another setup.py or another place asks for a new installation.
STAMP="$ROOT $(cksum <"$ROOT/setup.py")"
finished() { [ "$(cat "$VENV/finished-$1" 2>/dev/null)" = "$STAMP" ]; }

# find_python: path of a Python that setup.py accepts. Each candidate is started, since a name on PATH may be a
# shim of a version manager that has nothing behind it.
find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3 python "$HOME"/.pyenv/versions/3.1[12].*/bin/python \
        "$HOME"/.local/share/uv/python/cpython-3.1[12]*/bin/python3 /usr/local/bin/python3.1[12] /opt/python*/bin/python3.1[12]; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "no Python 3.11 or 3.12 found (tried python3.11, python3.12, python3, python, pyenv, uv): install one, or name the interpreter of a finished environment in FAIRSEQ_ROPE_PYTHON"
}

if command -v flock >/dev/null; then
    exec 8<"$ROOT"
    flock -n 8 || say "another process is setting up $VENV: waiting for it"
    flock 8
fi
if finished "$KIND" || finished test; then
    say "environment: $VENV, finished earlier, reused"
    exit
fi

# An environment that this script began but never finished may hold half a package, so it is made afresh; one
# that was finished for another setup.py is brought up to date; one of the user's own is used, never removed.
begun_elsewhere_or_unfinished() {
    [ -e "$OURS" ] || return
    [ "$(cat "$OURS")" != "$ROOT" ] || ! ls "$VENV"/finished-* >/dev/null 2>&1
}
if begun_elsewhere_or_unfinished; then
    say "environment: $VENV was not finished or has been moved, making it again"
    rm -rf "$VENV"
fi
if [ ! -e "$VENV/bin/python" ]; then
    PYTHON=$(find_python)
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        die "$PYTHON cannot make virtual environments: install its venv package (Debian, Ubuntu: apt-get install python3-venv)"
    say "environment: making $VENV with $("$PYTHON" --version)"
    mkdir -p "$VENV" || die "cannot write to $ROOT"
    say "$ROOT" >"$OURS"
    "$PYTHON" -m venv "$VENV"
elif ! "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
    die "$VENV has $("$VENV/bin/python" --version 2>&1), but Python 3.11 or 3.12 is needed: remove or rename that folder"
fi
rm -f "$VENV"/finished-*

# pip, with the exit code 0 whatever comes of it: for what may be missing.
TRY_PIP='import runpy
try:
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
except SystemExit as end:
    if end.code:
        print("pip ended with", end.code)'

TORCH=$(sed -n "s/^ *['\"]\(torch==[^'\";]*\).*/\1/p" "$ROOT/setup.py")
DEPLOY=$(sed -n "s/.*['\"]\(ctranslate2[^'\"]*\)['\"].*/\1/p" "$ROOT/setup.py")
cd "$ROOT"
say "environment: pip's output goes to $LOG"
watched "pip" "$LOG" last_line "$VENV/bin/python" -m pip install --upgrade pip
watched "$TORCH" "$LOG" last_line "$VENV/bin/python" -m pip install "$TORCH"
watched "fairseq-rope$EXTRA" "$LOG" last_line "$VENV/bin/python" -m pip install -e ".$EXTRA"
if [ "$KIND" = run ]; then # the tests' extra has it
    watched "$DEPLOY" "$LOG" last_line "$VENV/bin/python" -c "$TRY_PIP" install "$DEPLOY"
    "$VENV/bin/python" -c 'import ctranslate2' 2>>"$LOG" ||
        say "environment: goes without $DEPLOY, which could not be installed ($LOG says why): only fairseq-rope-export and its models need it"
fi
say "$STAMP" >"$VENV/finished-$KIND"
say "environment: $VENV is finished"
