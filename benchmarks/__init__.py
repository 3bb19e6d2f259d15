"""What the project costs and how right it is, measured; `RESULTS.md` has the tables. Run from the repository's root.

python -m benchmarks.<folder>.<script>

accuracy     intervals, the verifier, sampled entropy: how often or by how much they are wrong
performance  seconds and memory of the head, the update, a step, ranks and the start, against TRL and Liger
preflight    what `preflight=true` counts, against real runs, and where its constants come from
robustness   a run that is killed, eight processes, an engine over many rounds
gpu          `make gpu`: all that only a GPU can show
emulated     its part for machines without a GPU: kernels compiled for one, a GPU emulated on the CPU
shared       timing, random models, what runs of `train.py` have in common
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
