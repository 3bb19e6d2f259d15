"""What a run has seen of its prompts: counts by hand, bounds, JSON and back, and the same records on two ranks."""

import json
from dataclasses import replace

from apo_lightning.parts.history import MAX_ANSWER_CHARACTERS, MAX_ANSWERS, History
from apo_lightning.types import PromptRecord, Rollouts, Verdict
from factories import make_prompt, make_rollouts
from processes import in_a_group


def rollouts(**answers: str) -> Rollouts:
    """One group a prompt; the answer "1" is correct, "-" is none."""
    verdicts = tuple(
        Verdict(
            reward=float(a == "1"), status="correct" if a == "1" else "incorrect", extracted=None if a == "-" else a
        )
        for group in answers.values()
        for a in group.split()
    )
    size = len(verdicts) // len(answers)
    made = make_rollouts([verdict.status for verdict in verdicts], size)
    return replace(made, prompts=tuple(make_prompt(name) for name in answers), verdicts=verdicts)


def take(whole: Rollouts, prompts: list[int]) -> Rollouts:
    """Some of its groups."""
    size = whole.group_size
    places = [i * size + j for i in prompts for j in range(size)]
    return replace(
        whole,
        prompts=tuple(whole.prompts[i] for i in prompts),
        completions=tuple(whole.completions[b] for b in places),
        texts=tuple(whole.texts[b] for b in places),
        verdicts=tuple(whole.verdicts[b] for b in places),
    )


STEPS = [rollouts(b="1 2", a="3 -", c="1 1"), rollouts(a="2 4", d="1 -"), rollouts(c="5 1")]


def test_counts():
    history = History()
    history.add(rollouts(b="1 1 2", a="3 - 3"))
    history.add(rollouts(b="2 - 4"))
    assert history.of("b") == PromptRecord(num_sampled=6, num_correct=2, answers={"1": 2, "2": 2, "4": 1})
    assert history.of("a") == PromptRecord(num_sampled=3, num_correct=0, answers={"3": 2})
    assert history.of("c") == PromptRecord()
    restored = History()
    restored.load_state_dict(json.loads(json.dumps(history.state_dict())))
    assert restored.records == history.records


def test_a_prompts_record_is_bounded():
    history = History()
    for number in range(MAX_ANSWERS + 2):
        history.add(rollouts(a=f"x{number} {'y' * (MAX_ANSWER_CHARACTERS + 1)}"))
    history.add(rollouts(a="x0 x0"))
    record = history.of("a")
    assert record.num_sampled == 2 * (MAX_ANSWERS + 3)
    assert len(record.answers) == MAX_ANSWERS
    assert (record.answers["x0"], max(map(len, record.answers))) == (3, 4)


def in_parts(rank, folder, alone):
    shared = History()
    for step in STEPS:
        shared.add(take(step, [i for i in range(len(step.prompts)) if (i + rank) % 2]))
    assert json.dumps(shared.state_dict()) == alone


def test_two_ranks_have_the_history_of_one(tmp_path):
    alone = History()
    for step in STEPS:
        alone.add(step)
    in_a_group(in_parts, tmp_path, json.dumps(alone.state_dict()))
