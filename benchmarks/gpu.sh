#!/usr/bin/env bash
# Run the tests for a GPU, then every benchmark that says something about one, beside sentence-transformers and mteb, in
# at most ten minutes. Writes experiments/results/gpu/PART-BACKBONE.json, of which `python -m experiments.tables` makes
# the tables gpu/PART-BACKBONE.
#
#   WIKI=sentences.txt CSEKIT_DATA=data benchmarks/gpu.sh
#   benchmarks/gpu.sh --list                          # the parts and the seconds that each may take
#   benchmarks/gpu.sh --device cpu --quick            # try the script on the CPU, with few rows and rounds
#
# Environment: BACKBONE, a masked LM (bert-base-uncased); WIKI, sentences, one a line; CSEKIT_DATA, the folder with
# senteval/; PYTHON (python). Options: --only PART or PART:SECONDS, any number of times; --seconds N, for all parts
# together (590; on the CPU ten times that); --results FOLDER, where the files go (on the CPU a temporary folder).
#
# A part that fails or runs out of time is told, and the others go on. Status 0: all parts are done; 1: one is not; 2: no
# GPU, or a wrong argument.
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-python}"
parts=(tests:100 peers:75 compile:80 roofline:25 costs:70 memory:45 selection:30 encode:40 runs:55 scaling:30 speed:35)
limit=590 # seconds of all parts; ending the last one takes up to three more

usage() {
    echo "error: $1" >&2
    exit 2
}

device=cuda quick="" results="" only=" " given="" own=()
while [ $# -gt 0 ]; do
    case "$1" in
    --list) printf '%s\n' "${parts[@]/:/ }" && exit ;;
    --quick) quick=1 && shift && continue ;;
    --device | --only | --results | --seconds) [ $# -gt 1 ] || usage "$1 needs a value" ;;
    *) usage "no such option: $1" ;;
    esac
    case "$1" in
    --device) device="$2" ;;
    --results) results="$2" ;;
    --seconds)
        [[ "$2" =~ ^[1-9][0-9]*$ ]] || usage "--seconds must be at least 1, got $2"
        given="$2"
        ;;
    --only)
        part="${2%%:*}"
        [[ " ${parts[*]%%:*} " == *" $part "* ]] || usage "--only must be one of ${parts[*]%%:*}, got $2"
        [[ "${2#"$part"}" =~ ^(:[1-9][0-9]*)?$ ]] || usage "--only PART:SECONDS must be at least 1, got $2"
        [ "$2" = "$part" ] || own+=("$2")
        only+="$part "
        ;;
    esac
    shift 2
done
[ "$device" = cuda ] || [ "$device" = cpu ] || usage "--device must be cuda or cpu, got $device"
if [ "$device" = cuda ] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    usage "no CUDA device; --device cpu --quick tries the script without one"
fi
backbone="${BACKBONE:-bert-base-uncased}" wiki="${WIKI:-}" data="${CSEKIT_DATA:-}"
[ -f "$wiki" ] || usage "WIKI must be a file of sentences, got '$wiki'"
[ -d "$data/senteval" ] || usage "CSEKIT_DATA must be a folder with senteval/, got '$data'"

wiki="$(cd "$(dirname "$wiki")" && pwd)/$(basename "$wiki")" data="$(cd "$data" && pwd)"
[ ! -d "$backbone" ] || backbone="$(cd "$backbone" && pwd)"
work="$(mktemp -d)"
if [ -z "$results" ]; then
    [ "$device" = cuda ] && results="$root/experiments/results/gpu" || results="$work/results"
fi
mkdir -p "$results"
results="$(cd "$results" && pwd)"
name="$(basename "$backbone")"
[ "$device" = cuda ] || { parts=("${parts[@]/%/0}") && limit=5900; } # a CPU may take ten times as long
parts=("${own[@]}" "${parts[@]}") # the first one of a name counts
limit="${given:-$limit}"
export TOKENIZERS_PARALLELISM=false
cd "$root"

failed=0
part() { # NAME COMMAND…: run a part, with its seconds as the limit
    local part="$1" seconds started=$SECONDS log state
    shift
    wanted "$part" || return 0
    seconds="$(printf '%s\n' "${parts[@]}" | sed -n "s/^$part://p" | head -n 1)"
    [ $((limit - SECONDS)) -gt "$seconds" ] || seconds=$((limit - SECONDS))
    log="$work/$part.log" state="not started, no time left"
    if [ "$seconds" -gt 0 ]; then
        timeout -k 3 "$seconds" "$@" >"$log" 2>"$log.err" </dev/null
        case $? in
        0) state=done ;;
        124 | 137) state="out of time" ;;
        *) state=failed ;;
        esac
        cat "$log"
    fi
    if [ "$state" != done ]; then
        failed=1
        [ ! -s "$log.err" ] || tail -n 25 "$log.err"
    fi
    printf '== %s: %s, %d s\n' "$part" "$state" $((SECONDS - started))
}

