# shellcheck shell=bash
# Shell functions of the recipes in examples/ (and of scripts/): source this file after setting ROOT, the
# folder of the checkout, and RECIPE, the name that error messages begin with.

export LC_ALL=C PYTHONUTF8=1 PYTHONUNBUFFERED=1
# A torch thread that waits for another lets go of its core. Spinning, the default, makes training several times slower
# on a machine that has anything else to do.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}

PROGRESS_SECONDS=${PROGRESS_SECONDS:-8}
STAGE=0
STAGES=0 # how many there will be: set by the recipe
CHILD=
SENTENCES= # how many are translated, for the progress of a translation

say() { printf '%s\n' "$*"; }

die() {
    printf '%s: %s\n' "$RECIPE" "$*" >&2
    exit 1
}

usage_error() {
    printf '%s: %s (--help lists what is valid)\n' "$RECIPE" "$*" >&2
    exit 2
}

# absolute PATH: the path seen from /, whether it exists or not.
absolute() {
    case $1 in
        /*) printf '%s\n' "$1" ;;
        *) printf '%s/%s\n' "$PWD" "$1" ;;
    esac
}

# need_whole_number NAME VALUE: stop unless VALUE is a whole number of at least 1.
need_whole_number() {
    case $2 in
        '' | *[!0-9]* | 0*) usage_error "$1 must be a whole number of at least 1, not '$2'" ;;
    esac
}

# A child that outlived its recipe would go on writing into the folder that the next start resumes in.
GUARD=()
if setpriv --pdeathsig KILL true 2>/dev/null; then GUARD=(setpriv --pdeathsig KILL --); fi

interrupted() {
    trap - INT TERM HUP
    if [ -n "$CHILD" ]; then
        kill -TERM "$CHILD" 2>/dev/null || true
        wait "$CHILD" 2>/dev/null || true
    fi
    printf '\n%s: interrupted; the same command goes on from here\n' "$RECIPE" >&2
    exit 130
}
trap interrupted INT TERM HUP

# stage TITLE TARGET COMMAND...: run COMMAND, which makes TARGET, unless an earlier run has made it. COMMAND
# works under temporary names and renames to TARGET last, so TARGET is either whole or absent.
stage() {
    local title=$1 target=$2
    shift 2
    STAGE=$((STAGE + 1))
    if [ -e "$target" ]; then
        say "[$STAGE/$STAGES] $title: finished earlier, reused"
        return
    fi
    say "[$STAGE/$STAGES] $title"
    "$@"
    [ -e "$target" ] || die "stage $STAGE ($title) ended without its result $target"
}

# watched LABEL LOG PROGRESS COMMAND...: run COMMAND, output appended to LOG, and print a line every
# PROGRESS_SECONDS with what the function PROGRESS says of the new part of LOG. A failure shows the log's end.
watched() {
    local label=$1 log=$2 progress=$3 began=$SECONDS shown=$SECONDS code=0
    shift 3
    LOG_START=$(($(wc -c 2>/dev/null <"$log" || echo 0) + 1))
    FIRST_UPDATE=
    printf '$%s\n' "$(printf ' %q' "$@")" >>"$log"
    "${GUARD[@]}" "$@" >>"$log" 2>&1 &
    CHILD=$!
    while kill -0 "$CHILD" 2>/dev/null; do
        if [ $((SECONDS - shown)) -ge "$PROGRESS_SECONDS" ]; then
            shown=$SECONDS
            "$progress" "$log"
            say "      $label, $(clock $((SECONDS - began))): ${REPLY:-at work}"
        fi
        sleep 0.3
    done
    wait "$CHILD" || code=$?
    CHILD=
    if [ "$code" -ne 0 ]; then
        tail -n 12 "$log" | cut -c1-400 >&2
        die "$label failed with exit code $code; its whole output is in $(absolute "$log")"
    fi
}

clock() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }

new_lines() { tail -c "+$LOG_START" "$1"; }

# Progress functions: each leaves in REPLY a few words on the part of LOG that this run has written.
last_line() {
    REPLY=$(new_lines "$1" | tr '\r' '\n' | grep -v '^\$\|^  ' | grep '[^[:space:]]' | tail -n 1 |
        sed 's/^[-0-9: ]* | INFO | [^|]* | //' | cut -c1-100) || true
}

# count_translations LOG: sentences so far, and the time left for SENTENCES of them where that is known.
count_translations() {
    local number
    number=$(new_lines "$1" | grep -c '^H-') || true
    REPLY="$number sentences translated"
    [ -n "${SENTENCES:-}" ] || return 0
    REPLY="$number of $SENTENCES sentences translated"
    # `began` is when `watched`, which calls this, started the program
    if [ "$number" -gt 0 ]; then REPLY+=", about $(clock $(((SENTENCES - number) * (SECONDS - began) / number))) left"; fi
}

# training LOG: update, loss and time left, for MAX_UPDATE updates or else MAX_EPOCH epochs.
training() {
    local line epoch step of update loss total
    local pattern='s/.*train_inner | epoch 0*\([0-9]*\): *\([0-9]*\) \/ \([0-9]*\) loss=\([0-9.]*\).*num_updates=\([0-9]*\).*/\1 \2 \3 \4 \5/p'
    line=$(new_lines "$1" | sed -n "$pattern" | tail -n 1)
    REPLY="no update reported yet"
    [ -n "$line" ] || return 0
    read -r epoch step of loss update <<<"$line"
    total=${MAX_UPDATE:-$((update + of - step + of * (MAX_EPOCH - epoch)))}
    REPLY="epoch $epoch, update $update of $total, loss $loss"
    if [ -z "$FIRST_UPDATE" ]; then
        FIRST_UPDATE=$update FIRST_SECONDS=$SECONDS LAST_UPDATE=$update
    elif [ "$update" -gt "$LAST_UPDATE" ]; then
        LAST_UPDATE=$update
        LEFT=$(((total - update) * (SECONDS - FIRST_SECONDS) / (update - FIRST_UPDATE)))
    fi
    if [ "$LAST_UPDATE" -gt "$FIRST_UPDATE" ]; then REPLY+=", about $(clock "$LEFT") left"; fi
}

