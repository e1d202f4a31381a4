#!/usr/bin/env bash
# WMT'14 English-German, from download to score:
#
#   bash examples/wmt14_en_de/run.sh                                      RoFormer, RoPE: the paper's section 4.1
#   PRESET=admin ARCH=admin_wmt_18l bash examples/wmt14_en_de/run.sh      ADMIN, 18 + 18 layers
#   NODES=2 NODE_RANK=0 MASTER=HOST:29500 bash examples/wmt14_en_de/run.sh train      on each of two machines
#
# Batch arithmetic of PRESET=roformer, 32,768 tokens an update:
#   1 GPU x 4,096 x 8 accumulated = 8 GPUs x 4,096 x 1 = 16 GPUs x 2,048 x 1
# shellcheck disable=SC2034  # examples/wmt14.sh reads these
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
PAIR=en-de
BEAM=4 LENPEN=0.6 # RoFormer 4.1; the same in ADMIN's and RealFormer's evaluation script
# shellcheck source=examples/wmt14.sh
. "$ROOT/examples/wmt14.sh"

# preset NAME: the numbers of a recipe. TOKENS an update, GPU_TOKENS in a batch of one GPU; UPDATES and EPOCHS are limits.
# What no source gives is marked "ours".
preset() {
    DECAY=inverse_sqrt HALF_PRECISION=()
    case $1 in
        roformer) # Su et al. 2021, section 4.1: 37k joint subwords, Adam, 1e-7 to 5e-4, label smoothing, the last 5 averaged
            DEFAULT_ARCH=roformer_wmt
            OPTIMISATION=(--optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --lr 5e-4 --lr-scheduler inverse_sqrt
                --warmup-init-lr 1e-7 --warmup-updates 4000)             # warm-up: ours, as Vaswani et al. 2017
            TOKENS=32768 GPU_TOKENS=4096                                 # ours: Vaswani et al. have 25,000 real tokens a side
            UPDATES=100000                                               # ours, as Vaswani et al.'s base model
            AVERAGE=updates:5 SAVE_EVERY=1250                            # spacing ours: theirs was 10 minutes, 1,400 updates
            PREPARATION=(--recipe fairseq --news-commentary v9 --bpe-merges 37000 --vocab-size 37000) # v9: WMT'14's own
            ;;
        admin) # Liu et al. 2020: Transformer-Clinic, nmt-experiments/wmt14_en-de.md
            DEFAULT_ARCH=admin_wmt DEFAULT_SEED=1111
            admin_optimisation 1e-3
            OPTIMISATION+=(--lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --stop-min-lr 1e-9)
            TOKENS=32768 GPU_TOKENS=8192                                 # 4 GPUs x 8192 x 1
            UPDATES=500000 EPOCHS=100                                    # evaluated at epoch 100
            AVERAGE=epochs:10 SAVE_EVERY=2000                            # within an epoch: ours, for restarts only
            PREPARATION=(--recipe admin)                                 # nc-v12, newstest2013, 32,764 merges
            ;;
        realformer) # He et al. 2021, section 4.2 and A.2: ADMIN's, with these changes
            preset admin
            DEFAULT_ARCH=realformer_admin_wmt DECAY=linear
            admin_optimisation 5e-4
            UPDATES='' EPOCHS=50 AVERAGE=epochs:25
            ;;
        big) # Ott et al. 2018 (Scaling NMT): large batch, 128 GPUs x 3584; 24,000 updates: fairseq issue 1976
            DEFAULT_ARCH=roformer_wmt_big
            OPTIMISATION=(--optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --lr 1e-3 --lr-scheduler inverse_sqrt
                --warmup-init-lr 1e-7 --warmup-updates 4000 --dropout 0.3 --weight-decay 0.0)
            TOKENS=458752 GPU_TOKENS=3584
            UPDATES=24000
            AVERAGE=epochs:10 SAVE_EVERY=500                             # ours: the sources say "the last checkpoints"
            PREPARATION=(--recipe fairseq --news-commentary v9 --bpe-merges 37000 --vocab-size 37000) # as roformer
            ;;
        *) return 1 ;;
    esac
}

# ADMIN's 100 + 100 layers ran as 8 GPUs x 4096: the same tokens an update in smaller batches. Taken for 60 + 12 layers.
preset_for_depth() {
    case $PRESET.$FULL_ARCH in admin.*_60l_12l | realformer.*_60l_12l) GPU_TOKENS=4096 ;; esac
}

wmt14 "$@"; exit
