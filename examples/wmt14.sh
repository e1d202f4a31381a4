# shellcheck shell=bash
# What the recipes of WMT'14 have in common. A recipe's run.sh sets ROOT and HERE (the checkout, its own folder), PAIR,
# BEAM and LENPEN, defines the function `preset` (its table of numbers) and calls `wmt14 "$@"`.
# shellcheck disable=SC2034,SC2153,SC2317  # variables and functions that common.sh and run.sh use or set
RECIPE=$(basename "$HERE")
PROGRESS_SECONDS=${PROGRESS_SECONDS:-60}
# shellcheck source=examples/common.sh
. "$ROOT/examples/common.sh"
# shellcheck source=examples/wmt14_options.sh
. "$ROOT/examples/wmt14_options.sh"

ALL_STAGES="prepare train average generate score"
STAGES=5

help() {
    cat <<TEXT
usage: bash examples/$RECIPE/run.sh [--dry-run] [STAGE...]     stages: $ALL_STAGES (default: all)

--dry-run prints the commands of the stages; it runs nothing and writes nothing.
Environment:
  PRESET=roformer    roformer, admin, realformer or big: optimiser, schedule, tokens an update, length, averaging
  ARCH=...           a family (baseline, roformer, tupe_a, tupe_r, realformer, admin, realformer_admin), which stands
                     for its _wmt preset (_wmt_big with PRESET=big), or a full name; default: the preset's own
  OUT=DIR            folder of the run (default: examples/$RECIPE/out/PRESET.ARCH.seedSEED)
  DATA=DIR           folder of the prepared data, for several runs to share (default: OUT/data)
  MIRROR=... DOWNLOADS=DIR LIMIT=N WORKERS=N     for fairseq-rope-prepare: mirrors (URLs or folders, separated by spaces),
                     folder of the archives, only the first N pairs of each corpus, processes
  SEED=...  MAX_UPDATE=N  MAX_EPOCH=N            in place of the preset's
  MAX_TOKENS=N       most tokens a batch of one GPU holds (default: the preset's); gradients are accumulated so that
                     the tokens an update stay the preset's
  GPUS=N             GPUs of this machine (default: those found; 0: none)
  PROCESSES=N        processes where there is no GPU (default: 1)
  NODES=N NODE_RANK=R MASTER=HOST:PORT           several machines that share OUT: the same command on each, with its own
                     R from 0; all stages but train run on machine 0
  FSDP=1             --ddp-backend fully_sharded, where fairscale is installed
  TRAIN_ARGS=... GENERATE_ARGS=...               further options, separated by spaces
  FAIRSEQ_ROPE_PYTHON  interpreter whose environment to use (default: .venv, made where it is missing)
  PROGRESS_SECONDS=60  time between two lines of progress
A second start of the same command reuses the finished stages and resumes an interrupted training.
TEXT
}

# admin_optimisation LR: what ADMIN's and RealFormer's presets of both pairs share, but for the decay (Liu et al. 2020,
# Transformer-Clinic's nmt-experiments).
admin_optimisation() {
    OPTIMISATION=(--optimizer radam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --weight-decay 0.0 --lr "$1" --warmup-updates 8000
        --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1)
    HALF_PRECISION=(--fp16-scale-window 256 --threshold-loss-scale 0.03125)
}

# ---- The commands of the stages, each left in COMMAND. Their paths are seen from OUT.

prepare_command() {
    local mirror
    COMMAND=(fairseq-rope-prepare wmt14 --pair "$PAIR" "${PREPARATION[@]}" --out "$DATA_DIR")
    for mirror in "${MIRRORS[@]}"; do COMMAND+=(--mirror "$mirror"); done
    [ -z "$DOWNLOADS" ] || COMMAND+=(--downloads "$DOWNLOADS")
    [ -z "${LIMIT:-}" ] || COMMAND+=(--limit "$LIMIT")
    [ -z "${WORKERS:-}" ] || COMMAND+=(--workers "$WORKERS")
}

updates_command() {
    COMMAND=("${PYTHON:-python}" "$ROOT/examples/updates_per_epoch.py" "$DATA_DIR/data-bin" -s "$SRC" -t "$TGT"
        --max-tokens "$BATCH" --processes $((NODES * HERE_COUNT)) --update-freq "$UPDATE_FREQ" --seed "$SEED")
}

# launcher: what starts the processes of a training. Several are started by torchrun on one machine too, where
# fairseq-train could spawn a process a GPU itself: torchrun's ranks end with it when it is killed (fairseq_rope/compat/
# processes.py), whereas spawned ones would go on writing into OUT and holding the GPUs when the next start resumes; one
# way of starting serves CPU, one machine and many; and stock's reading of SLURM's variables is never reached
# (fairseq/distributed/utils.py looks for torchrun's first). The static rendezvous keeps rank 0, which writes the
# checkpoints, on machine 0.
launcher() {
    COMMAND=()
    [ $((NODES * HERE_COUNT)) -gt 1 ] || return 0
    COMMAND=(torchrun --no-python --nproc-per-node "$HERE_COUNT")
    if [ "$NODES" -eq 1 ]; then
        COMMAND+=(--standalone)
    else
        COMMAND+=(--nnodes "$NODES" --node-rank "$NODE_RANK" --rdzv-backend static --rdzv-endpoint "$MASTER")
    fi
}

# train_command TOTAL: TOTAL is the number of updates after which a linear decay has reached 0.
train_command() {
    launcher
    COMMAND+=(fairseq-train "$DATA_DIR/data-bin" --user-dir "$ROOT/fairseq_rope" --task translation -s "$SRC" -t "$TGT"
        --arch "$FULL_ARCH" --share-all-embeddings "${OPTIMISATION[@]}")
    [ "$DECAY" != linear ] || COMMAND+=(--lr-scheduler polynomial_decay --power 1 --end-learning-rate 0 --total-num-update "$1")
    COMMAND+=(--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens "$BATCH" --update-freq "$UPDATE_FREQ")
    [ -z "$UPDATES" ] || COMMAND+=(--max-update "$UPDATES")
    [ -z "$EPOCHS" ] || COMMAND+=(--max-epoch "$EPOCHS")
    # Checkpoints within an epoch are what a killed run goes on from; they do not change the model.
    case $AVERAGE in
        updates:*) COMMAND+=(--no-epoch-checkpoints --save-interval-updates "$SAVE_EVERY" --keep-interval-updates "${AVERAGE#*:}") ;;
        epochs:*) COMMAND+=(--keep-last-epochs "${AVERAGE#*:}" --save-interval-updates "$SAVE_EVERY" --keep-interval-updates 1) ;;
    esac
    [ -z "$DEEP" ] || COMMAND+=(--checkpoint-activations)
    if [ "$DEVICE" = GPU ]; then
        case " ${TRAIN_ARGS:-} " in *" --bf16 "*) ;; *) COMMAND+=(--fp16 "${HALF_PRECISION[@]}") ;; esac
    else
        COMMAND+=(--cpu --num-workers 0)
    fi
    [ -z "${FSDP:-}" ] || COMMAND+=(--ddp-backend fully_sharded)
    # Without torchrun fairseq-train would take every GPU that it sees.
    [ $((NODES * HERE_COUNT)) -gt 1 ] || COMMAND+=(--distributed-world-size 1)
    COMMAND+=(--seed "$SEED" --save-dir checkpoints --log-format simple --log-interval 100 "${MORE_TRAIN_ARGS[@]}")
}

