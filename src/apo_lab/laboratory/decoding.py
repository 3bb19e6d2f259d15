"""The last policy of a run under other ways to decode it, each exact: temperatures, and the base model mixed in."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch
from hydra.utils import instantiate
from jaxtyping import Float
from omegaconf import DictConfig
from torch import Tensor

from apo_lab.diagnostics.exact_coverage import ExactCoverage
from apo_lab.diagnostics.listed_answers import held_out_prompts
from apo_lab.editions.protocol import AVERAGED
from apo_lightning.model.average import PARTS, average, weights_of_part
from apo_lightning.model.policy import Policy

Tokens = Float[Tensor, "tokens"]
"""Log-probs of the tokens of all listed answers [nats]."""


@torch.no_grad()
def measure_decodings(cfg: DictConfig, last: Path, decodings: Mapping[str, Sequence[float]], folder: Path) -> None:
    """Measure each setting of each of `Protocol.decodings`, as `ExactCoverage` does, as steps of `folder`/<its name>.

    θ is the policy in the folder `last`, θ_base that of the model that the run's `cfg` names. With a temperature T and
    a weight w of the base, and π_T for softmax(logits/T):

        +temperature         π_T at every token
        +first_temperature   π_T at the first token, π behind it
        +mixture             (1 − w)·π + w·π_base at every token
        +first_mixture       the same at the first token, π behind it
        +average             the policy of (1 − w)·θ + w·θ_base; +average_<part>: of the weights of a part alone
    """
    source, spec = instantiate(cfg.data), instantiate(cfg.model, _convert_="all")
    tokenizer = spec.load_tokenizer()
    prompts = held_out_prompts(source, tokenizer, spec.prompt_template)
    coverage = ExactCoverage(source.puzzle, ks=(1, 8, 64))
    base = Policy(spec.load_model(0), tokenizer, torch.float32).eval()
    base_weights = dict(base.model.named_parameters())
    trained = instantiate(cfg.model, path=str(last), _convert_="all").load_model(0).state_dict()
    policy = Policy(spec.load_model(0), tokenizer, torch.float32).eval()
    tree = coverage.tree(policy, prompts)

    @cache
    def of_policy(temperature: float) -> Tokens:
        policy.model.load_state_dict(trained)
        return tree.logprobs(policy, cfg.temperature * temperature)

    @cache
    def of_base() -> Tokens:
        return tree.logprobs(base, cfg.temperature)

    def of_average(part: str, weight: float) -> Tokens:
        policy.model.load_state_dict(trained)
        weights = weights_of_part(base_weights, part, policy.model.config.num_hidden_layers)
        average(dict(policy.model.named_parameters()), weights, weight)
        return tree.logprobs(policy, cfg.temperature)

    def tokens(name: str, setting: float) -> Tokens:
        if name.startswith(AVERAGED):
            return of_average(name.removeprefix(AVERAGED).removeprefix("_") or PARTS[0], setting)
        is_temperature = name.endswith("temperature")
        found = of_policy(setting) if is_temperature else mixed(of_policy(1.0), of_base(), setting)
        return found.where(tree.listed.starts, of_policy(1.0)) if name.startswith("+first") else found

    for name, settings in decodings.items():
        for place, setting in enumerate(settings, start=1):
            coverage.score_tokens(tokens(name, setting), place, folder / name.removeprefix("+"))


def mixed(own: Tokens, of_base: Tokens, weight: float) -> Tokens:
    """log((1 − w)·π + w·π_base) for a weight w in [0, 1].

    Example:
        >>> own, of_base = torch.tensor([0.9]).log(), torch.tensor([0.1]).log()
        >>> [round(mixed(own, of_base, weight).exp().item(), 6) for weight in (0.0, 0.25, 1.0)]
        [0.9, 0.7, 0.1]
    """
    share = torch.tensor([1 - weight, weight], dtype=own.dtype).log()
    return torch.logaddexp(own + share[0], of_base + share[1])
