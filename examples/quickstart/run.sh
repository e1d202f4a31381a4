#!/usr/bin/env bash
# Quick start: a generated corpus (or your own), a small RoFormer, its translations, their scores, and its export.
# shellcheck disable=SC2317  # the functions of the stages are called by name
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
RECIPE=quickstart
# shellcheck source=examples/common.sh
. "$ROOT/examples/common.sh"

help() {
    cat <<'TEXT'
usage: bash scripts/quickstart.sh [options]

  --arch ARCH      a family (roformer, baseline, ...), which stands for its _iwslt preset, or a full name
                   (default: roformer); sizes are this recipe's, 3+3 layers of width 128, whatever the preset says
  --pair SRC-TGT   en-de or en-fr; with --data any two language codes (default: en-de)
  --data DIR       translate your own text: DIR/{train,valid,test}.SRC and .TGT, or with the endings .src and .tgt;
                   UTF-8, one sentence a line, not tokenised. If there is a test_long, it is scored too.
  --updates N      length of the training (default: 800)
  --out DIR        folder of the run (default: quickstart-out, in the checkout)
  --keep           keep the training checkpoints; without it, all but the averaged model are removed at the end
  -h, --help       this text

FAIRSEQ_ROPE_PYTHON names the interpreter whose environment to use (default: .venv, made where it is missing).
A second start with the same options reuses the finished stages and resumes an interrupted training; other options
need another --out.
TEXT
}

ARCH=roformer PAIR=en-de DATA='' UPDATES=800 OUT=$ROOT/quickstart-out KEEP=''
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) help && exit ;;
        --keep) KEEP=yes ;;
        --arch=* | --pair=* | --data=* | --updates=* | --out=*)
            set -- "${1%%=*}" "${1#*=}" "${@:2}"
            continue
            ;;
        --arch | --pair | --data | --updates | --out)
            [ -n "${2:-}" ] || usage_error "$1 needs a value"
            case $1 in
                --arch) ARCH=$2 ;;
                --pair) PAIR=$2 ;;
                --data) DATA=$(absolute "$2") ;;
                --updates) UPDATES=$2 ;;
                --out) OUT=$(absolute "$2") ;;
            esac
            shift
            ;;
        *) usage_error "unknown option '$1'" ;;
    esac
    shift
done
case ${DATA:+own}$PAIR in
    en-de | en-fr) ;;
    own[a-z][a-z]-[a-z][a-z]) ;;
    own*) usage_error "--pair takes two language codes such as en-de, not '$PAIR'" ;;
    *) usage_error "no language pair '$PAIR'; there are: en-de en-fr (others with --data)" ;;
