#!/usr/bin/env bash
# Writes constraints/cpu.txt and constraints/vllm.txt: the versions in .venv, with which the tests have passed, wherever
# an extra accepts them, and else the newest that it accepts. And constraints/gpu-2.11.txt, without an engine: the
# oldest torch that training was run with, on Python 3.12. Names and versions alone: no address, no hash.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Every extra is in both files, except the other engine.
extras=$("$python" -c '
import tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print(*(f"--extra={name}" for name in extras if name not in ("cpu", "vllm")))')
# The CPU engine pins a build of torch that PyPI does not have; pip takes torch==2.13.0 for met by 2.13.0+cpu.
sed -n 's/^cpu_torch=\(torch==.*\)+cpu$/\1/p' scripts/setup.sh >"$folder/torch.txt"

compile() {
    local engine=$1
    shift
    # uv keeps the versions that an existing output file has.
    "$python" -m uv pip freeze --exclude-editable --python "$python" | sed 's/+cpu$//' >"$folder/$engine.txt"
    # shellcheck disable=SC2086  # a list of options
    "$python" -m uv pip compile pyproject.toml --extra "$engine" $extras "$@" --python-version 3.11 \
        --python-platform x86_64-manylinux_2_28 --no-header --no-annotate --quiet --output-file "$folder/$engine.txt"
}

compile cpu --overrides "$folder/torch.txt" --excludes scripts/cpu-excludes.txt
compile vllm
# A GPU machine as one finds it: these came with its image, the others are the newest that go with them.
printf '%s\n' torch==2.11.0 triton==3.6.0 transformers==5.17.0 lightning==2.6.6 torchmetrics==1.9.0 numpy==2.5.2 \
    jaxtyping==0.3.11 peft==0.21.2 tokenizers==0.23.2 accelerate==1.15.0 hydra-core==1.3.8 >"$folder/image.txt"
"$python" -m uv pip compile pyproject.toml --extra benchmarks --extra dev --constraints "$folder/image.txt" \
    --python-version 3.12 --python-platform x86_64-manylinux_2_28 --no-header --no-annotate --quiet \
    --output-file "$folder/gpu-2.11.txt"
# The CUDA packages are dependencies of PyPI's torch, in whose place set-up installs the CPU build.
sed -i -E '/^(nvidia|cuda|triton)[a-z0-9-]*==/d' "$folder/cpu.txt"
mkdir -p constraints
mv "$folder/cpu.txt" "$folder/vllm.txt" "$folder/gpu-2.11.txt" constraints/