# average_command INPUT COUNT
average_command() {
    COMMAND=(fairseq-rope-average --inputs "$1")
    case $2:$AVERAGE in
        0:*) ;;
        *:updates:*) COMMAND+=(--num-update-checkpoints "$2") ;;
        *:epochs:*) COMMAND+=(--num-epoch-checkpoints "$2") ;;
    esac
    COMMAND+=(--output average.tmp.pt)
}

generate_command() {
    COMMAND=(fairseq-generate "$DATA_DIR/data-bin" --user-dir "$ROOT/fairseq_rope" --task translation -s "$SRC" -t "$TGT"
        --path average.pt --gen-subset test --remove-bpe --beam "$BEAM" --lenpen "$LENPEN" --max-tokens 8192
        --distributed-world-size 1)
    if [ "$DEVICE" = GPU ]; then COMMAND+=(--fp16); else COMMAND+=(--cpu --num-workers 0); fi
    COMMAND+=("${MORE_GENERATE_ARGS[@]}")
}

score_command() {
    COMMAND=(fairseq-rope-score test.gen --ref "$DATA_DIR/raw/newstest2014.$TGT" --pair "$PAIR"
        --json scores.json --hypotheses "newstest2014.$TGT")
}

# most_checkpoints: how many checkpoints are averaged, if the training makes that many.
most_checkpoints() {
    local number=${AVERAGE#*:}
    case $AVERAGE in epochs:*) [ -z "$EPOCHS" ] || [ "$EPOCHS" -ge "$number" ] || number=$EPOCHS ;; esac
    say "$number"
}

# ---- The stages.