# claim OUT OPTIONS: OUT becomes the folder of a run with these OPTIONS (lines of name=value), or goes on being
# so; a folder of other options or with other files is refused, since their results would be mixed.
claim() {
    local out=$1 options=$2 file=$1/options.txt
    mkdir -p "$out" 2>/dev/null || die "cannot make the folder $out"
    [ -w "$out" ] || die "cannot write to the folder $out"
    exec 9<"$out"
    if command -v flock >/dev/null && ! flock -w 10 9; then die "another run is at work in $out"; fi
    if [ -s "$file" ]; then
        [ "$(cat "$file")" = "$options" ] || {
            diff <(cat "$file") <(printf '%s\n' "$options") | grep '^[<>]' | sed 's/^</  before: /; s/^>/  now:    /' >&2 || true
            die "$out belongs to a run with other options (above): choose another folder, or remove this one"
        }
    elif [ -n "$(find "$out" -mindepth 1 -maxdepth 1 ! -name options.txt ! -name .options)" ]; then
        die "$out holds files of something else: choose a new or empty folder"
    else
        printf '%s\n' "$options" >"$out/.options"
        mv "$out/.options" "$file"
    fi
}

# use_environment run|test: put the programs of $FAIRSEQ_ROPE_PYTHON's environment on PATH, by default those of
# .venv (which scripts/setup_env.sh makes where it is missing); PYTHON is its interpreter.
use_environment() {
    if [ -z "${FAIRSEQ_ROPE_PYTHON:-}" ]; then
        bash "$ROOT/scripts/setup_env.sh" "$1" || exit
        FAIRSEQ_ROPE_PYTHON=$ROOT/.venv/bin/python
    fi
    PYTHON=$(command -v "$FAIRSEQ_ROPE_PYTHON") || die "FAIRSEQ_ROPE_PYTHON: no program '$FAIRSEQ_ROPE_PYTHON'"
    PATH=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$PATH
    for program in fairseq-train fairseq-rope-average; do
        command -v "$program" >/dev/null ||
            die "$program is not installed for $PYTHON: pip install . there, or unset FAIRSEQ_ROPE_PYTHON"
    done
}

# full_arch ARCH: a family's name stands for its _iwslt preset, any other name for itself.
full_arch() {
    case $1 in
        baseline | roformer | tupe_a | tupe_r | realformer | admin | realformer_admin) say "$1_iwslt" ;;
        *) say "$1" ;;
    esac
}

# check_arch ARCH: stop unless ARCH is one of this package's presets or a stock Transformer.
check_arch() {
    local presets=$ROOT/fairseq_rope/config/model
    case $1 in transformer*) return ;; esac
    [ -e "$presets/$1.yaml" ] ||
        usage_error "no architecture '$1'; there are: $(cd "$presets" && printf '%s ' *.yaml | sed 's/\.yaml//g')"
}

# restore_last FOLDER: a kill while fairseq copies a checkpoint can leave half a checkpoint_last.pt; the file
# that it was copied from is whole, so the newest whole checkpoint takes its place.
restore_last() {
    "$PYTHON" - "$1" <<'PYTHON'
import os, shutil, sys, zipfile
from pathlib import Path

folder = Path(sys.argv[1])
last = folder / "checkpoint_last.pt"
if last.exists() and not zipfile.is_zipfile(last):
    whole = [p for p in folder.glob("checkpoint*[0-9].pt") if zipfile.is_zipfile(p)]
    if whole:
        newest = max(whole, key=lambda p: p.stat().st_mtime_ns)
        shutil.copyfile(newest, folder / "copy.tmp")
        os.replace(folder / "copy.tmp", last)
        print(f"      checkpoint_last.pt was cut short: going on from {newest.name}")
    else:
        last.unlink()
        print("      checkpoint_last.pt was cut short: starting the training afresh")
PYTHON
}

# newest_checkpoints FOLDER: the last 5 epoch and update checkpoints (all, if fewer), one a line.
newest_checkpoints() { find "$1" -name 'checkpoint*[0-9].pt' -printf '%T@ %p\n' | sort -n | tail -n 5 | cut -d' ' -f2-; }

# merge_scores OUT NAME=FILE...: one scores.json of several files that fairseq-rope-score wrote.
merge_scores() {
    "$PYTHON" - "$@" <<'PYTHON'
import json, os, sys

out, pairs = sys.argv[1], [pair.split("=", 1) for pair in sys.argv[2:]]
scores = {}
for name, path in pairs:
    with open(path, encoding="utf-8") as file:
        score = json.load(file)
    scores[name] = {metric: round(score[metric], 2) for metric in ("bleu", "chrf")}
with open(out + ".tmp", "w", encoding="utf-8") as file:
    json.dump({**scores, "signature": score["signature"]}, file, indent=1)
os.replace(out + ".tmp", out)
PYTHON
}

# print_scores FILE: what merge_scores wrote, for people.
print_scores() {
    "$PYTHON" - "$1" <<'PYTHON'
import json, sys

with open(sys.argv[1], encoding="utf-8") as file:
    scores = json.load(file)
signature = scores.pop("signature")
for name, score in scores.items():
    print(f"  {name:11} BLEU {score['bleu']:.2f}   chrF {score['chrf']:.2f}")
for metric, text in signature.items():
    print(f"  {metric:11} {text}")
PYTHON
}
