#!/usr/bin/env bash
# Multi30k: image captions, raw text to BLEU. The size of a run, its folder and its seed come from the environment.
# shellcheck disable=SC2317  # the functions of the stages are called by name
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
RECIPE=multi30k
PROGRESS_SECONDS=${PROGRESS_SECONDS:-30}
# shellcheck source=examples/common.sh
. "$ROOT/examples/common.sh"

help() {
    cat <<'TEXT'
usage: bash examples/multi30k/run.sh [en-de|en-fr|de-en|fr-en] [ARCH]     (default: en-de roformer)

ARCH: a family (baseline, roformer, ...), which stands for its _iwslt preset, or a full name such as
roformer_wmt. SIZE decides on layers, widths and dropout whatever the preset says.
Environment:
  SIZE=laptop        laptop: 4,000 merges, 3+3 layers, 128/512/4, dropout .1, 10 epochs: half an hour on two cores
                     base:   8,000 merges, 3+3 layers, 256/1024/4, dropout .3, 30 epochs
  SEED=1             random seed
  OUT=DIR            folder of the run (default: examples/multi30k/out/PAIR.ARCH.SIZE.seedSEED)
  EPOCHS=N           other number of epochs
  TRAIN_ARGS=...     further options for fairseq-train, separated by spaces
  FAIRSEQ_ROPE_DATA  folder with multi30k/ in it (default: ../shared/data); what is missing is downloaded
  FAIRSEQ_ROPE_PYTHON  interpreter whose environment to use (default: .venv, made where it is missing)
  PROGRESS_SECONDS=30  time between two lines of progress
A second start of the same command reuses the finished stages and resumes an interrupted training.
TEXT
}

case ${1:-} in -h | --help) help && exit ;; esac
[ $# -le 2 ] || usage_error "at most two arguments, not $#: $*"
PAIR=${1:-en-de} ARCH=${2:-roformer} SIZE=${SIZE:-laptop} SEED=${SEED:-1} TRAIN_ARGS=${TRAIN_ARGS:-}
case $PAIR in
    en-de | en-fr | de-en | fr-en) SRC=${PAIR%-*} TGT=${PAIR#*-} ;;
    *) usage_error "no language pair '$PAIR'; there are: en-de en-fr de-en fr-en" ;;
esac
FULL_ARCH=$(full_arch "$ARCH")
check_arch "$FULL_ARCH"
case $SIZE in
    laptop) MERGES=4000 DIM=128 FFN=512 DROPOUT=0.1 DEFAULT_EPOCHS=10 ;;
    base) MERGES=8000 DIM=256 FFN=1024 DROPOUT=0.3 DEFAULT_EPOCHS=30 ;;
    *) usage_error "no SIZE '$SIZE'; there are: laptop base" ;;
esac
MAX_EPOCH=${EPOCHS:-$DEFAULT_EPOCHS}
need_whole_number EPOCHS "$MAX_EPOCH"
need_whole_number SEED "$SEED"
OUT=$(absolute "${OUT:-$HERE/out/$PAIR.$ARCH.$SIZE.seed$SEED}")
DATA=$(absolute "${FAIRSEQ_ROPE_DATA:-$ROOT/../shared/data}")/multi30k
read -r -a MORE_TRAIN_ARGS <<<"$TRAIN_ARGS"
STAGES=7

claim "$OUT" "pair=$PAIR
arch=$FULL_ARCH
size=$SIZE
seed=$SEED
epochs=$MAX_EPOCH
train_args=$TRAIN_ARGS"
use_environment run
cd "$OUT"

collect() {
    rm -rf raw.tmp
    watched "raw text" prepare.log last_line "$PYTHON" "$HERE/prepare.py" \
        --pair "$PAIR" --data "$DATA" --download "$OUT/download" --out raw.tmp
    { grep '^note:' prepare.log || true; } | tail -n 1 | sed 's/^/      /'
    mv raw.tmp raw
}