# need FILE STAGE: stop unless an earlier stage has made FILE.
need() { [ -e "$1" ] || die "there is no $(absolute "$1"): the stage '$2' makes it, and has to finish first"; }

prepare() {
    prepare_command
    watched "preparing" prepare.log last_line "${COMMAND[@]}"
}

# total_updates: the updates of all epochs, counted once from the binarised data and kept, since a run that goes on with
# another number of processes must not bend its schedule. An update that fp16 skips (overflow) is not made up for.
total_updates() {
    local of_epoch
    if [ ! -s updates_per_epoch.txt ]; then
        updates_command
        "${COMMAND[@]}" >"updates.$NODE_RANK.tmp" 2>"updates.$NODE_RANK.log" || die "$(tail -n 1 "updates.$NODE_RANK.log")"
        mv "updates.$NODE_RANK.tmp" updates_per_epoch.txt
    fi
    of_epoch=$(cat updates_per_epoch.txt)
    need_whole_number "updates_per_epoch.txt" "$of_epoch"
    TOTAL=$((of_epoch * EPOCHS))
    [ -z "$UPDATES" ] || [ "$UPDATES" -ge "$TOTAL" ] || TOTAL=$UPDATES
    say "      linear decay to 0 in $(grouped "$TOTAL") updates ($(grouped "$of_epoch") an epoch)"
}

train() {
    local log=train.log TOTAL='' MAX_EPOCH=$EPOCHS MAX_UPDATE=${MAX_UPDATE:-} # the last two are what `training` reports by
    [ -n "$MAX_EPOCH" ] || MAX_UPDATE=$UPDATES
    need "$DATA_DIR/manifest.json" prepare
    say "      $ARITHMETIC"
    check_gpus
    [ "$DECAY" != linear ] || total_updates
    train_command "$TOTAL"
    if [ "$NODE_RANK" -eq 0 ]; then restore_last checkpoints; else log=train.machine$NODE_RANK.log; fi
    watched "training" "$log" training "${COMMAND[@]}"
    [ "$NODE_RANK" -ne 0 ] || touch train.done
}

check_gpus() {
    local seen
    [ "$GPUS" -gt 0 ] || return 0
    seen=$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())') || die "$PYTHON cannot import torch"
    [ "$GPUS" -le "$seen" ] || die "GPUS=$GPUS, but torch sees $seen on this machine"
}

average() {
    local wanted=${AVERAGE#*:} kind=${AVERAGE%%:*} pattern='.*/checkpoint[0-9]+\.pt' have input=checkpoints
    need train.done train
    [ "$kind" = epochs ] || pattern='.*/checkpoint_[0-9]+_[0-9]+\.pt'
    have=$(find checkpoints -maxdepth 1 -regextype posix-extended -regex "$pattern" | wc -l)
    if [ "$have" -eq 0 ]; then
        input=checkpoints/checkpoint_last.pt
        need "$input" train
        say "      note: the training was shorter than the preset's first ${kind%s} checkpoint: the last state alone is used"
    elif [ "$have" -lt "$wanted" ]; then
        say "      note: the preset averages the last $wanted ${kind%s} checkpoints, but there are only $have"
        wanted=$have
    fi
    [ "$have" -gt 0 ] || wanted=0
    average_command "$input" "$wanted"
    watched "averaging" average.log last_line "${COMMAND[@]}"
    mv average.tmp.pt average.pt
}

generate() {
    need average.pt average
    need "$DATA_DIR/manifest.json" prepare
    generate_command
    SENTENCES=$(wc -l <"$DATA_DIR/raw/newstest2014.$SRC" 2>/dev/null || true)
    rm -f test.gen.tmp
    watched "translating" test.gen.tmp count_translations "${COMMAND[@]}"
    printf '%s\n' "${GENERATE_ARGS:-}" >test.gen.args
    mv test.gen.tmp test.gen
}

score() {
    need test.gen generate
    score_command
    watched "scoring" score.log last_line "${COMMAND[@]}"
    new_lines score.log | sed 1d >score.tmp
    mv score.tmp score.txt
}

# Other options of generation than before: only that stage and the next are made again, since a training takes days.
generate_again_if_changed() {
    [ -e test.gen ] && [ "$(cat test.gen.args 2>/dev/null)" != "${GENERATE_ARGS:-}" ] || return 0
    say "GENERATE_ARGS were '$(cat test.gen.args 2>/dev/null)': translating and scoring again"
    rm -f test.gen score.txt
}

# ---- Both ways through the stages.

number_of() {
    local word
    STAGE=0
    for word in $ALL_STAGES; do
        if [ "$word" = "$1" ]; then return; fi
        STAGE=$((STAGE + 1))
    done
}

# quoted WORD...: a command line that a shell reads back as these words.
quoted() {
    local word line=''
    for word in "$@"; do
        case $word in
            '' | *[!A-Za-z0-9_./:=,@%+-]*) line+=" ${word@Q}" ;;
            *) line+=" $word" ;;
        esac
    done
    printf '%s\n' "${line:1}"
}

