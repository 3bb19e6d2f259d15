"""`README.md` of an exported policy, with the metadata that a model hub reads."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from apo_lightning.common.formatting import printable

CITATION = """```bibtex
@article{wang2026anchored,
  title={Anchored Policy Optimization: Mitigating Exploration Collapse via Support-Constrained Rectification},
  author={Wang, Tianyi and Li, Long and Guo, Hongcan and Chen, Yibiao and Li, Yixia and Wang, Yong and Chen, Yun and
          Chen, Guanhua},
  journal={arXiv preprint arXiv:2602.05717},
  year={2026}
}
```"""


def model_card(
    config: Mapping[str, Any], *, step: int, sha256: str, sections: Sequence[str] = (),
    results: Sequence[EvalResult] = (),
) -> bytes:  # fmt: skip
    """The page of a policy after `step` training steps under `config`, with weights of this hash.

    `sections` are Markdown, and `results` are listed in `model-index`.
    """
    model, data_name = config["model"], config["data"].get("name", "its problems")
    loss = str(config["algo"]["loss"]["_target_"]).rpartition(".")[2]
    is_of_hub = re.fullmatch(r"[\w-]+/[\w.-]+", path := str(model["path"])) and not Path(path).exists()
    data = ModelCardData(
        base_model=path if is_of_hub else None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["apo-lightning", "rlvr"],
        model_name=f"{model['name']}, {loss}",
        eval_results=list(results) or None,
    )
    text = [
        f"# {model['name']}, trained with {loss}",
        f"{step} steps of reinforcement learning with verifiable rewards on {data_name}, with seed "
        f"{config['seed']}, by apo-lightning. SHA-256 of the weights: `{sha256}`; `origin.json` lists all files.",
        *sections,
        f"## Citation\n\n{CITATION}",
    ]
    lines = [printable(line) for line in "\n\n".join(text).replace("<", "&lt;").splitlines()]
    card = ModelCard("\n".join(["---", data.to_yaml(), "---", "", *lines, ""]))
    return str(card).encode()