subwords() {
    rm -rf subwords.tmp
    watched "subwords" subwords.log last_line "$PYTHON" "$ROOT/examples/subwords.py" --raw raw --out subwords.tmp \
        --pair "$PAIR" --merges "$MERGES" --splits train valid test_2016 test_2017
    mv subwords.tmp subwords
}

binarize() {
    rm -rf data-bin.tmp
    watched "binarising" binarize.log last_line fairseq-preprocess -s "$SRC" -t "$TGT" --joined-dictionary \
        --trainpref subwords/train --validpref subwords/valid --testpref subwords/test_2016,subwords/test_2017 \
        --destdir data-bin.tmp
    mv data-bin.tmp data-bin
}

# One process whatever the machine, so that a batch is 4,096 tokens everywhere.
train() {
    restore_last checkpoints
    watched "training" train.log training fairseq-train data-bin --user-dir "$ROOT/fairseq_rope" \
        --task translation -s "$SRC" -t "$TGT" --arch "$FULL_ARCH" --share-all-embeddings \
        --encoder-layers 3 --encoder-embed-dim "$DIM" --encoder-ffn-embed-dim "$FFN" --encoder-attention-heads 4 \
        --decoder-layers 3 --decoder-embed-dim "$DIM" --decoder-ffn-embed-dim "$FFN" --decoder-attention-heads 4 \
        --dropout "$DROPOUT" --optimizer adam --adam-betas '(0.9, 0.98)' \
        --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 600 \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --max-tokens 4096 --max-epoch "$MAX_EPOCH" --seed "$SEED" --distributed-world-size 1 --num-workers 0 \
        --save-dir checkpoints --keep-last-epochs 5 --log-format simple --log-interval 10 "${MORE_TRAIN_ARGS[@]}"
    touch train.done
}

average() {
    local count=5
    [ "$MAX_EPOCH" -ge 5 ] || count=$MAX_EPOCH
    watched "averaging" average.log last_line \
        fairseq-rope-average --inputs checkpoints --num-epoch-checkpoints "$count" --output average.tmp.pt
    mv average.tmp.pt average.pt
}

# translate NAME SUBSET: beam search on one test set, its output in NAME.gen.
translate() {
    rm -f "$1.gen.tmp"
    watched "translating $1" "$1.gen.tmp" count_translations fairseq-generate data-bin --user-dir "$ROOT/fairseq_rope" \
        --task translation -s "$SRC" -t "$TGT" --path average.pt --gen-subset "$2" --remove-bpe \
        --beam 4 --lenpen 0.6 --max-tokens 4096 --distributed-world-size 1 --num-workers 0
    mv "$1.gen.tmp" "$1.gen"
}

translate_all() {
    [ -e test_2016.gen ] || translate test_2016 test
    [ -e test_2017.gen ] || translate test_2017 test1
    touch generate.done
}

score() {
    for name in test_2016 test_2017; do
        watched "scoring $name" score.log last_line fairseq-rope-score "$name.gen" --ref "raw/$name.$TGT" --pair "$PAIR" \
            --json "$name.json" --hypotheses "$name.$TGT"
    done
    merge_scores scores.json test_2016=test_2016.json test_2017=test_2017.json
}

# Read as a whole before it starts: bash would stumble over a script that changes (git pull) while it runs.
main() {
    say "Multi30k $PAIR, $FULL_ARCH, SIZE=$SIZE, seed $SEED, $MAX_EPOCH epochs, in $OUT"
    stage "raw text" raw collect
    stage "normalise, tokenise, BPE" subwords subwords
    stage "binarise" data-bin binarize
    stage "train" train.done train
    stage "average the last epochs" average.pt average
    stage "translate with beam 4" generate.done translate_all
    stage "score" scores.json score
    print_scores scores.json
    say "training took $(sed -n 's/.*done training in \([0-9]*\).*/\1/p' train.log | awk '{ t += $1 } END { print t }') s"
    say "scores: $OUT/scores.json, translations: $OUT/test_201[67].$TGT, model: $OUT/average.pt"
}
main; exit
