# shellcheck shell=bash
# What a run of WMT'14 is made of: options from the command line and the environment, the machines and their processes, and
# how the preset's tokens an update are shared out among them. examples/wmt14.sh sources this file and calls read_options.
# shellcheck disable=SC2034,SC2153,SC2154  # variables of run.sh's preset, and those that the stages read

# A training sentence has at most 250 subwords and its </s>; fairseq leaves out what is longer than --max-tokens.
LONGEST=251

# read_options ARGUMENT...: everything that a run is made of, from the command line and the environment.
read_options() {
    local word
    DRY_RUN='' CHOSEN=''
    for word in "$@"; do
        case $word in
            -h | --help) help && exit ;;
            --dry-run) DRY_RUN=yes ;;
            prepare | train | average | generate | score) CHOSEN+=" $word" ;;
            *) usage_error "no stage '$word'; there are: $ALL_STAGES" ;;
        esac
    done
    CHOSEN=${CHOSEN:-$ALL_STAGES}
    PRESET=${PRESET:-roformer}
    SRC=${PAIR%-*} TGT=${PAIR#*-}
    UPDATES='' EPOCHS='' DEFAULT_SEED=1
    preset "$PRESET" || usage_error "no PRESET '$PRESET'; there are: roformer admin realformer big"
    read_arch
    UPDATES=${MAX_UPDATE:-$UPDATES} EPOCHS=${MAX_EPOCH:-$EPOCHS} SEED=${SEED:-$DEFAULT_SEED} MAX_TOKENS=${MAX_TOKENS:-$GPU_TOKENS}
    for word in UPDATES:MAX_UPDATE EPOCHS:MAX_EPOCH SEED:SEED MAX_TOKENS:MAX_TOKENS LIMIT:LIMIT WORKERS:WORKERS; do
        local value=${word%%:*}
        value=${!value:-}
        [ -z "$value" ] || need_whole_number "${word#*:}" "$value"
        [ ${#value} -le 9 ] || usage_error "${word#*:}=$value is too large: at most nine digits"
    done
    read -r -a MORE_TRAIN_ARGS <<<"${TRAIN_ARGS:-}"
    read -r -a MORE_GENERATE_ARGS <<<"${GENERATE_ARGS:-}"
    for word in "${MORE_TRAIN_ARGS[@]}"; do
        case $word in
            --max-tokens | --update-freq | --batch-size | --max-sentences | --distributed-* | --max-update | --max-epoch | --save-dir | \
                --max-tokens=* | --update-freq=* | --batch-size=* | --max-sentences=* | --max-update=* | --max-epoch=* | --save-dir=* | \
                --arch | -a | --arch=* | --seed | --seed=*)
                usage_error "TRAIN_ARGS: ${word%%=*} is worked out by this recipe; ARCH, SEED, MAX_TOKENS, GPUS, MAX_UPDATE, MAX_EPOCH and OUT change it"
                ;;
        esac
    done
    read_machines
    batch_arithmetic
    OUT=$(absolute "${OUT:-$HERE/out/$PRESET.$FULL_ARCH.seed$SEED}")
    DATA_DIR=data
    [ -z "${DATA:-}" ] || DATA_DIR=$(absolute "$DATA")
    [ -z "${DOWNLOADS:=}" ] || DOWNLOADS=$(absolute "$DOWNLOADS")
    read -r -a MIRRORS <<<"${MIRROR:-}"
    for word in "${!MIRRORS[@]}"; do
        case ${MIRRORS[word]} in *://*) ;; *) MIRRORS[word]=$(absolute "${MIRRORS[word]}") ;; esac
    done
}

read_arch() {
    case ${ARCH:=$DEFAULT_ARCH} in
        baseline | roformer | tupe_a | tupe_r | realformer | admin | realformer_admin)
            FULL_ARCH=${ARCH}_wmt
            [ "$PRESET" != big ] || FULL_ARCH+=_big
            ;;
        transformer_lm*) usage_error "ARCH=$ARCH is a language model; a stock Transformer for translation is transformer_wmt_en_de" ;;
        *) FULL_ARCH=$ARCH ;;
    esac
    check_arch "$FULL_ARCH"
    DEEP=''
    case $FULL_ARCH in *_12l | *_18l) DEEP=yes ;; esac
    preset_for_depth
}

# found_gpus: how many GPUs a program started here would see.
found_gpus() {
    if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
        case $CUDA_VISIBLE_DEVICES in '' | -1) say 0 ;; *) tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c . ;; esac
    else
        { nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU' || true
    fi
}

