"""How far engine and trainer may be apart follows from what rounding does to the policy."""

import pytest
import torch

from apo_lightning.errors import StaleWeightsError
from apo_lightning.evaluation.scoring import check_engine, microbatches, pack
from apo_lightning.model.policy import Policy
from apo_lightning.model.spec import PolicySpec
from apo_lightning.parts import engine_check
from apo_lightning.parts.engine_check import NUM_VERSIONS, EngineCheck, RoundingNoise, rounding_noise
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.rollout.weight_sync import logprob_gap, publish, start_engine
from apo_lightning.step.table import StepTable
from apo_lightning.types import Advantages, GenerationRequest, Prompt, Rollouts, Verdict
from factories import make_setup

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "initializer_range": 0.15,  # far from uniform: rounding must matter
}
CPU = torch.device("cpu")
PROMPTS = [Prompt(id=str(i), problem="", answer="", text="", token_ids=(5 + i, 9, 7, 20 + 3 * i)) for i in range(16)]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def pair(request):
    """A policy, and an engine in its dtype that holds its weights at version 1."""
    spec = PolicySpec(name="tiny", config=TINY, compute_dtype=request.param)
    policy = Policy(spec.load_model(seed=3), spec.load_tokenizer(), spec.dtype(CPU)).eval().requires_grad_(False)
    engine = TransformersEngine(sequences_per_batch=64)
    start_engine(engine, policy, max_model_len=64, device=CPU, seed=0)
    publish(policy.model, engine, 1)
    yield policy, engine
    engine.close()


def sampled_table(engine, num_tokens):
    requests = [
        GenerationRequest(prompt_token_ids=prompt.token_ids, seed=i, max_new_tokens=num_tokens)
        for i, prompt in enumerate(PROMPTS)
    ]
    verdict = Verdict(reward=0.0, status="incorrect")
    nothing = torch.zeros(len(PROMPTS), 1)
    return StepTable(
        Rollouts(
            step=1,
            prompts=tuple(PROMPTS),
            completions=tuple(engine.generate(requests)),
            texts=("",) * len(PROMPTS),
            verdicts=(verdict,) * len(PROMPTS),
            group_size=1,
            policy_version=1,
        ),
        Advantages(values=nothing, keep=nothing.bool()),
        CPU,
    )


def run(check, table, policy, version=1):
    return check.compare(make_setup(policy=policy), table, version)


def test_the_noise_of_the_trainers_two_precisions_is_the_size_of_the_gap(pair):
    policy, engine = pair
    table = sampled_table(engine, 32)
    sequences = pack(PROMPTS, [completion.token_ids for completion in table.rollouts.completions])
    [microbatch] = microbatches(sequences, [policy], 10_000)
    with torch.no_grad():
        logprobs = policy(microbatch).logprobs
    noise = float(rounding_noise(policy, microbatch, logprobs).mean())
    gap = logprob_gap(table.rollout_logprobs[microbatch.token_index], logprobs)
    if policy.compute_dtype == torch.float32:
        assert noise == 0 < gap < 1e-4
    else:
        assert noise > 1e-3
        assert 0.5 < gap / noise < 2
        with torch.no_grad():
            assert torch.equal(policy(microbatch).logprobs, logprobs)  # the policy is left as it was


def test_noise_is_measured_now_and_then_and_in_float32_costs_no_forward(pair, monkeypatch):
    policy, engine = pair
    table, check, forwards = sampled_table(engine, 32), EngineCheck(), []
    monkeypatch.setattr(engine_check, "ENOUGH_TOKENS", 20)
    run(check, table, policy)  # knows no log-probs yet, and has its forward for that
    plain = Policy.run_backbone
    monkeypatch.setattr(Policy, "run_backbone", lambda *args: forwards.append(1) or plain(*args))
    for version in range(2, NUM_VERSIONS + 1):
        run(check, table, policy, version)
    assert forwards == []
    run(check, table, policy, NUM_VERSIONS + 1)
    assert len(forwards) == (policy.compute_dtype == torch.bfloat16)
    assert check.noise.version == NUM_VERSIONS + 1


def test_noise_of_few_tokens_is_measured_again_at_the_next_version(pair):
    policy, engine = pair
    check = EngineCheck()
    for version in (1, 2, 3):
        run(check, sampled_table(engine, 1), policy, version)
        assert check.noise.version == version
        assert check.checked_version == version


def test_before_a_run_is_stopped_the_noise_is_measured_on_the_tokens_in_question(pair):
    policy, engine = pair
    check = EngineCheck()
    stale = RoundingNoise(nats=0.0, num_tokens=10**6, version=1)  # of a policy that was less sure of itself
    check.noise = stale
    gap, tolerance = run(check, sampled_table(engine, 32), policy, version=2)
    assert gap < tolerance
    is_suspicious = gap > 1e-3
    assert is_suspicious == (policy.compute_dtype == torch.bfloat16)
    assert (check.noise != stale) == is_suspicious


def test_another_policy_is_more_than_rounding_and_the_message_has_both_numbers(pair):
    policy, engine = pair
    table = sampled_table(engine, 32)
    table.rollout_logprobs -= 0.5
    check = EngineCheck()
    with pytest.raises(StaleWeightsError, match=r"version 7 .* 0\.[0-9]+ nats a token .* rounding explains 0\.[0-9]+:"):
        run(check, table, policy, version=7)
    assert check.checked_version == 0


def test_a_check_runs_one_micro_batch_within_the_budget(pair, monkeypatch):
    policy, engine = pair
    table, forwards, plain = sampled_table(engine, 8), [], Policy.run_backbone

    def counted(self, microbatch):
        forwards.append(len(microbatch.input_ids))
        return plain(self, microbatch)

    monkeypatch.setattr(Policy, "run_backbone", counted)
    run(EngineCheck(), table, policy)
    # A completion of 8 tokens takes 4 + 7 positions: under a budget of 100 the sixteen go eight and eight. In float32
    # the noise takes no forward.
    assert forwards == [88] * (1 + (policy.compute_dtype == torch.bfloat16))


def test_a_check_goes_on_where_another_left_off(pair):
    policy, engine = pair
    check, other = EngineCheck(), EngineCheck()
    other.load_state_dict(check.state_dict())
    assert other.noise is None
    run(check, sampled_table(engine, 8), policy)
    other.load_state_dict(check.state_dict())
    assert (other.noise, other.checked_version) == (check.noise, 1)


def test_an_evaluation_sees_another_policy_and_another_version(pair):
    policy, engine = pair
    assert 0 < check_engine(engine, policy, PROMPTS, max_new_tokens=16, version=1) < 0.1
    with pytest.raises(StaleWeightsError, match="of policy version 1, and the policy is at version 2"):
        check_engine(engine, policy, PROMPTS, max_new_tokens=16, version=2)
    weight = policy.model.base_model.layers[1].mlp.down_proj.weight
    sound = weight.clone()
    weight.mul_(-1)
    with pytest.raises(StaleWeightsError, match="rounding explains"):
        check_engine(engine, policy, PROMPTS, max_new_tokens=16, version=1)
    weight.copy_(sound)