dry_run() {
    local name
    say "# $TITLE"
    [ -z "${FSDP:-}" ] || say "# FSDP=1: the run itself refuses to start unless fairscale is installed"
    say "mkdir -p $(quoted "$OUT") && cd $(quoted "$OUT")"
    for name in $CHOSEN; do
        number_of "$name"
        say ""
        say "# [$((STAGE + 1))/$STAGES] $name"
        if [ "$NODE_RANK" -gt 0 ] && [ "$name" != train ]; then
            say "# runs on machine 0 only"
            continue
        fi
        case $name in
            train)
                say "# $ARITHMETIC"
                [ "$NODES" -eq 1 ] || say "# on each of the $NODES machines, with its own --node-rank from 0 to $((NODES - 1)) (here $NODE_RANK)"
                [ "$DECAY" != linear ] || { updates_command && quoted "${COMMAND[@]}"; }
                train_command "<updates per epoch x $EPOCHS${UPDATES:+, at most $UPDATES}>"
                ;;
            average) average_command checkpoints "$(most_checkpoints)" ;;
            *) "${name}_command" ;;
        esac
        if [ "$name" = generate ]; then
            say "$(quoted "${COMMAND[@]}") > test.gen"
        else
            quoted "${COMMAND[@]}"
        fi
        [ "$name" != average ] || say "mv average.tmp.pt average.pt"
    done
}

# join OUT OPTIONS: what `claim` is on machine 0: the others only look.
join() {
    [ -s "$1/options.txt" ] || die "machine 0 has not begun this run in $1: run the stage prepare there first, in a folder that all machines see"
    [ "$(cat "$1/options.txt")" = "$2" ] || die "$1 belongs to a run with other options than those of this machine: $(diff "$1/options.txt" <(printf '%s\n' "$2") | sed -n 's/^< \(.*\)/\1 there/p; s/^> \(.*\)/\1 here/p' | paste -sd ';')"
}

run() {
    local name options
    options="pair=$PAIR
preset=$PRESET
arch=$FULL_ARCH
seed=$SEED
limit=${LIMIT:-}
data=${DATA:+$DATA_DIR}
max_update=$UPDATES
max_epoch=$EPOCHS
train_args=${TRAIN_ARGS:-}"
    if [ -n "${FSDP:-}" ]; then
        use_environment run
        "$PYTHON" -c 'import fairscale' 2>/dev/null ||
            die "FSDP=1 needs the package fairscale, which $PYTHON does not find: install it there, or leave FSDP out"
    fi
    if [ "$NODE_RANK" -eq 0 ]; then claim "$OUT" "$options"; else join "$OUT" "$options"; fi
    [ -n "$PYTHON" ] || use_environment run
    cd "$OUT" || exit
    say "$TITLE"
    [ "$NODE_RANK" -gt 0 ] || generate_again_if_changed
    for name in $CHOSEN; do
        number_of "$name"
        if [ "$NODE_RANK" -gt 0 ]; then
            if [ "$name" = train ]; then
                say "[2/$STAGES] train (machine $NODE_RANK of $NODES)"
                [ -e train.done ] || train
            else
                say "[$((STAGE + 1))/$STAGES] $name: runs on machine 0 only"
            fi
            continue
        fi
        case $name in
            prepare)
                # Data of other runs may be of another recipe: fairseq-rope-prepare compares, and keeps what is finished.
                if [ -n "${DATA:-}" ]; then
                    say "[1/$STAGES] prepare (in $DATA_DIR)"
                    prepare
                else
                    stage prepare "$DATA_DIR/manifest.json" prepare
                fi
                ;;
            train) stage train train.done train ;;
            average) stage average average.pt average ;;
            generate) stage generate test.gen generate ;;
            score)
                stage score score.txt score
                cat score.txt
                say "scores: $OUT/scores.json, translations: $OUT/newstest2014.$TGT, model: $OUT/average.pt"
                ;;
        esac
    done
}

wmt14() {
    PYTHON=''
    read_options "$@"
    TITLE="WMT'14 $PAIR, PRESET=$PRESET, $FULL_ARCH, seed $SEED, in $OUT"
    if [ -n "$DRY_RUN" ]; then dry_run; else run; fi
}
