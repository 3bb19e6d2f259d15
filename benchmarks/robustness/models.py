"""Which architectures train, with which engine, and why the others do not: one page from a sweep over all of them.

    python -m benchmarks.robustness.models [--types llama,olmoe] [--engines transformers,vllm] [--processes 2]
        [--results outputs/models] [--page docs/models.md]

For each causal architecture of the installed transformers a folder with a small random model is made and preflighted.
A model that is not refused is trained for three steps with each engine. Then the log-probs of the exported folder, by
transformers alone and one sequence at a time, must be those of the trained policy in one packed micro-batch, and so
must their gradients; and the engine's samples must have had the policy's log-probs in every step. Each result is a file
of the results folder, and a second call runs only what has none. Needs no GPU.
"""

import argparse
import contextlib
import copy
import csv
import io
import json
import multiprocessing
import os
import re
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from apo_lightning.errors import ConfigError
from apo_lightning.model.packing import PackedSequences
from apo_lightning.model.tokenizer import character_tokenizer
from apo_lightning.run.choices import composed
from apo_lightning.run.training import train
from apo_plan.preflight import preflight

MODEL_TYPES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
ENGINES = ("transformers", "vllm")
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "initializer_range": 0.1,
}
# Of a mixture of experts; a field that a config does not have is left out.
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_start_index": 1,
}
MUSIC = {"text_encoder": "t5", "audio_encoder": "encodec", "decoder": "musicgen_decoder"}
# What an architecture needs besides, or instead; None: it has no such field.
OWN: dict[str, dict[str, Any]] = {
    "afmoe": {"score_func": "sigmoid", "route_norm": True},  # vLLM reads it, as three others
    "hy_v3": {"first_k_dense_replace": 1, "expert_hidden_dim": 32},
    "lfm2": {"block_dim": 64},
    "minimax_m2": {"rotary_dim": 32, "scoring_func": "sigmoid"},
    "dbrx": {
        "attn_config": {"kv_n_heads": 1, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "diffllama": {"num_key_value_heads": 2},
    "dots1": {"n_shared_experts": 1},
    "falcon": {"head_dim": None},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"], "num_dense_layers": 1},
    "llama4_text": {"intermediate_size_mlp": 96},
    "mamba2": {"num_heads": 4},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}},
    "musicgen": {name: {"model_type": kind} for name, kind in MUSIC.items()},
    "musicgen_melody": {name: {"model_type": kind} for name, kind in MUSIC.items()},
    "prophetnet": {"num_hidden_layers": None},
    "reformer": {"is_decoder": True},
    "xlnet": {"max_position_embeddings": None, "d_head": 32},
    "zamba": {"layers_block_type": ["mamba", "hybrid"]},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
RUN = (
    "model=tiny", "model.config=null", "data=gsm8k", "data.num_validation=0", "data.max_completion_tokens=6",
    "data.max_prompt_tokens=256", "prompts_per_step=4", "prompts_per_minibatch=4", "group_size=4",
    "trainer.max_steps=3", "callbacks=none", "+callbacks.export._target_=apo_lightning.callbacks.export.ExportPolicy",
    "optimizer.lr=1e-3", "scheduler.num_warmup_steps=0", "checkpoint.save_every=null", "algo=grpo",
    # A random model gets no sum right; this it gets half right.
    "reward=callable", "reward.function._target_=benchmarks.shared.runs.even_start",
)  # fmt: skip
TOLERANCE = 1e-4
HEAD = """# Models

Which architectures train. All {count} causal ones of transformers {version} were tried on a CPU, each as a small random
model with the default values of its config: three steps of `algo=grpo`, then log-probs and gradients of a packed
micro-batch against those of the exported model alone, to 1e-4, and in every step those of the engine against the
policy's. {trained} train; the others are refused in one line, by `apo preflight` too, before weights are loaded.

This page is written by `python -m benchmarks.robustness.models`; how to read it:

- A default is not your model's value: a sliding window or `rope_type` longrope limits the length of sequences, and
  dropout, router noise, a scale or cap of logits and quantised weights are refused wherever they are.
- Experts train with all weights. Adapters need `policy.lora.target_modules` by name: experts are no linear layers.
- `no` under vLLM is refused by preflight as well, with `engine=transformers` as the remedy. "Refused late": vLLM reads
  fields that the default config does not have, and ends in one line where yours has not got them either.
"""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of an architecture with an engine."""

    model_type: str
    engine: str
    outcome: str
    """`runs`, `refused` by preflight, `fails` with something else than one line, or `no model` of these sizes."""
    reason: str = ""
    seconds: float = 0.0


def small_config(model_type: str, **fields: Any) -> PretrainedConfig:
    """The architecture with the sizes above; a multimodal one has them in its text part."""
    own = copy.deepcopy(OWN.get(model_type, {}) | fields)
    parts = {key: own[key] for key in (*MUSIC, "text_config") if key in own}
    known = vars(AutoConfig.for_model(model_type, **copy.deepcopy(parts)))
    given = {key: size for key, size in EXPERTS.items() if key in known}
    given |= SIZES | {"vocab_size": len(character_tokenizer())}
    if kinds := [*dict.fromkeys(known.get("layer_types") or ())]:  # each kind once, of two layers or more
        given["layer_types"] = (kinds * 2)[: max(2, len(kinds))]
        given["num_hidden_layers"] = len(given["layer_types"])
    given = {key: value for key, value in (given | own).items() if value is not None or key in fields}
    if "text_config" in known:
        of_text: Any = given.pop("text_config", {})
        return AutoConfig.for_model(model_type, text_config=given | of_text)
    return AutoConfig.for_model(model_type, **given)


def write_folder(model_type: str, folder: Path, **fields: Any) -> Path:
    """A folder with config and tokenizer; `write_weights` adds random weights, which a refused model never needs."""
    config = small_config(model_type, **fields)
    with contextlib.suppress(Exception), torch.device("meta"):
        config.architectures = [type(AutoModelForCausalLM.from_config(config)).__name__]
    config.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    problems = [{"problem": f"{a}+1=", "answer": str(a + 1)} for a in range(1, 7)]
    (folder / "problems.jsonl").write_text("\n".join(map(json.dumps, problems)) + "\n")
    return folder


def write_weights(folder: Path) -> None:
    """Random weights for the config of this folder."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.state_dict().values():  # norms and routers too: new ones hide what is swapped or left out
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    model.save_pretrained(folder)


def check(model_type: str, engine: str, folder: Path, *overrides: str, **fields: Any) -> Result:
    """Make, preflight, train and compare, in this process."""
    start = time.perf_counter()

    def result(outcome: str, reason: str = "") -> Result:
        seconds = round(time.perf_counter() - start, 1)
        return Result(model_type=model_type, engine=engine, outcome=outcome, reason=reason, seconds=seconds)

    try:
        write_folder(model_type, folder, **fields)
    except Exception as error:
        return result("no model", f"{type(error).__name__}: {error}"[:200])
    given = (*RUN, f"model.path={folder}", f"data.path={folder / 'problems.jsonl'}", f"engine={engine}", *overrides)
    try:
        plan = composed("preflight", (*given, "rates=h100"))
        if refusal := preflight_error(lambda: preflight(plan, folder / "preflight")):
            return result("refused", refusal)
        write_weights(folder)
        module = train(composed("train", given), folder / "run")
        check_metrics(folder / "run" / "metrics.csv")
        check_policy(module.policy, folder / "run" / "checkpoints" / "final")
    except ConfigError as error:
        return result("refused late", str(error))
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return result("fails", f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"[:400])
    return result("runs")


def preflight_error(run: Callable[[], int]) -> str:
    """The first error that preflight prints, if any."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = run()
    if not status:
        return ""
    lines = [" ".join(line.split()) for line in printed.getvalue().splitlines()]
    return next(line.partition("error")[2].strip(": ") for line in lines if line.startswith("error"))


def check_metrics(file: Path) -> None:
    """In each step something was learned, and the engine sampled from the policy."""
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    gaps = [float(row["sync/logprob_gap"]) for row in rows]
    assert max(gaps, default=1) < TOLERANCE, f"log-probs of engine and policy differ by {gaps}"
    assert any(float(row["train/grad_norm"]) > 0 for row in rows), "no gradient"


def check_policy(policy: Any, exported: Path) -> None:
    """Log-probs and gradients of a packed micro-batch are those of the exported model, one sequence at a time."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        exported, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    model, info = loaded
    problems = {key: names for key, names in info.items() if names}
    assert not problems, f"the exported folder: {problems}"
    generator = torch.Generator().manual_seed(1)
    prompts = [tuple(torch.randint(3, 90, (length,), generator=generator).tolist()) for length in (9, 5)]
    completions = [tuple(torch.randint(3, 90, (length,), generator=generator).tolist()) for length in (7, 1, 12, 4)]
    packed = PackedSequences(prompts=prompts, completions=completions, owners=[0, 0, 1, 1])
    [microbatch] = packed.microbatches(range(4), 1000, torch.device("cpu"))
    logprobs = policy(microbatch).logprobs
    expected = torch.cat([unpacked(model, prompts[i // 2], completions[i]) for i in range(4)])
    gap = (logprobs - expected).abs().max().item()
    assert gap < TOLERANCE, f"packed log-probs are {gap:.3g} off"
    weights = torch.rand(len(expected), generator=generator)
    (weights * logprobs).sum().backward()
    (weights * expected).sum().backward()
    theirs = dict(model.named_parameters())
    for name, parameter in policy.model.named_parameters():
        if not parameter.requires_grad or "lora_" in name:
            continue
        ours, other = parameter.grad, theirs[name].grad
        assert (ours is None) == (other is None), f"{name} has a gradient in one of two"
        if ours is not None and other is not None:
            gap = ((ours - other).abs().max() / (1 + other.abs().max())).item()
            assert gap < TOLERANCE, f"the gradient of {name} is {gap:.3g} off"


def unpacked(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> torch.Tensor:
    """Log-probs of a completion, by the model alone."""
    logits = model(torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]


def run_apart(model_type: str, engine: str, file: Path, overrides: Sequence[str] = ()) -> None:
    """`check` in this process, which may die; the result goes to the file."""
    log = os.open(file.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    with tempfile.TemporaryDirectory() as folder:
        found = check(model_type, engine, Path(folder), *overrides)
    file.write_text(json.dumps(asdict(found), indent=1))
    os._exit(0)  # vLLM's threads would be waited for


def sweep(pairs: Sequence[tuple[str, str]], results: Path, processes: int, limit_s: float) -> Iterator[Result]:
    """Each pair of type and engine that has no result yet, in a process of its own with all imports done."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["apo_lightning.run.training", "apo_plan.preflight"])
    waiting = [pair for pair in pairs if not (results / f"{'.'.join(pair)}.json").is_file()]
    running: dict[Any, tuple[str, str, float]] = {}
    while waiting or running:
        while waiting and len(running) < processes:
            pair = waiting.pop(0)
            process = context.Process(target=run_apart, args=(*pair, results / f"{'.'.join(pair)}.json"))
            process.start()
            running[process] = (*pair, time.perf_counter())
        for process, (model_type, engine, start) in list(running.items()):
            is_late = time.perf_counter() - start > limit_s
            if process.is_alive() and not is_late:
                continue
            process.kill()
            process.join()
            del running[process]
            file = results / f"{model_type}.{engine}.json"
            if not file.is_file():
                reason = f"took more than {limit_s:.0f} s" if is_late else f"the process died: {process.exitcode}"
                lost = Result(model_type=model_type, engine=engine, outcome="fails", reason=reason)
                file.write_text(json.dumps(asdict(lost), indent=1))
            yield Result(**json.loads(file.read_text()))
        time.sleep(0.1)


def outcome(results: Path, model_type: str) -> str:
    """That of the first engine; `` without a result."""
    file = results / f"{model_type}.{ENGINES[0]}.json"
    return json.loads(file.read_text())["outcome"] if file.is_file() else ""


def page(results: Sequence[Result]) -> str:
    """`docs/models.md`."""
    by_type: dict[str, dict[str, Result]] = {}
    for found in results:
        by_type.setdefault(found.model_type, {})[found.engine] = found
    trained = {kind: found for kind, found in by_type.items() if found[ENGINES[0]].outcome == "runs"}
    lines = [HEAD.format(version=version("transformers"), count=len(by_type), trained=len(trained)), "## Trained\n"]
    lines += ["| architecture | `engine=transformers` | `engine=vllm` |", "|---|---|---|"]
    for kind, found in trained.items():
        other = found.get(ENGINES[1])
        vllm = "not tried" if other is None else "yes" if other.outcome == "runs" else f"no: {reason_of(other)}"
        lines.append(f"| `{kind}` | yes | {vllm} |")
    lines += ["\n## Refused\n", "| the model … | architectures |", "|---|---|"]
    refused: dict[str, list[str]] = {}
    for kind, found in by_type.items():
        if kind not in trained:
            refused.setdefault(reason_of(found[ENGINES[0]]), []).append(f"`{kind}`")
    lines += [f"| {reason} | {', '.join(kinds)} |" for reason, kinds in sorted(refused.items())]
    return "\n".join(lines) + "\n"


def reason_of(found: Result) -> str:
    """Why it does not run, without the model's name and the remedy."""
    reason = " ".join(found.reason.split()).partition(", which this trainer does not")[0]
    reason = re.sub(r"^vLLM does not run an? \S+ model \((.+)\):.*", r"\1", reason)
    reason = re.sub(r"^an? \S+ model |^\w+ForCausalLM ", "", reason).partition(": choose")[0]
    reason = reason.partition(" (")[0] if reason.startswith("has layers that fail") else reason
    return reason if found.outcome == "refused" else f"{reason} ({found.outcome})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=",".join(MODEL_TYPES))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("outputs/models"))
    parser.add_argument("--page", type=Path, help="written once every architecture has a result")
    parser.add_argument("--again", action="store_true", help="forget earlier results of these types")
    parser.add_argument("--limit-s", type=float, default=600)
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    types, engines = arguments.types.split(","), arguments.engines.split(",")
    if arguments.again:
        for model_type in types:
            for engine in engines:
                (arguments.results / f"{model_type}.{engine}.json").unlink(missing_ok=True)
    start = time.perf_counter()
    for engine in engines:
        # What is refused or fails with the first engine need not be tried with another.
        tried = [kind for kind in types if engine == ENGINES[0] or outcome(arguments.results, kind) == "runs"]
        pairs = [(model_type, engine) for model_type in tried]
        for found in sweep(pairs, arguments.results, arguments.processes, arguments.limit_s):
            line = f"{found.model_type:24} {found.engine:13} {found.outcome:12} {found.seconds:6.1f} s"
            print(f"{line}  {' '.join(found.reason.split())}", flush=True)
    print(f"{(time.perf_counter() - start) / 60:.1f} minutes")
    files = [arguments.results / f"{kind}.{engine}.json" for kind in MODEL_TYPES for engine in ENGINES]
    found = [Result(**json.loads(file.read_text())) for file in files if file.is_file()]
    print(Counter((result.engine, result.outcome) for result in found))
    if arguments.page is not None and {result.model_type for result in found} == {*MODEL_TYPES}:
        arguments.page.write_text(page(found))


if __name__ == "__main__":
    main()
