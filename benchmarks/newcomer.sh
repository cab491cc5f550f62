#!/usr/bin/env bash
# Run the commands of README's section "Two commands" as a newcomer would: each in a fresh clone of this repository,
# with a fresh virtual environment and an empty HOME. Prints the seconds of each; its output goes to a log.
#
#   benchmarks/newcomer.sh [FOLDER]     # FOLDER: where to work; default: a temporary folder
#   benchmarks/newcomer.sh --list       # print the commands and stop
#
# Settings of pip and proxies in the environment (PIP_*, *_proxy) are kept; nothing else is.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

commands() {
    sed -n '/^## Two commands$/,/^## From /p' "$root/README.md" | sed -n '/^```bash$/,/^```$/{/^```/d;p}'
}

if [ "${1:-}" = --list ]; then
    commands
    exit
fi

work="${1:-$(mktemp -d)}"
mkdir -p "$work"
work="$(cd "$work" && pwd)"
kept=()
while IFS= read -r variable; do kept+=("$variable"); done < <(env | grep -E '^(PIP_[A-Z_]+|[a-zA-Z]+_proxy|[A-Z]+_PROXY|LANG|TERM|TMPDIR)=' || true)

failed=0
number=0
while IFS= read -r command; do
    number=$((number + 1))
    clone="$work/$number/csekit" home="$work/$number/home" log="$work/$number.log"
    mkdir -p "$home"
    git clone --quiet "$root" "$clone"
    started=$(date +%s.%N)
    if (cd "$clone" && env -i PATH="$PATH" HOME="$home" "${kept[@]}" bash -c "$command") >"$log" 2>&1 </dev/null; then
        state=done
    else
        state=failed
        failed=1
    fi
    LC_ALL=C awk -v a="$started" -v b="$(date +%s.%N)" -v s="$state" -v l="$log" -v c="$command" \
        'BEGIN { printf "%s in %.1f s (%s)\n  %s\n", s, b - a, l, c }'
done < <(commands)
exit "$failed"