esac
SRC=${PAIR%-*} TGT=${PAIR#*-}
[ "$SRC" != "$TGT" ] || usage_error "--pair takes two different languages, not '$PAIR'"
need_whole_number --updates "$UPDATES"
FULL_ARCH=$(full_arch "$ARCH")
check_arch "$FULL_ARCH"
# shellcheck disable=SC2034  # read by the progress function `training`
MAX_UPDATE=$UPDATES
TESTS=(test test_long)
STAGES=10

# check_own_data: sets ENDINGS and TESTS from what is in --data; stops with one line that names what is unfit.
check_own_data() {
    local split lines
    [ -d "$DATA" ] || die "--data: there is no folder $DATA"
    ENDINGS=("$SRC" "$TGT")
    if [ ! -e "$DATA/train.$SRC" ] && [ -e "$DATA/train.src" ]; then ENDINGS=(src tgt); fi
    [ -e "$DATA/test_long.${ENDINGS[0]}" ] || TESTS=(test)
    for split in train valid "${TESTS[@]}"; do
        lines=()
        for ending in "${ENDINGS[@]}"; do
            [ -f "$DATA/$split.$ending" ] ||
                die "--data: $DATA/$split.$ending is missing; needed are train, valid and test with the endings .$SRC and .$TGT, or .src and .tgt"
            [ -r "$DATA/$split.$ending" ] || die "--data: cannot read $DATA/$split.$ending"
            grep -q '[^[:space:]]' "$DATA/$split.$ending" || die "--data: $DATA/$split.$ending is empty"
            lines+=("$(grep -c '' "$DATA/$split.$ending")")
        done
        [ "${lines[0]}" -eq "${lines[1]}" ] ||
            die "--data: $split.${ENDINGS[0]} has ${lines[0]} lines, but $split.${ENDINGS[1]} has ${lines[1]}; line i of one must translate line i of the other"
    done
}
CORPUS="generated" MERGES=2500
if [ -n "$DATA" ]; then
    check_own_data
    MERGES=4000
    CORPUS="$DATA $(cd "$DATA" && cat -- {train,valid,"${TESTS[@]}"}.{"${ENDINGS[0]}","${ENDINGS[1]}"} | cksum)"
fi
claim "$OUT" "arch=$FULL_ARCH
pair=$PAIR
corpus=$CORPUS
updates=$UPDATES"
use_environment run
cd "$OUT"

corpus() {
    rm -rf raw.tmp
    if [ -z "$DATA" ]; then
        watched "corpus" corpus.log last_line "$PYTHON" "$HERE/make_corpus.py" --pair "$PAIR" --out raw.tmp
    else
        mkdir raw.tmp
        for split in train valid "${TESTS[@]}"; do
            cp "$DATA/$split.${ENDINGS[0]}" "raw.tmp/$split.$SRC"
            cp "$DATA/$split.${ENDINGS[1]}" "raw.tmp/$split.$TGT"
        done
    fi
    mv raw.tmp raw
}

subwords() {
    rm -rf subwords.tmp
    watched "subwords" subwords.log last_line "$PYTHON" "$ROOT/examples/subwords.py" --raw raw --out subwords.tmp \
        --pair "$PAIR" --merges "$MERGES" --splits train valid "${TESTS[@]}"
    mv subwords.tmp subwords
}

binarize() {
    local tests
    tests=$(printf ',subwords/%s' "${TESTS[@]}")
    rm -rf data-bin.tmp
    watched "binarising" binarize.log last_line fairseq-preprocess -s "$SRC" -t "$TGT" --joined-dictionary \
        --trainpref subwords/train --validpref subwords/valid --testpref "${tests#,}" --destdir data-bin.tmp
    mv data-bin.tmp data-bin
}

# 25 checkpoints in a training: the last five are averaged, and an interruption loses no more than one such step.
train() {
    local every=$(((UPDATES + 24) / 25))
    restore_last checkpoints
    watched "training" train.log training fairseq-train data-bin --user-dir "$ROOT/fairseq_rope" \
        --task translation -s "$SRC" -t "$TGT" --arch "$FULL_ARCH" --share-all-embeddings \
        --encoder-layers 3 --encoder-embed-dim 128 --encoder-ffn-embed-dim 512 --encoder-attention-heads 4 \
        --decoder-layers 3 --decoder-embed-dim 128 --decoder-ffn-embed-dim 512 --decoder-attention-heads 4 \
        --dropout 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' \
        --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates $((UPDATES / 5 + 1)) \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --max-tokens 2048 --max-update "$UPDATES" --seed 1 --distributed-world-size 1 --num-workers 0 \
        --save-dir checkpoints --save-interval-updates "$every" --keep-interval-updates 5 --keep-last-epochs 5 \
        --log-format simple --log-interval 10
    touch checkpoints/finished
}

average() {
    mapfile -t newest < <(newest_checkpoints checkpoints)
    watched "averaging" average.log last_line fairseq-rope-average --inputs "${newest[@]}" --output average.tmp.pt
    say "      of ${#newest[@]} checkpoints: ${newest[*]#checkpoints/}"
    mv average.tmp.pt average.pt
}

# The first test set is fairseq's subset test, the second one test1.
translate() {
    local subset=test
    for name in "${TESTS[@]}"; do
        if [ ! -e "$name.gen" ]; then
            rm -f "$name.gen.tmp"
            watched "translating $name" "$name.gen.tmp" count_translations \
                fairseq-generate data-bin --user-dir "$ROOT/fairseq_rope" --task translation -s "$SRC" -t "$TGT" \
                --path average.pt --gen-subset "$subset" --remove-bpe --beam 4 --lenpen 0.6 \
                --max-tokens 4096 --distributed-world-size 1 --num-workers 0
            mv "$name.gen.tmp" "$name.gen"
        fi
        subset=test1
    done
    touch translate.done
}

score() {
    local parts=()
    for name in "${TESTS[@]}"; do
        watched "scoring $name" score.log last_line fairseq-rope-score "$name.gen" --ref "raw/$name.$TGT" --pair "$PAIR" \
            --json "$name.json" --hypotheses "$name.$TGT"
        parts+=("$name=$name.json")
    done
    merge_scores scores.json "${parts[@]}"
}

samples() {
    paste -d '\n' <(sed 5q "raw/test.$SRC") <(sed 5q "raw/test.$TGT") <(sed 5q "test.$TGT") |
        sed "1~3s/^/\n  $SRC          /; 2~3s/^/  reference   /; 3~3s/^/  translation /" >samples.tmp
    mv samples.tmp samples.txt
}

picture() {
    watched "picture" plot.log last_line fairseq-rope-plot train.log --out loss.tmp.png
    mv loss.tmp.png loss.png
}

# exportable: whether the trained model can be exported here; else says in one line why not.
exportable() {
    local check='import sys, ctranslate2 as c; sys.exit(tuple(map(int, c.__version__.split(".")[:2])) < (4, 8))'
    case $FULL_ARCH in
        baseline_* | roformer_* | admin_*) ;;
        *)
            say "export: left out, since fairseq-rope-export takes baseline, roformer and admin models, not $FULL_ARCH"
            return 1
            ;;
    esac
    "$PYTHON" -c "$check" 2>/dev/null && return
    say "export: left out, since CTranslate2 is not installed: $PYTHON -m pip install 'ctranslate2>=4.8', then the same command again"
    return 1
}

