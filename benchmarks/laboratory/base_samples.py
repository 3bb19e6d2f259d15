"""Pass@k of the base models of `decoding`, exactly: what samples of the base model alone give, whatever was trained.

Drawing one sample from a policy and 63 from its base has the policy's pass@1 and at least the base's pass@63; drawing
32 of 64 from the base, at least its pass@32. A minute.

python -m benchmarks.laboratory.base_samples
"""

import tempfile
from pathlib import Path

import torch
from hydra.utils import instantiate

from apo_lab.diagnostics.exact_coverage import ExactCoverage
from apo_lab.diagnostics.listed_answers import held_out_prompts
from apo_lab.editions.protocol import load_protocol
from apo_lightning.model.policy import Policy
from apo_lightning.run.choices import composed
from benchmarks.laboratory.rows import LAB

KS = (1, 32, 63, 64)


@torch.no_grad()
def pass_at(world_run: tuple[str, ...], base: Path) -> list[float]:
    """Pass@k of a base model on the held-out problems of a world, for each of `KS`, in per cent."""
    cfg = composed("train", [*world_run, f"model.path={base}"])
    source, spec = instantiate(cfg.data), instantiate(cfg.model, _convert_="all")
    tokenizer = spec.load_tokenizer()
    policy = Policy(spec.load_model(0), tokenizer, torch.float32).eval()
    coverage = ExactCoverage(source.puzzle, ks=KS)
    tree = coverage.tree(policy, held_out_prompts(source, tokenizer, spec.prompt_template))
    with tempfile.TemporaryDirectory() as folder:
        metrics = coverage.score_tokens(tree.logprobs(policy, cfg.temperature), 0, Path(folder))
    return [100 * metrics[f"pass@{k}"] for k in KS]


def main() -> None:
    print("| base model of |", " | ".join(f"pass@{k} [%]" for k in KS), "|")
    print("|:--|", "--:|" * len(KS), sep="")
    rows = []
    for name, world in load_protocol("decoding").worlds.items():
        rows.append(pass_at(world.run, LAB / "bases" / name / "locks"))
        print(f"| {name} |", " | ".join(f"{each:.2f}" for each in rows[-1]), "|", flush=True)
    print("| mean |", " | ".join(f"{each:.2f}" for each in torch.tensor(rows).mean(0).tolist()), "|")


if __name__ == "__main__":
    main()
