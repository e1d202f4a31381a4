#!/usr/bin/env bash
# Post-norm Transformers that are deep for their width, on Multi30k's text: who trains, who stalls. One curve a method.
# shellcheck disable=SC2317  # the functions of the stages are called by name
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
RECIPE=deep
PROGRESS_SECONDS=${PROGRESS_SECONDS:-30}
# shellcheck source=examples/common.sh
. "$ROOT/examples/common.sh"

DEFAULT_LAYERS=30-30 DEFAULT_UPDATES=500
DEFAULT_METHODS="plain deepnorm admin realformer_admin"
help() {
    cat <<TEXT
usage: bash examples/deep/run.sh [LAYERS] [METHOD...]     (default: $DEFAULT_LAYERS $DEFAULT_METHODS)

LAYERS: encoder and decoder layers, such as 18-18 or 60-12. METHOD: plain, deepnorm, admin, admin-torch, realformer or
realformer_admin. All have width 64, post-norm, RAdam and the learning rate of ADMIN's recipe, 1e-3. Training and
validation losses of all methods go into one picture.
Environment:
  UPDATES=$DEFAULT_UPDATES        updates a method
  SEED=1             random seed
  OUT=DIR            folder of the run (default: examples/deep/out/LAYERS.seedSEED)
  FAIRSEQ_ROPE_DATA  folder with multi30k/ in it (default: ../shared/data); what is missing is downloaded
  FAIRSEQ_ROPE_PYTHON  interpreter whose environment to use (default: .venv, made where it is missing)
  PROGRESS_SECONDS=30  time between two lines of progress
A second start of the same command reuses the finished stages and resumes an interrupted training; further methods
can be added to a finished run.
TEXT
}


case ${1:-} in -h | --help) help && exit ;; esac
LAYERS=${1:-$DEFAULT_LAYERS}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || read -r -a DEFAULTS <<<"$DEFAULT_METHODS"
METHODS=("$@")
[ ${#METHODS[@]} -gt 0 ] || METHODS=("${DEFAULTS[@]}")
for method in "${METHODS[@]}"; do
    case $method in
        plain | deepnorm | admin | admin-torch | realformer | realformer_admin) ;;
        *) usage_error "no method '$method'; there are: plain deepnorm admin admin-torch realformer realformer_admin" ;;
    esac
done
case $LAYERS in *-*) ;; *) usage_error "LAYERS must be encoder-decoder, such as 18-18, not '$LAYERS'" ;; esac
ENCODER_LAYERS=${LAYERS%%-*} DECODER_LAYERS=${LAYERS#*-}
UPDATES=${UPDATES:-$DEFAULT_UPDATES} SEED=${SEED:-1}
need_whole_number "encoder layers" "$ENCODER_LAYERS"
need_whole_number "decoder layers" "$DECODER_LAYERS"
need_whole_number UPDATES "$UPDATES"
need_whole_number SEED "$SEED"
OUT=$(absolute "${OUT:-$HERE/out/$LAYERS.seed$SEED}")
DATA=$(absolute "${FAIRSEQ_ROPE_DATA:-$ROOT/../shared/data}")/multi30k
STAGES=$((4 + ${#METHODS[@]}))

claim "$OUT" "layers=$LAYERS
seed=$SEED
updates=$UPDATES"
use_environment run
cd "$OUT"

collect() {
    rm -rf raw.tmp
    watched "raw text" prepare.log last_line "$PYTHON" "$ROOT/examples/multi30k/prepare.py" \
        --pair en-de --data "$DATA" --download "$OUT/download" --out raw.tmp
    mv raw.tmp raw
}

subwords() {
    rm -rf subwords.tmp
    watched "subwords" subwords.log last_line "$PYTHON" "$ROOT/examples/subwords.py" --raw raw --out subwords.tmp \
        --pair en-de --merges 4000 --splits train valid
    mv subwords.tmp subwords
}

binarize() {
    rm -rf data-bin.tmp
    watched "binarising" binarize.log last_line fairseq-preprocess -s en -t de --joined-dictionary \
        --trainpref subwords/train --validpref subwords/valid --destdir data-bin.tmp
    mv data-bin.tmp data-bin
}

# method_flags METHOD: what sets it apart. Everything else is the same for all.
method_flags() {
    case $1 in
        plain) FLAGS=(--arch baseline_wmt) ;;
        deepnorm | admin-torch) FLAGS=(--arch baseline_wmt --residual-init "$1") ;;
        admin) FLAGS=(--arch admin_wmt --admin-profile-out "$OUT/$1/profile.json") ;;
        realformer) FLAGS=(--arch realformer_wmt) ;;
        realformer_admin) FLAGS=(--arch realformer_admin_wmt --admin-profile-out "$OUT/$1/profile.json") ;;
    esac
}

# Learning rate, optimiser and clipping are those of ADMIN's recipe; its warm-up of 8,000 updates becomes 100, since the
# whole run is shorter than that. Batches are small because the point is the depth, not the score.
train() {
    local MAX_UPDATE=$UPDATES
    mkdir -p "$1"
    restore_last "$1/checkpoints"
    method_flags "$1"
    watched "$1" "$1/train.log" training fairseq-train data-bin --user-dir "$ROOT/fairseq_rope" \
        --task translation -s en -t de "${FLAGS[@]}" --share-all-embeddings \
        --encoder-layers "$ENCODER_LAYERS" --encoder-embed-dim 64 --encoder-ffn-embed-dim 128 --encoder-attention-heads 4 \
        --decoder-layers "$DECODER_LAYERS" --decoder-embed-dim 64 --decoder-ffn-embed-dim 128 --decoder-attention-heads 4 \
        --dropout 0.1 --optimizer radam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 \
        --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 100 --warmup-init-lr 1e-7 \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --max-tokens 1000 --max-update "$UPDATES" --seed "$SEED" --distributed-world-size 1 --num-workers 0 \
        --save-dir "$1/checkpoints" --save-interval-updates 100 --keep-interval-updates 1 --no-epoch-checkpoints \
        --validate-interval-updates 100 --log-format simple --log-interval 10
    touch "$1/train.done"
}

picture() {
    local logs=()
    for method in "${METHODS[@]}"; do logs+=("$method/train.log"); done
    watched "picture" plot.log last_line fairseq-rope-plot "${logs[@]}" --label "${METHODS[@]}" --out loss.tmp.png
    mv loss.tmp.png loss.png
}

# Read as a whole before it starts: bash would stumble over a script that changes (git pull) while it runs.
main() {
    say "Deep and narrow: $LAYERS layers, width 64, seed $SEED, $UPDATES updates, in $OUT"
    stage "raw text" raw collect
    stage "normalise, tokenise, BPE" subwords subwords
    stage "binarise" data-bin binarize
    for method in "${METHODS[@]}"; do stage "train $method" "$method/train.done" train "$method"; done
    rm -f loss.png
    stage "picture" loss.png picture
    grep 'training .* at update' plot.log | tail -n "${#METHODS[@]}" | sed 's/^/  /'
    for method in "${METHODS[@]}"; do
        say "  $method took $(sed -n 's/.*done training in \([0-9]*\).*/\1/p' "$method/train.log" | awk '{ t += $1 } END { print t }') s"
    done
    say "picture: $OUT/loss.png, logs: $OUT/METHOD/train.log"
}
main; exit