# In float32, which translates as average.pt does; int8 changes a few translations, and gains so small a model little.
# The folder appears whole; what a killed export left beside it goes.
export_model() {
    rm -rf .model-ct2.*
    watched "export" export.log last_line fairseq-rope-export --path average.pt --data data-bin -s "$SRC" -t "$TGT" \
        --quantization float32 --output model-ct2
}

# typed_sentence: one that the training text does not have, of its kind; or the first of one's own test set.
typed_sentence() {
    if [ -z "$DATA" ]; then
        say "My sister buys a red flower."
    else
        # what begins with a dash would be an option of the echo that is shown
        { grep -m 1 '^[[:space:]]*[^-[:space:]]' "raw/test.$SRC" || grep -m 1 '[^[:space:]]' "raw/test.$SRC"; } | tr -d '\000-\037'
    fi
}

# Read as a whole before it starts: bash would stumble over a script that changes (git pull) while it runs.
main() {
    local bin sentence model without=''
    bin=$(dirname "$PYTHON")
    say "Quick start: $PAIR, $FULL_ARCH, $UPDATES updates, in $OUT"
    without=$(exportable) || STAGES=9
    TRAINED=checkpoints/finished
    if [ -e average.pt ]; then TRAINED=average.pt; fi # the checkpoints may have been removed at the end of a run
    stage "corpus" raw corpus
    stage "tokens and subwords (BPE)" subwords subwords
    stage "binarise" data-bin binarize
    stage "train" "$TRAINED" train
    stage "average the last checkpoints" average.pt average
    stage "translate with beam 4" translate.done translate
    stage "score" scores.json score
    stage "sample translations" samples.txt samples
    stage "loss curve" loss.png picture
    if [ -z "$without" ]; then stage "export for CTranslate2" model-ct2 export_model; else say "$without"; fi
    [ -n "$KEEP" ] || rm -rf checkpoints

    cat samples.txt
    say
    print_scores scores.json
    cat <<TEXT

Everything lies in $OUT:
  scores.json        the figures above
  test.$TGT            translations of raw/test.$SRC (test.gen: fairseq-generate's own output)
  loss.png           loss curve of train.log
  average.pt         the model, with data-bin/ (dictionaries) and subwords/codes (BPE)
TEXT
    if [ -z "$without" ]; then
        sentence=$(typed_sentence)
        say "  model-ct2          the model, exported: raw text in and out, without fairseq and torch"
        say
        say "\$ echo '${sentence//"'"/"'\''"}' | $bin/fairseq-rope-translate '$OUT/model-ct2'"
        say "$sentence" | fairseq-rope-translate model-ct2 --quiet || die "the exported model $OUT/model-ct2 does not translate (above): remove it, and the same command exports it again"
        model="'$OUT/model-ct2'"
    else
        model="'$OUT/average.pt' --data '$OUT/data-bin'"
    fi
    cat <<TEXT

Translate sentences of your own, one a line:
  $bin/fairseq-rope-translate $model --input FILE
or with fairseq's own program:
  $bin/fairseq-interactive '$OUT/data-bin' --user-dir '$ROOT/fairseq_rope' -s $SRC -t $TGT \\
    --path '$OUT/average.pt' --tokenizer moses --bpe subword_nmt --bpe-codes '$OUT/subwords/codes' --beam 4 --lenpen 0.6
TEXT
}
main; exit
