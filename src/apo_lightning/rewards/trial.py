"""A reward is tried on made-up completions before a run: in the run a faulty one would fail late, or train on zeros."""

from collections.abc import Callable, Sequence

import torch

from apo_lightning.common.random_states import random_states, restore_random_states
from apo_lightning.contracts import Reward, Samples, TrainerState, score_samples
from apo_lightning.errors import ConfigError, Preempted, failure
from apo_lightning.rewards.callable import LOGGER, CallableReward
from apo_lightning.rewards.math_verify import MathVerifyReward
from apo_lightning.rewards.weighted import WeightedRewards
from apo_lightning.types import Prompt, Verdict

MADE_UP = "three made-up completions, with the right answer, a wrong one and none"


def try_reward(
    reward: Reward, prompt: Prompt, encode: Callable[[str], list[int]], state: TrainerState
) -> Sequence[Verdict]:
    """The verdicts of a reward, called as a step does, on the right answer of a prompt, a wrong one and none at all.

    Each function is called once; where it fails on messages, or gives all three the same reward, once more on text.
    Random generators are left as they were. `encode` gives the tokens of a completion, with the one that ends it.

    Raises:
        ConfigError: it raises, or returns anything but one finite number or verdict per completion; or it
            tells the three apart as text alone, and would be given messages.
    """
    states, LOGGER.disabled = random_states(), True  # what it would say is the error
    try:
        samples = _samples(prompt, encode, state)
        if isinstance(reward, WeightedRewards):
            return reward.combined({name: _try(part, samples) for name, part in reward.functions.items()})
        return _try(reward, samples)
    finally:
        LOGGER.disabled = False
        restore_random_states(states)


def _samples(prompt: Prompt, encode: Callable[[str], list[int]], state: TrainerState) -> Samples:
    form = "\\boxed{%s}" if "\\boxed" in prompt.text else "%s"
    texts = (form % prompt.answer, form % "-31415", "")
    ids = [encode(text) for text in texts]
    return Samples(prompts=[prompt] * len(texts), texts=texts, plain_texts=texts, token_ids=ids, state=state)


def _try(reward: Reward, samples: Samples) -> Sequence[Verdict]:
    if isinstance(reward, MathVerifyReward):  # ours: its processes start when they are needed
        right, wrong = (samples.prompts[0].answer, "-31415")
        return [
            Verdict(reward=1.0, status="correct", extracted=right),
            Verdict(reward=0.0, status="incorrect", extracted=wrong),
            Verdict(reward=0.0, status="unparsed"),
        ]
    fault, verdicts = _outcome(reward, samples)
    rewards = [verdict.reward for verdict in verdicts]
    if type(reward) is CallableReward and reward.gets_messages(samples) and reward.format == "auto":
        as_text = CallableReward(reward.function, reward.correct_threshold, "text")
        fault_on_text, on_text = (None, ()) if len(set(rewards)) > 1 else _outcome(as_text, samples)
        if on_text and (fault is not None or len({verdict.reward for verdict in on_text}) > 1):
            found = fault or f"reward {reward.name} gives the same reward to {MADE_UP}"
            raise ConfigError(
                f"{found}: it gets lists of messages, and works on text: give reward.format=text, or "
                "reward.format=messages to leave it as it is"
            )
        if fault_on_text not in (None, fault):
            fault = f"{fault}; on text, which reward.format=text gives: {fault_on_text}"
    if fault is not None:
        raise ConfigError(f"{fault}; it was called on {MADE_UP}")
    return verdicts


def _outcome(reward: Reward, samples: Samples) -> tuple[str | None, Sequence[Verdict]]:
    """What is wrong with the reward on these samples, and its verdicts where nothing is."""
    name = f"reward {type(reward).__qualname__}"
    try:
        verdicts = list(score_samples(reward, samples))
    except (KeyboardInterrupt, Preempted, ConfigError):
        raise
    except BaseException as error:  # a user's sys.exit too
        return f"{name} failed: {failure(error, reward)}", ()
    if len(verdicts) != len(samples.texts):
        return f"{name} returned {len(verdicts)} verdicts for {len(samples.texts)} completions", ()
    for verdict in verdicts:
        if not isinstance(verdict, Verdict):
            return f"{name} returned {verdict!r:.100}: return one Verdict per completion", ()
        if verdict.status == "error":
            return verdict.reason or f"{name} returned a verdict `error`", ()
        if not torch.tensor(verdict.reward).isfinite():
            return f"{name} returned a reward of {verdict.reward}: not a finite number in float32", ()
    return None, verdicts


def weak_signal(verdicts: Sequence[Verdict], *, counts_answers: bool) -> str | None:
    """What a user should know of the verdicts of `try_reward`; None: nothing."""
    rewards = {verdict.reward for verdict in verdicts}
    if counts_answers and not any(verdict.extracted for verdict in verdicts):
        return f"algo.advantage counts equal answers, and the reward states none of {MADE_UP}"
    if len(rewards) == 1:
        return f"the reward is {rewards.pop():g} for each of {MADE_UP}: it may tell no completions apart"
    if len({float(torch.tensor(reward)) for reward in rewards}) < len(rewards):
        return f"the rewards {sorted(rewards)} of {MADE_UP} are the same in float32, in which a run keeps them"
    return None
