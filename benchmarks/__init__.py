"""What the project costs and how right it is, measured; `RESULTS.md` has the tables. Run from the repository's root.

python -m benchmarks.<folder>.<script>

accuracy     intervals, verdicts, the verifier: how often or by how much they are wrong
performance  seconds and memory of the head, the update, a step and the start, against TRL and Liger
laboratory   what the published tables of several editions say together: `docs/lab/across`
robustness   a run that is killed at random moments, architectures, and changes of src that tests must notice
gpu          `make gpu`: all that only a GPU can show
size         one script, `python -m benchmarks.size`: lines, files and names of this checkout or another one
shared       timing, random models, what runs of `train.py` have in common
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
