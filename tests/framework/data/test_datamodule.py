"""The data module under a real Lightning trainer."""

import json
import random
from itertools import islice

import lightning.pytorch as pl
import pytest
import torch

from apo_lightning.data import ArithmeticSource, DatasetSource, PromptDataModule, datamodule
from apo_lightning.distributed.lightning_private import set_finished_steps
from apo_lightning.errors import ConfigError
from apo_lightning.model.tokenizer import character_tokenizer


class Recorder(pl.LightningModule):
    """Notes what it is given."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained: list[list[str]] = []
        self.validated: list[tuple[int, list[str]]] = []

    def training_step(self, batch, batch_idx):
        self.trained.append([prompt.id for prompt in batch])
        self.optimizers().step()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.validated.append((dataloader_idx, [prompt.id for prompt in batch]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def data_module(source=None, **settings):
    source = source or ArithmeticSource(max_operand=6, num_validation=5)
    return PromptDataModule(source, character_tokenizer(), **{"prompts_per_step": 4, "seed": 0, **settings})


def trainer(tmp_path, max_steps, **settings):
    settings = {"enable_checkpointing": False, "num_sanity_val_steps": 0, **settings}
    return pl.Trainer(
        accelerator="cpu",
        max_steps=max_steps,
        max_epochs=-1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **settings,
    )


def ids(steps, count):
    return [[prompt.id for prompt in step] for step in islice(iter(steps), count)]


def test_the_trainer_gets_lists_of_prompts_in_the_order_of_the_stream(tmp_path):
    data, module = data_module(), Recorder()
    trainer(tmp_path, max_steps=12, limit_val_batches=0).fit(module, datamodule=data)
    assert module.trained == ids(data_module_prepared().train_dataloader(), 12)


def data_module_prepared(**settings):
    data = data_module(**settings)
    data.prepare()
    return data


def test_a_resumed_run_goes_on_with_the_prompts_that_would_have_come(tmp_path):
    whole = ids(data_module_prepared().train_dataloader(), 11)
    first, second = Recorder(), Recorder()
    short = trainer(tmp_path, max_steps=5, val_check_interval=2)
    short.fit(first, datamodule=data_module())
    assert len(first.validated) > 0  # held-out batches between do not move the position
    resumed = trainer(tmp_path, max_steps=11)
    set_finished_steps(resumed, 5)
    resumed.fit(second, datamodule=data_module())
    assert first.trained + second.trained == whole


def test_a_new_lightning_epoch_goes_on_in_the_stream(tmp_path):
    module = Recorder()
    trainer(tmp_path, max_steps=9, limit_train_batches=2, limit_val_batches=0).fit(module, datamodule=data_module())
    assert module.trained == ids(data_module_prepared().train_dataloader(), 9)


def test_every_benchmark_has_a_loader_with_all_its_problems_in_order(tmp_path, monkeypatch):
    for name, size in (("first", 5), ("second", 2)):
        lines = [json.dumps({"problem": f"{i}?", "answer": "1"}) for i in range(size)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    source = DatasetSource(
        name="train",
        path=str(tmp_path / "first.jsonl"),
        validation={name: str(tmp_path / f"{name}.jsonl") for name in ("first", "second")},
    )
    monkeypatch.setattr(datamodule, "PROMPTS_PER_VALIDATION_BATCH", 3)
    data, module = data_module(source), Recorder()
    trainer(tmp_path, max_steps=1).validate(module, datamodule=data, verbose=False)
    assert data.validation_names == ["first", "second"]
    assert module.validated == [(0, ["first-1", "first-2", "first-3"]), (0, ["first-4", "first-5"]),
                                (1, ["second-1", "second-2"])]  # fmt: skip
    assert data.validation_prompts["first"][0].source == "first"


def test_without_held_out_problems_the_trainer_still_runs(tmp_path):
    module, data = Recorder(), data_module(ArithmeticSource(max_operand=6, num_validation=0))
    trainer(tmp_path, max_steps=2).validate(module, datamodule=data, verbose=False)
    trainer(tmp_path, max_steps=2).fit(module, datamodule=data)
    assert len(module.trained) == 2
    assert module.validated == []


def test_the_order_neither_reads_nor_moves_the_global_generator():
    def draw(seed):
        torch.manual_seed(seed)
        random.seed(seed)
        data = data_module_prepared()
        return ids(data.train_dataloader(), 20), [ids(loader, 9) for loader in data.val_dataloader()]

    torch.manual_seed(1)
    untouched = torch.rand(()).item()
    batches = draw(1)
    assert torch.rand(()).item() == untouched
    assert draw(2) == batches


def test_another_seed_gives_another_order_of_the_same_problems():
    one, two = data_module_prepared(seed=1), data_module_prepared(seed=2, prompt_template="Q: {problem}\nA: ")
    assert ids(one.train_dataloader(), 3) != ids(two.train_dataloader(), 3)
    assert [ids(loader, 9) for loader in one.val_dataloader()] == [ids(loader, 9) for loader in two.val_dataloader()]
    assert len(one.prompts) == len(one.train_prompts) + 5
    prompt = two.train_prompts[0]
    assert prompt.text == f"Q: {prompt.problem}\nA: {prompt.prefill}"


def test_long_training_prompts_are_dropped_and_counted(tmp_path):
    # "<|turn|>user\n" + problem + "<|end|>" + "<|turn|>assistant\n": 1 + 5 + 1 + 1 + 10 tokens around the problem.
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"problem": "x" * n, "answer": "1"}) + "\n" for n in (5, 6, 7)))
    source = DatasetSource(name="s", path=str(path), max_prompt_tokens=18 + 6)
    data = data_module_prepared(source=source, prompts_per_step=1)
    assert [prompt.problem for prompt in data.train_prompts] == ["x" * 5, "x" * 6]
    assert data.describe() == ("s: 2 of 3 problems to train on, 0 held out; dropped: 1 too long; validation on nothing")
    source = DatasetSource(name="s", path=str(path), max_prompt_tokens=10)
    with pytest.raises(
        ConfigError, match=r"s has no prompt left to train on .*max_prompt_tokens=10.*dropped: 3 too long"
    ):
        data_module(source).prepare()


def test_long_prompts_of_the_held_out_part_are_dropped_like_those_of_the_training_part(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"problem": "x" * n, "answer": "1"}) + "\n" for n in range(1, 41)))
    source = DatasetSource(name="s", path=str(path), num_validation=20, max_prompt_tokens=18 + 30)
    data = data_module_prepared(source=source)
    assert data.report is not None
    assert (data.report.num_too_long, data.report.num_kept + data.report.num_held_out) == (10, 30)
    assert len(data.validation_prompts["s"]) == data.report.num_held_out < 20
    assert max(len(prompt.problem) for prompt in [*data.train_prompts, *data.validation_prompts["s"]]) == 30


def test_a_long_benchmark_prompt_is_refused(tmp_path):
    (tmp_path / "bench.jsonl").write_text(json.dumps({"problem": "x" * 100, "answer": "1"}))
    (tmp_path / "train.jsonl").write_text(json.dumps({"problem": "x", "answer": "1"}))
    source = DatasetSource(
        name="s",
        path=str(tmp_path / "train.jsonl"),
        validation={"bench": str(tmp_path / "bench.jsonl")},
        max_prompt_tokens=50,
    )
    with pytest.raises(ConfigError, match="benchmark bench, problem 'bench-1' has 118 prompt tokens"):
        data_module(source, prompts_per_step=1).prepare()


def test_too_few_prompts_for_a_step_are_refused_before_training():
    with pytest.raises(ConfigError, match="prompts_per_step is 32 but there are 31 prompts"):
        data_module(ArithmeticSource(operators=["-"], max_operand=6, num_validation=5), prompts_per_step=32).prepare()
