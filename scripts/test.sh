#!/usr/bin/env bash
# Environment, lint and all tests; further arguments go to pytest. The last line counts the results, a failed lint
# step as one failure. TEST_WORKERS (default 2) is the number of test processes, each of one thread.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
RECIPE="test"
# shellcheck source=examples/common.sh
. "$ROOT/examples/common.sh"
trap - INT TERM HUP # pytest ends by itself on Ctrl-C and still reports

use_environment test
cd "$ROOT"
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
failed=0
report=$(mktemp)
trap 'rm -f "$report"' EXIT

for lint in check "format --check"; do
    say "ruff $lint"
    # shellcheck disable=SC2086  # two words on purpose
    "$PYTHON" -m ruff $lint . || failed=$((failed + 1))
done

# TEST_WORKERS=0 runs the tests in one process, which --pdb needs.
code=0
"$PYTHON" -m pytest -n "${TEST_WORKERS:-2}" --junitxml "$report" -o junit_family=xunit2 "$@" || code=$?

"$PYTHON" - "$report" "$failed" "$code" <<'PYTHON'
import sys
import xml.etree.ElementTree as xml

report, failed, code = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
passed = skipped = 0
try:
    for case in xml.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed += 1
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
except xml.ParseError:
    print("pytest ended before it wrote its report")
if code and not failed:
    failed = 1  # no test ran, or pytest itself failed
print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(failed != 0)
PYTHON
