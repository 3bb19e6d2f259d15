import json

import torch

import apo_lightning.callbacks.rollout_writer
from apo_lightning.callbacks.rollout_writer import RolloutWriter, completion_lines
from apo_lightning.common.files import to_json
from factories import make_step

LINE = (
    '{"step": 1, "prompt_id": "p0", "sample": 1, "problem": "What is 1 + 1?", "prompt": "Q: What is 1 + 1? A:", '
    '"completion": "¿π? \\n\\"x\\"", "answer": "2", "extracted": null, "status": "incorrect", "reward": 0.0, '
    '"kept": true, "num_tokens": 2, "finish_reason": "stop", "scored": true, "advantage": -1.0, '
    '"mean_surprisal": 0.5, "mean_entropy": 2.0, '
    '"mean_max_prob": 0.25, "mean_logprob": -0.5}'
)


def test_a_line_has_these_bytes():
    # Completion 1 has the last two of three tokens: entropies 1.5 and 2.5, mean 2.
    step = make_step(lengths=[1, 2], entropy=[9.0, 1.5, 2.5], texts=["2", '¿π? \n"x"'])
    assert to_json(completion_lines(step)[1]) == LINE.encode()


def test_a_run_leaves_a_file_every_n_steps_with_a_line_a_completion(scripted_run):
    run = scripted_run(
        [RolloutWriter(every_n_steps=10)],
        max_steps=21,
        step_output=lambda step, n: make_step(("correct", "incorrect") * 2, step=step, max_steps=n),
    )
    files = sorted(path.name for path in (run.folder / "rollouts").iterdir())
    assert files == ["step_000010.jsonl", "step_000020.jsonl"]
    lines = [json.loads(line) for line in (run.folder / "rollouts" / files[0]).read_text().splitlines()]
    expected = [("p0", 0), ("p0", 1), ("p1", 0), ("p1", 1)]
    assert [(line["step"], line["prompt_id"], line["sample"]) for line in lines] == [(10, *one) for one in expected]


def test_the_lines_follow_the_order_of_the_rollout_which_the_ranks_share(scripted_run, monkeypatch):
    """Of p0, p1, p2 and p3 this rank has p0 and p2, and the other one p1 and p3."""

    def of_two_ranks(lines):
        others = {"p0": "p1", "p1": "p3"}
        return [
            [line | {"prompt_id": {"p0": "p0", "p1": "p2"}[line["prompt_id"]]} for line in lines],
            [line | {"prompt_id": others[line["prompt_id"]]} for line in lines],
        ]

    monkeypatch.setattr(apo_lightning.callbacks.rollout_writer, "from_all_ranks", of_two_ranks)
    run = scripted_run(
        [RolloutWriter()],
        max_steps=1,
        step_output=lambda step, n: make_step(("correct", "incorrect") * 2, step=step, max_steps=n),
    )
    lines = [json.loads(line) for line in (run.folder / "rollouts" / "step_000001.jsonl").read_text().splitlines()]
    assert [(line["prompt_id"], line["sample"]) for line in lines] == [
        (f"p{prompt}", sample) for prompt in range(4) for sample in range(2)
    ]


def test_a_line_says_whether_its_completion_was_scored_and_is_null_where_it_was_not():
    step = make_step(
        ("correct",) * 3, group_size=3, lengths=[1, 1, 1], entropy=[1.0, 2.0, 3.0], is_scored=[True, True, False]
    )
    lines = json.loads(to_json(completion_lines(step)))
    assert [line["scored"] for line in lines] == [True, True, False]
    assert [line["mean_entropy"] for line in lines] == [1.0, 2.0, None]
    assert [line["mean_max_prob"] for line in lines] == [0.25, 0.25, None]
    assert [line["mean_logprob"] for line in lines] == [-0.5, -0.5, None]
    # The engine gives this for every token.
    assert [line["mean_surprisal"] for line in lines] == [0.5, 0.5, 0.5]


def test_per_token_advantages_are_averaged_over_the_completion():
    step = make_step(lengths=[2, 1])
    step.tokens.advantages.copy_(torch.tensor([1.0, 2.0, -3.0]))
    assert [line["advantage"] for line in completion_lines(step)] == [1.5, -3.0]
