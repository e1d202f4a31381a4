#!/usr/bin/env bash
# Training and translating on one GPU in fp32, fp16 and bf16, short settings: about three minutes when WORK (default
# benchmarks/out/work) holds the corpus and the weights, two more when they have to be made there.
#   WORK=DIR OUT=DIR PYTHON=python bash benchmarks/device.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
PYTHON=${PYTHON:-python}
OUT=${OUT:-$PWD/out}
WORK=${WORK:-$PWD/out/work}
FAMILIES=${FAMILIES:-baseline roformer}

shared=(--device cuda --work "$WORK" --out "$OUT" --no-profile)
"$PYTHON" corpus.py --work "$WORK"
for precision in fp32 fp16 bf16; do
    # shellcheck disable=SC2086  # several families
    "$PYTHON" training.py "${shared[@]}" --precision "$precision" --families $FAMILIES --settings multi30k \
        --criterion label_smoothed_cross_entropy --rounds 10 --warmup 3
    # shellcheck disable=SC2086
    "$PYTHON" decoding.py "${shared[@]}" --precision "$precision" --families $FAMILIES --settings 32 default \
        --sentences 128 --rounds 4 --adapt-updates 60
done