# read_machines: HERE_COUNT processes on each of NODES machines; DEVICE is what each has.
read_machines() {
    GPUS=${GPUS:-$(found_gpus)} NODES=${NODES:-1} NODE_RANK=${NODE_RANK:-0} MASTER=${MASTER:-}
    [ "$GPUS" = 0 ] || need_whole_number GPUS "$GPUS"
    need_whole_number NODES "$NODES"
    [ "$NODE_RANK" = 0 ] || need_whole_number NODE_RANK "$NODE_RANK"
    [ "$NODE_RANK" -lt "$NODES" ] || usage_error "NODE_RANK=$NODE_RANK: with NODES=$NODES it must be from 0 to $((NODES - 1))"
    if [ "$GPUS" -gt 0 ]; then
        [ -z "${PROCESSES:-}" ] || usage_error "PROCESSES=$PROCESSES is for machines without GPUs: here GPUS=$GPUS says how many processes there are (GPUS=0 uses none)"
        DEVICE=GPU HERE_COUNT=$GPUS
    else
        DEVICE="CPU process" HERE_COUNT=${PROCESSES:-1}
        need_whole_number PROCESSES "$HERE_COUNT"
        [ -z "${FSDP:-}" ] || usage_error "FSDP=1 needs GPUs, and none was found (GPUS=N says how many there are)"
    fi
    case ${FSDP:-} in '' | 1) ;; *) usage_error "FSDP must be 1 or not set, not '$FSDP'" ;; esac
    if [ "$NODES" -gt 1 ]; then
        case $MASTER in
            *[!:]:*[!0-9]* | *: | :*) usage_error "MASTER must be HOST:PORT, not '$MASTER'" ;;
            *:*) ;;
            '') [ -n "$DRY_RUN" ] || usage_error "NODES=$NODES needs MASTER=HOST:PORT, where the machines meet (HOST is machine 0)" ;;
            *) usage_error "MASTER must be HOST:PORT, not '$MASTER'" ;;
        esac
        MASTER=${MASTER:-MASTER:PORT}
    fi
}

# grouped NUMBER: with commas. plural COUNT WORD: 1 batch, 2 batches.
grouped() {
    local rest=$1 text=''
    while [ ${#rest} -gt 3 ]; do text=,${rest: -3}$text rest=${rest:0:${#rest}-3}; done
    printf '%s\n' "$rest$text"
}
plural() {
    case $1:$2 in
        1:*) printf '1 %s\n' "$2" ;;
        *:*ch | *:*s) printf '%s %ses\n' "$(grouped "$1")" "$2" ;;
        *) printf '%s %ss\n' "$(grouped "$1")" "$2" ;;
    esac
}

# batch_arithmetic: BATCH tokens a process and batch, and UPDATE_FREQ batches, so that all processes together reach TOKENS
# an update, the preset's, with no more than MAX_TOKENS in a batch; ARITHMETIC is that as a sentence.
batch_arithmetic() {
    local processes=$((NODES * HERE_COUNT)) reached machines=''
    UPDATE_FREQ=$(((TOKENS + MAX_TOKENS * processes - 1) / (MAX_TOKENS * processes)))
    BATCH=$((TOKENS / (UPDATE_FREQ * processes)))
    reached=$((BATCH * UPDATE_FREQ * processes))
    [ "$MAX_TOKENS" -ge "$LONGEST" ] ||
        usage_error "MAX_TOKENS=$MAX_TOKENS is too few: the longest training sentences have $LONGEST tokens and would be left out"
    [ "$BATCH" -ge "$LONGEST" ] ||
        usage_error "$(plural "$processes" "$DEVICE") are too many for $(grouped "$TOKENS") tokens an update: each would get $BATCH, and the longest training sentences, of $LONGEST tokens, would be left out; at most $((TOKENS / LONGEST)) can work"
    [ "$NODES" -eq 1 ] || machines=" ($NODES machines x $HERE_COUNT)"
    ARITHMETIC="$(plural "$processes" "$DEVICE")$machines x $(grouped "$BATCH") tokens x $(plural "$UPDATE_FREQ" batch) accumulated = $(grouped "$reached") tokens an update (the preset's: $(grouped "$TOKENS"))"
    [ "$reached" -eq "$TOKENS" ] || ARITHMETIC+=", $((TOKENS - reached)) fewer since a batch is a whole number of tokens"
}