benchmark() { # PART SCRIPT ARGUMENTS…: a benchmark of the encoder on the device
    local part="$1" script="$2"
    shift 2
    part "$part" "$python" "benchmarks/$script" --model_name_or_path "$backbone" --device "$device" \
        --output "$results/$part-$name.json" "$@"
}

wanted() { [ "$only" = " " ] || [[ "$only" == *" $1 "* ]]; } # PART

prepared=1 needs=()
for each in runs speed; do ! wanted "$each" || needs+=("$each"); done
# What runs needs, dev pairs with a header, and what speed needs, the backbone as a sentence encoder.
[ ${#needs[@]} = 0 ] ||
    timeout 120 "$python" - "$backbone" "$data" "$work" "${needs[@]}" >"$work/prepare.log" 2>&1 <<'PYTHON' || prepared=""
import csv, sys
from pathlib import Path
backbone, data, work, *needs = sys.argv[1:]
if "runs" in needs:
    from csekit.evaluation.sts_data import load_stsb_dev
    pairs = load_stsb_dev(f"{data}/senteval")
    with Path(work, "stsb-dev.tsv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n")
        writer.writerow(["sentence1", "sentence2", "score"])
        writer.writerows(zip(pairs.sentences1, pairs.sentences2, pairs.scores.tolist()))
if "speed" in needs:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    words = Transformer(backbone)
    pooling = Pooling(words.get_embedding_dimension(), "cls")
    SentenceTransformer(modules=[words, pooling], device="cpu").save(f"{work}/encoder")
PYTHON
[ -n "$prepared" ] || usage "BACKBONE $backbone or $data/senteval cannot be read: $(tail -n 1 "$work/prepare.log")"

train=(--train_file "$wiki" --precision bf16)
steps=(--batch_size 64 --max_seq_length 32 --warmup 5 --repetitions 20)
some=() few=() compile=(--warmup 12) large=(--batch_sizes 2048 --chunk_sizes 0 256 --steps 3) turns=(--warmup 1 --repetitions 3)
texts=(--sentences 20000 --repetitions 3 --poolings cls) sets=(--tasks STS-B,SICK-R)
rounds=(--rounds 1 --max_steps 150 --eval_steps 75) sizes=(--batch_sizes 64 256 1024 --lengths 32 128)
if [ -n "$quick" ]; then
    steps=(--batch_size 4 --max_seq_length 16 --warmup 1 --repetitions 1)
    some=(--methods simcse-bf16 st-bf16) compile=(--methods simcse) few=(--methods simcse-tanh diffcse) large=(--batch_sizes 8 --chunk_sizes 4 --steps 1 --max_seq_length 16)
    turns=(--batch_size 4 --max_seq_length 16 --warmup 0 --repetitions 1)
    texts=(--sentences 8 --repetitions 1 --poolings cls --max_length 32) sets=(--tasks STS-B)
    rounds=(--rounds 1 --max_steps 2 --eval_steps 1 --batch_size 4 --max_seq_length 16)
    sizes=(--batch_sizes 2 4 --lengths 6 12 --batch_size 4 --warmup 0 --repetitions 1)
fi

# in the order of their names: those that compile, which take longest, come last
mapfile -t tests < <(grep -rl "mark\.gpu" tests --include="test_*.py" | LC_ALL=C sort)
part tests "$python" -m pytest -v -rs -p no:cacheprovider -m gpu "${tests[@]}"
benchmark peers train_step.py --rows benchmarks/peers.yaml "${train[@]}" "${steps[@]}" "${some[@]}"
benchmark compile train_step.py --rows benchmarks/compile.yaml "${train[@]}" "${steps[@]}" "${compile[@]}"
benchmark roofline roofline.py "${train[@]}" "${steps[@]}"
benchmark costs train_step.py "${train[@]}" "${steps[@]}" "${few[@]}"
benchmark memory memory.py "${train[@]}" "${large[@]}"
benchmark selection selection.py --data_dir "$data/senteval" "${train[@]}" "${turns[@]}"
# One thread tokenises some thousand sentences a second, fewer than a GPU encodes.
TOKENIZERS_PARALLELISM=true benchmark encode encode.py --texts "$wiki" --st_batch_size 128 "${texts[@]}"
benchmark runs end_to_end.py --dev_file "$work/stsb-dev.tsv" "${train[@]}" "${rounds[@]}"
benchmark scaling scaling.py --parts batch length "${train[@]}" "${sizes[@]}"
part speed "$python" benchmarks/evaluation.py "$work/encoder" --title "$name" --data_dir "$data/senteval" "${sets[@]}" \
    --device "$device" --repetitions 1 --output "$results/speed-$name.json"

printf 'results: %s, logs: %s, %d s\n' "$results" "$work" "$SECONDS"
exit "$failed"
