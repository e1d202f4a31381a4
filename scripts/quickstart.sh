#!/usr/bin/env bash
# From a fresh checkout to a trained, scored translation model: makes .venv where it is missing, then runs the
# quick start's recipe. Takes its options (--help lists them).
exec bash "$(dirname "${BASH_SOURCE[0]}")/../examples/quickstart/run.sh" "$@"
