"""An engine beside the policy it samples from, in this process or in one of its own."""

import copy
import functools
import os
import traceback
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from apo_lightning.common.formatting import GIB
from apo_lightning.rollout.engine import EngineContext
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.rollout.vllm_engine import VLLMEngine
from apo_lightning.rollout.weight_sync import publish
from processes import CONTEXT

VOCAB = 128


def make_engine(name):
    if name == "transformers":
        return TransformersEngine(sequences_per_batch=16)
    # Keys and values of 6,400 tokens in float32: of 2 layers 2·32 numbers of 4 bytes each.
    return VLLMEngine(kv_cache_gib=6400 * 512 / GIB, max_num_seqs=64, max_num_batched_tokens=1024, enforce_eager=True)


def tiny_llama(tied):
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                # far from uniform, and no norm at its initial ones: each parameter must matter
                parameter.add_(0.15 * torch.randn_like(parameter))
    return model


def perturbed(model, names):
    other = copy.deepcopy(model)
    parameters = dict(other.named_parameters())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name in names:
            parameters[name].add_(0.3 * torch.randn(parameters[name].shape, generator=generator))
    return other


def all_logprobs(model, request, token_ids):
    """log softmax(logits / temperature) at each position of the tokens, teacher-forced."""
    prompt = list(request.prompt_token_ids)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + list(token_ids)])).logits[0, len(prompt) - 1 : -1]
    return (logits / request.temperature).log_softmax(-1)


def reference_logprobs(model, request, token_ids):
    """Those of the tokens themselves."""
    return all_logprobs(model, request, token_ids).gather(1, torch.tensor(token_ids)[:, None])[:, 0]


class Bench:
    def __init__(self, engine_name, tied, folder, dtype=torch.float32):
        from engine_contract import recording_changes

        self.tied = tied
        self.model = tiny_llama(tied)
        self.model.config.save_pretrained(folder)
        self.engine = make_engine(engine_name)
        self.changed_by_setup = []
        with recording_changes(self.changed_by_setup):
            self.engine.check(torch.device("cpu"))
            self.engine.setup(context(folder, dtype))

    def fresh(self):
        """The policy's weights, at version 1."""
        publish(self.model, self.engine, version=1)

    def gap(self):
        from engine_contract import gap, request

        requests = [request((7, 8, 9), seed=i) for i in range(4)]
        return gap(self, requests, self.engine.generate(requests))

    def run(self, contract_name):
        import engine_contract as contract

        self.fresh()
        getattr(contract, contract_name)(self)

    def close(self):
        self.engine.close()


def context(folder, dtype=torch.float32, **ranks):
    return EngineContext(
        model_dir=Path(folder), dtype=dtype, max_model_len=128, device=torch.device("cpu"), seed=0, **ranks
    )


class RemoteBench:
    """The same, in another process: vLLM replaces parts of torch for as long as a process lives.

    All benches of this process are in that one, which so imports vLLM once. It has one engine at a time, and opens
    that of another bench when this is asked to run.
    """

    def __init__(self, *arguments):
        self._arguments = arguments
        self._pipe = _bench_process()
        self._ask("open")

    def run(self, contract_name):
        self._ask("run", contract_name)

    def close(self):
        self._ask("close")

    def _ask(self, question, *words):
        self._pipe.send((self._arguments, question, words))
        failure = self._pipe.recv()
        if failure:
            raise AssertionError(f"in the engine's process:\n{failure}")


@functools.cache
def _bench_process():
    """The pipe to it; it ends with this process."""
    ours, theirs = CONTEXT.Pipe()
    CONTEXT.Process(target=_serve, args=(theirs,), daemon=True).start()
    theirs.close()
    return ours


def _serve(pipe):
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    opened, bench = None, None
    while True:
        arguments, question, words = pipe.recv()
        failure = None
        try:
            if bench is not None and (opened != arguments or question == "close"):
                bench, closed = None, bench
                closed.close()
            if bench is None and question != "close":
                opened, bench = arguments, Bench(*arguments)
            if question == "run":
                bench.run(*words)
        except BaseException:
            failure = traceback.format_exc()
        pipe.send(failure)
