#!/usr/bin/env bash
# Makes a folder with all that `python -m benchmarks.gpu` needs on a machine with a GPU, torch and transformers, but no
# network: the committed code, one base model of the laboratory, and the packages that such an image lacks.
#
#   scripts/gpu_kit.sh FOLDER [--peers]    --peers: TRL and Liger too, which `second` measures beside ours
#
# constraints/gpu-2.11.txt has the versions of the image. Prints the command of each of the two calls.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ $# -ge 1 && $1 != -* ]] || { echo "usage: scripts/gpu_kit.sh FOLDER [--peers]" >&2; exit 2; }
kit=$1
[[ -e $kit ]] && { echo "$kit is there already: name a new folder" >&2; exit 2; }
python=${PYTHON:-.venv/bin/python}
peers=()
[[ ${2:-} == --peers ]] && peers=(trl liger-kernel datasets dill multiprocess)

mkdir -p "$kit"
git archive HEAD src configs benchmarks train.py docs/lab/bases/locks_a | tar -x -C "$kit"
constraints=constraints/gpu-2.11.txt
pins=($("$python" -m uv pip compile --quiet --no-annotate --no-header --python-version 3.12 --constraint "$constraints" \
    --excludes scripts/gpu-image.txt pyproject.toml))
for peer in ${peers[@]+"${peers[@]}"}; do
    pins+=("$(grep "^$peer==" "$constraints")")
done
"$python" -m uv pip install --quiet --target "$kit/site" --python-version 3.12 --no-deps "${pins[@]}"
rm -rf "$kit/site/bin"

# $1 of the kit's script: first or second; the others go to benchmarks.gpu.
cat >"$kit/run.sh" <<'RUN'
cd "$(dirname "${BASH_SOURCE[0]}")" && export PYTHONPATH=$PWD/site:$PWD/src
out=${OUT:-$PWD/results}
rm -rf "results/$1" && mkdir -p results "$out"
"${PYTHON:-python3}" -m benchmarks.gpu "$@" --output "results/$1"
status=$?
# Few files: some machines give back no more.
cp "results/$1/rows.jsonl" "$out/$1.jsonl" && cp "results/$1/table.md" "$out/$1.md"
tar -czf "$out/$1.tgz" -C results "$1"
exit $status
RUN
echo "$kit: $(du -sh "$kit" | cut -f 1), of which site $(du -sh "$kit/site" | cut -f 1). On the machine, in this order:"
echo "  bash $(basename "$kit")/run.sh first --minutes 6"
echo "  bash $(basename "$kit")/run.sh second --minutes 4"
