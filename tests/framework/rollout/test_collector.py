import itertools
import threading
import time

import pytest

from apo_lightning.common.phases import PhaseClock
from apo_lightning.model.tokenizer import character_tokenizer
from apo_lightning.rewards import MathVerifyReward
from apo_lightning.rollout.collector import Collector
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.rollout.weight_sync import publish
from apo_lightning.types import Prompt, Verdict
from engine_bench import context, tiny_llama

GROUP_SIZE = 4
PROMPTS = [
    Prompt(id=str(i), problem="", answer=answer, text="", token_ids=(5 + i, 7, 9))
    for i, answer in enumerate(("a", "1", "b", "x"))
]


class LetterReward:
    """Right where a completion has an even number of characters; says which calls it got, and from which thread."""

    SCORES_WHILE_GENERATING = True

    def __init__(self, failure=None):
        self.calls, self.threads, self.failure = [], set(), failure

    def score(self, completions, answers):
        self.calls.append(list(zip(completions, answers, strict=True)))
        self.threads.add(threading.current_thread())
        if self.failure is not None:
            raise self.failure
        return [
            Verdict(reward=float(len(text) % 2 == 0), status="correct", extracted=text + answer)
            for text, answer in self.calls[-1]
        ]

    def check_answers(self, answers):
        pass

    def close(self):
        pass


class OnceLetterReward(LetterReward):
    SCORES_WHILE_GENERATING = False


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model = tiny_llama(tied=True)
    model.config.save_pretrained(folder)
    engine = TransformersEngine(sequences_per_batch=6)
    engine.setup(context(folder))
    publish(model, engine, 3)
    return engine


def collect(engine, reward, clock=None, group_size=GROUP_SIZE):
    collector = Collector(
        engine=engine,
        reward=reward,
        tokenizer=character_tokenizer(),
        run_seed=1,
        max_completion_tokens=12,
        stop_token_ids=tuple(range(10, 20)),
        clock=clock or PhaseClock(),
    )
    return collector.collect(PROMPTS, group_size=group_size, temperature=1.0, step=0, stream="train")


def test_scoring_beside_generation_changes_no_verdict(engine):
    beside, after = LetterReward(), OnceLetterReward()
    rollouts = collect(engine, beside)
    assert rollouts == collect(engine, after)
    assert len(after.calls) == 1
    assert after.threads == {threading.main_thread()}
    assert threading.main_thread() not in beside.threads
    assert sorted(itertools.chain(*beside.calls)) == sorted(after.calls[0])
    answers = [prompt.answer for prompt in PROMPTS for _ in range(GROUP_SIZE)]
    expected = [text + answer for text, answer in zip(rollouts.texts, answers, strict=True)]
    assert [verdict.extracted for verdict in rollouts.verdicts] == expected


def test_the_reward_sees_all_tokens_but_the_stop_token_at_the_end(engine):
    reward = OnceLetterReward()
    rollouts = collect(engine, reward, group_size=64)
    symbols = character_tokenizer().convert_ids_to_tokens(list(range(99)))
    expected = []
    for completion in rollouts.completions:
        kept = completion.token_ids[:-1] if completion.finish_reason == "stop" else completion.token_ids
        # The model's vocabulary has 128 ids, of which the tokenizer knows 99.
        expected.append("".join(symbols[token] for token in kept if token < 99))
    assert list(rollouts.texts) == [text for text, _ in reward.calls[0]] == expected
    assert {completion.finish_reason for completion in rollouts.completions} == {"stop", "length"}
    assert all(special in "".join(expected) for special in ("<|unknown|>", "<|turn|>", "<|end|>"))


def test_a_slow_reward_is_scoring_before_generation_ends(engine, monkeypatch):
    reward, first_call = LetterReward(), threading.Event()
    score, generate, expected = reward.score, engine.generate, collect(engine, OnceLetterReward())

    def told(*arguments):
        first_call.set()
        return score(*arguments)

    def generate_and_wait(requests, on_finished):
        completions = generate(requests, on_finished)
        assert first_call.wait(300)
        return completions

    monkeypatch.setattr(reward, "score", told)
    monkeypatch.setattr(engine, "generate", generate_and_wait)
    assert collect(engine, reward) == expected


@pytest.mark.parametrize("reward_class", [LetterReward, OnceLetterReward])
def test_what_a_reward_raises_surfaces(engine, reward_class):
    with pytest.raises(LookupError, match="no such gold"):
        collect(engine, reward_class(failure=LookupError("no such gold")))


def test_generation_ends_when_scoring_fails(engine, monkeypatch):
    finished, generate = [], engine.generate

    def generate_slowly(requests, on_finished):
        def told(index, completion):
            time.sleep(0.02)  # for the thread to fail meanwhile
            finished.append(index)
            on_finished(index, completion)

        return generate(requests, told)

    monkeypatch.setattr(engine, "generate", generate_slowly)
    with pytest.raises(LookupError, match="no such gold"):
        collect(engine, LetterReward(failure=LookupError("no such gold")))
    assert len(finished) < len(PROMPTS) * GROUP_SIZE


def test_an_error_of_the_engine_ends_the_scoring_thread(engine, monkeypatch):
    def out_of_memory(requests, on_finished):
        raise OSError("out of memory")

    monkeypatch.setattr(engine, "generate", out_of_memory)
    with pytest.raises(OSError, match="out of memory"):
        collect(engine, LetterReward())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("background scoring")]


def test_what_finishes_during_a_call_of_the_reward_is_one_later_call(engine, monkeypatch):
    reward, may_go_on = LetterReward(), threading.Event()
    score, generate = reward.score, engine.generate

    def score_when_told(*arguments):
        assert may_go_on.wait(300)
        return score(*arguments)

    def generate_then_allow(requests, on_finished):
        completions = generate(requests, on_finished)
        may_go_on.set()
        return completions

    monkeypatch.setattr(reward, "score", score_when_told)
    monkeypatch.setattr(engine, "generate", generate_then_allow)
    collect(engine, reward)
    assert [len(call) for call in reward.calls] == [1, len(PROMPTS) * GROUP_SIZE - 1]


def test_math_verify_says_the_same_of_parts_of_a_batch():
    completions = [r"\boxed{2\sqrt{2}}", r"\boxed{\sqrt{8}+}", "none", r"\boxed{\sqrt{7}}", r"\boxed{2\sqrt{2}}"]
    answers = [r"\sqrt{8}"] * 5
    reward = MathVerifyReward(num_workers=1)
    try:
        together = reward.score(completions, answers)
        assert [v for pair in zip(completions, answers, strict=True) for v in reward.score(*zip(pair))] == together
        assert {verdict.status for verdict in together} >= {"correct", "incorrect", "unparsed"}
    finally:
        reward.close()
