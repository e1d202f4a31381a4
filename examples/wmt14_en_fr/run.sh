#!/usr/bin/env bash
# WMT'14 English-French, from download to score:
#
#   bash examples/wmt14_en_fr/run.sh                                              RoFormer's recipe on this pair
#   PRESET=realformer ARCH=realformer_admin_wmt_60l_12l bash examples/wmt14_en_fr/run.sh      60 + 12 layers
#   NODES=2 NODE_RANK=0 MASTER=HOST:29500 bash examples/wmt14_en_fr/run.sh train      on each of two machines
#
# Batch arithmetic of PRESET=admin, 640,000 tokens an update (1,280,000 at 60 + 12 layers):
#   1 GPU x 8,000 x 80 accumulated = 8 GPUs x 8,000 x 10 = 16 GPUs x 8,000 x 5
# shellcheck disable=SC2034  # examples/wmt14.sh reads these
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
PAIR=en-fr
BEAM=5 LENPEN=0.8 # ADMIN's and RealFormer's evaluation script
# shellcheck source=examples/wmt14.sh
. "$ROOT/examples/wmt14.sh"

# preset NAME: the numbers of a recipe. TOKENS an update, GPU_TOKENS in a batch of one GPU; UPDATES and EPOCHS are limits.
# What no source gives is marked "ours". Data: fairseq's and ADMIN's scripts agree (nc-v9, every 1333rd line, 40,000 merges).
preset() {
    DECAY=inverse_sqrt HALF_PRECISION=() PREPARATION=(--recipe fairseq)
    case $1 in
        roformer) # RoFormer's En-De numbers (Su et al. 2021, section 4.1) on this pair, for which the paper has none
            DEFAULT_ARCH=roformer_wmt
            OPTIMISATION=(--optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --lr 5e-4 --lr-scheduler inverse_sqrt
                --warmup-init-lr 1e-7 --warmup-updates 4000)             # warm-up: ours, as Vaswani et al. 2017
            TOKENS=32768 GPU_TOKENS=4096                                 # ours: Vaswani et al. have 25,000 real tokens a side
            UPDATES=100000                                               # ours, as Vaswani et al.'s base model
            AVERAGE=updates:5 SAVE_EVERY=1250                            # spacing ours: theirs was 10 minutes, 1,400 updates
            ;;
        admin) # Liu et al. 2020: Transformer-Clinic, nmt-experiments/wmt14_en-fr.md
            DEFAULT_ARCH=admin_wmt DEFAULT_SEED=1111
            admin_optimisation 7e-4
            OPTIMISATION+=(--lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --stop-min-lr 1e-9)
            TOKENS=640000 GPU_TOKENS=8000                                # 8 GPUs x 8000 x 10
            EPOCHS=50
            AVERAGE=epochs:10 SAVE_EVERY=500                             # within an epoch: ours, for restarts only
            ;;
        realformer) # He et al. 2021, section 4.2 and A.2: ADMIN's, with these changes
            preset admin
            DEFAULT_ARCH=realformer_admin_wmt DECAY=linear
            admin_optimisation 1.2e-3
            AVERAGE=epochs:25
            ;;
        big) # Ott et al. 2018 (Scaling NMT) by an author's log, fairseq issue 233: 128 GPUs x 5120
            DEFAULT_ARCH=roformer_wmt_big
            OPTIMISATION=(--optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --lr 7e-4 --lr-scheduler inverse_sqrt
                --warmup-init-lr 1e-7 --warmup-updates 4000 --dropout 0.1 --weight-decay 0.0)
            TOKENS=655360 GPU_TOKENS=5120
            UPDATES=80000
            AVERAGE=epochs:10 SAVE_EVERY=500                             # ours: the log does not say how many were averaged
            ;;
        *) return 1 ;;
    esac
}

# 60 + 12 layers: 16 GPUs x 5000 x 16.
preset_for_depth() {
    case $PRESET.$FULL_ARCH in admin.*_60l_12l | realformer.*_60l_12l) TOKENS=1280000 GPU_TOKENS=5000 ;; esac
}

wmt14 "$@"; exit
