"""`apo verify` names what was changed in a run's folder, and `apo publish` makes one that it finds honest."""

import csv
import json
import os
import pickle
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from omegaconf import OmegaConf, open_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from apo_lightning.checkpoints.origin import read_origin, write_origin
from apo_lightning.common.checks import check, check_table
from apo_lightning.common.console import show
from apo_lightning.common.identity import SEAL, files_of, sealed
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.loading import read_result
from apo_lightning.run import evaluate, train
from apo_lightning.run.choices import composed as composed_with
from apo_lightning.run.own_problems import with_own_problems
from apo_lightning.run.publishing import publish
from apo_lightning.run.verified_evaluation import Evaluation
from apo_lightning.run.verified_run import Subject
from apo_lightning.run.verifying import OF_EVALUATION, OF_RUN, main, verify
from composing import composed

SMALL = (
    "model=tiny", "engine=transformers", "~callbacks.progress", "algo=grpo", "reward=callable",
    "reward.function._target_=judge.even", "data=gsm8k", "data.path=mine.jsonl", "data.name=mine",
    "data.num_validation=4", "data.max_prompt_tokens=96", "data.max_completion_tokens=8",
    "data.instruction='{problem}'",
    "prompts_per_step=4", "prompts_per_minibatch=2", "group_size=4", "trainer.max_steps=3", "checkpoint.save_every=1",
    "scheduler.num_warmup_steps=0",
)  # fmt: skip
JUDGE = """
def even(completions, **_):
    texts = [each if isinstance(each, str) else each[0]["content"] for each in completions]
    return [float(len(text) > 0 and ord(text[0]) % 2 == 0) for text in texts]
"""


def train_in(folder: Path, words: tuple[str, ...]) -> None:
    """A run as the command makes it, with its `.hydra`."""
    cfg = composed_with("train", words, with_hydra=True)
    choices = cfg.hydra.runtime.choices
    with open_dict(cfg):
        del cfg.hydra
    (folder / ".hydra").mkdir(parents=True)
    nodes = {"config": cfg, "hydra": {"hydra": {"runtime": {"choices": choices}}}, "overrides": [*words]}
    for name, node in nodes.items():
        OmegaConf.save(OmegaConf.create(node), folder / ".hydra" / f"{name}.yaml")
    train(cfg, folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A working directory with an honest run in `run`, its evaluation, and both published in `public`."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        (folder / "judge.py").write_text(JUDGE)
        rows = [{"problem": f"{n} and {n}?", "answer": str(2 * n)} for n in range(40)]
        (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        train_in(folder / "run", SMALL)
        measured = composed("run=run", "num_samples=4", config_name="evaluate")
        evaluate(with_own_problems(measured, []))
        publish(composed("run=run", "to=public", config_name="publish"))
        yield folder


@pytest.fixture
def run(made, tmp_path, monkeypatch) -> Path:
    """A copy of the honest run, with its judge and its data."""
    for name in ("run", "public"):
        shutil.copytree(made / name, tmp_path / name)
    for name in ("judge.py", "mine.jsonl"):
        shutil.copy(made / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "judge", raising=False)
    return tmp_path / "run"


def found(what: str, run: str = "run"):
    """One check alone: `verify` makes all of them."""
    cfg = composed(f"run={run}", "completions=100", config_name="verify")
    scratch = Path("scratch")
    scratch.mkdir(exist_ok=True)
    subject = Subject(cfg, scratch)
    if what in OF_RUN:
        return check(what, partial(OF_RUN[what], subject))
    folder = subject.run.folder / "evaluation" / "mine"
    return check(what, lambda: OF_EVALUATION[what.removeprefix("mine: ")](Evaluation(subject, folder)))


def all_but_checked(run: str) -> dict[str, str]:
    checks = verify(composed(f"run={run}", config_name="verify"))
    return {each.name: each.state for each in checks if each.state != "checked"}


def test_an_honest_run_is_checked_in_every_content_and_its_folder_stays_as_it_was(run):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert all_but_checked("run") == {}
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    again = found("training").detail
    assert again.startswith("to the bit: 16 completions, ")
    assert again.endswith(" metrics, the weights of step 3")


def test_an_evaluation_of_the_held_out_problems_with_another_reward_is_judged_by_that(run):
    named = dict.fromkeys(("data.path=mine.jsonl", "data.name=mine", "data.instruction='{problem}'"))
    words = tuple("data=arithmetic" if word == "data=gsm8k" else word for word in SMALL if word not in named)
    train_in(Path("sums"), words)
    typed = ["run=sums", "benchmark=arithmetic", "limit=4", "num_samples=2", "max_completion_tokens=8"]
    evaluate(with_own_problems(composed(*typed, config_name="evaluate"), typed))
    assert read_result(Path("sums/evaluation/arithmetic/results.json")).settings.reward.startswith("NumericReward")
    assert all_but_checked("sums") == {}


def test_a_published_policy_is_checked_as_far_as_its_folder_goes(run):
    shutil.rmtree(run)
    Path("public/.git").mkdir()
    Path("public/.git/HEAD").write_text("ref: refs/heads/main\n")
    lacking = ("metrics.csv", "rollouts", "training")
    assert all_but_checked("public") == dict.fromkeys(lacking, "cannot be checked")


# ------------------------------------------------------------------ changes


def edit(path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new, 1))


def edit_json(path: str, change) -> None:
    """Change a record, and seal it again where it was sealed: its author can."""
    record = json.loads(Path(path).read_bytes())
    is_sealed = record.pop(SEAL, None) is not None
    change(record)
    Path(path).write_bytes(sealed(record) if is_sealed else json.dumps(record).encode())


def edit_lines(path: str, change) -> None:
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    is_sealed = lines[0].pop(SEAL, None) is not None
    change(lines[0])
    rest = lines if not is_sealed else [{k: v for k, v in line.items() if k != SEAL} for line in lines]
    content = [sealed(line, indent=None) if is_sealed else json.dumps(line).encode() + b"\n" for line in rest]
    Path(path).write_bytes(b"".join(content))


def set_to(*keys, value):
    def change(record) -> None:
        for key in keys[:-1]:
            record = record[key]
        record[keys[-1]] = value(record[keys[-1]]) if callable(value) else value

    return change


def flip_a_byte(path: str) -> None:
    content = bytearray(Path(path).read_bytes())
    content[-1] ^= 1
    Path(path).write_bytes(content)


def seal_the_policy(folder: str = "run/checkpoints/final") -> None:
    origin = json.loads(Path(folder, "origin.json").read_bytes())
    Path(folder, "origin.json").unlink()
    write_origin(Path(folder), **{key: origin[key] for key in ("step", "weights_sha256", "identity")})


def seal_the_checkpoint(folder: str = "run/checkpoints/step_000003") -> None:
    def change(record) -> None:
        record["files"] = files_of(Path(folder), record["files"])

    edit_json(f"{folder}/checkpoint.json", change)


def other_weights() -> None:
    path = "run/checkpoints/final/model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"][0] += 0.01
    save_file(tensors, path, metadata={"format": "pt"})
    seal_the_policy()


def other_row() -> None:
    with Path("run/metrics.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    rows[1]["train/reward"] = str(float(rows[1]["train/reward"]) + 0.0625)
    with Path("run/metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


FINAL, EVALUATION, STEP_3 = "run/checkpoints/final", "run/evaluation/mine", "run/rollouts/step_000003.jsonl"
VERDICT = {"correct": "incorrect", "incorrect": "correct"}
CHANGES = {
    "a bit of a weight": ("files", "model.safetensors", lambda: flip_a_byte(f"{FINAL}/model.safetensors")),
    "a weight, sealed again": ("weights", "weights_sha256 of origin.json", other_weights),
    "a weight, in an evaluation": ("mine: policy", "weights_sha256 of results.json", other_weights),
    "a setting": ("settings", "optimizer.lr", lambda: edit("run/.hydra/config.yaml", "lr: 1.0e-05", "lr: 2.0e-05")),
    "the tokenizer": ("files", "tokenizer.json", lambda: flip_a_byte(f"{FINAL}/tokenizer.json")),
    "the chat template, sealed again": (
        "mine: sampling",
        "settings.prompt",
        lambda: [edit(f"{FINAL}/chat_template.jinja", "assistant", "user"), seal_the_policy()],
    ),
    "stop tokens, sealed again": (
        "mine: sampling",
        "the stop tokens",
        lambda: [
            edit(f"{FINAL}/generation_config.json", '"eos_token_id": 2', '"eos_token_id": [1, 2]'),
            seal_the_policy(),
        ],
    ),
    "a sample's verdict": (
        "mine: verdicts",
        "sample 0: ",
        lambda: edit_lines(f"{EVALUATION}/samples.jsonl", set_to("status", value=VERDICT.get)),
    ),
    "a sample's log-prob": (
        "mine: policy",
        "sample 0: its log-prob",
        lambda: edit_lines(f"{EVALUATION}/samples.jsonl", set_to("logprob", value=lambda old: old + 1)),
    ),
    "a sample, not sealed": (
        "mine: verdicts",
        "has changed",
        lambda: edit(f"{EVALUATION}/samples.jsonl", "0.0", "1.0"),
    ),
    "a result": (
        "mine: results",
        "metrics.pass@1.value",
        lambda: edit_json(f"{EVALUATION}/results.json", set_to("metrics", "pass@1", "value", value=0.99)),
    ),
    "an interval": (
        "mine: results",
        "metrics.avg@4.low",
        lambda: edit_json(f"{EVALUATION}/results.json", set_to("metrics", "avg@4", "low", value=0.5)),
    ),
    "the card": ("mine: results", "card.md", lambda: edit(f"{EVALUATION}/card.md", "pass@1 |", "pass@1 | 9")),
    "evaluation.json": ("mine: sampling", "damaged", lambda: edit(f"{EVALUATION}/evaluation.json", "mine", "mime")),
    "the seed of an evaluation, sealed again": (
        "mine: sampling",
        "settings.seed",
        lambda: edit_json(f"{EVALUATION}/evaluation.json", set_to("settings", "seed", value=7)),
    ),
    "a version of the evaluation": (
        "mine: sampling",
        "versions.torch",
        lambda: edit_json(f"{EVALUATION}/results.json", set_to("versions", "torch", value="9.9")),
    ),
    "a completion of training": (
        "training",
        "sample 0: its log-prob",
        lambda: edit_lines(STEP_3, set_to("completion", value=lambda old: old[::-1] + "x")),
    ),
    "tokens of a completion": ("training", "num_tokens", lambda: edit_lines(STEP_3, set_to("num_tokens", value=5))),
    "a reward of training": ("rollouts", "sample 0: reward", lambda: edit_lines(STEP_3, set_to("reward", value=0.25))),
    "an answer of training": ("rollouts", "answer is", lambda: edit_lines(STEP_3, set_to("answer", value="7"))),
    "a row of metrics.csv": ("metrics.csv", "step 1: train/reward", other_row),
    "a number of the summary": (
        "summary.json",
        "train/reward.last",
        lambda: edit_json("run/summary.json", set_to("train", "metrics", "train/reward", "last", value=0.9)),
    ),
    "an interval of the summary": (
        "summary.json",
        "change.low",
        lambda: edit_json("run/summary.json", set_to("held_out", "mine", "change", "low", value=0.1)),
    ),
    "the data": (
        "model, data and code",
        "the training data",
        lambda: edit("mine.jsonl", '"answer": "6"', '"answer": "8"'),
    ),
    "the judge's code": ("model, data and code", "the code of judge.py", lambda: edit("judge.py", "% 2", "% 3")),
    "a byte of a checkpoint": (
        "files",
        "step_000003",
        lambda: flip_a_byte("run/checkpoints/step_000003/shared.pt"),
    ),
    "a file beside the policy": ("files", "mine.py", lambda: Path(FINAL, "mine.py").write_text("import os")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named(run, name):
    what, said, change = CHANGES[name]
    change()
    [differs] = [found(what)]
    assert (differs.state, said in differs.detail) == ("differs", True), differs


def test_another_version_is_named_and_is_no_difference(run):
    edit_json("run/summary.json", set_to("versions", "torch", value="9.9"))
    assert (found("packages").state, "torch 9.9, here" in found("packages").detail) == ("cannot be checked", True)


def test_weights_after_other_steps_are_named(run):
    """Completions, metrics and files are as they were; the checkpoint is of other updates, and sealed again."""
    [path] = Path("run/checkpoints/step_000003/tensors").iterdir()
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    tensors = load_file(path)
    tensors["policy.model.norm.weight"] += 1e-3
    save_file(tensors, path, metadata=header)
    seal_the_checkpoint()
    assert "the weights of step_000003" in found("training").detail


def test_the_command_ends_with_a_line_that_names_what_differs(run, capsys):
    edit_json("run/summary.json", set_to("steps", value=4))
    with pytest.raises(ConfigError, match=r"1 of 13 contents differ: summary\.json"):
        main(composed("run=run", "steps=0", "completions=0", config_name="verify"))
    assert "steps is 4 there and 3 here" in capsys.readouterr().out


# ------------------------------------------------------------------ publishing


def test_the_model_card_has_the_results_with_their_intervals_and_the_commands(run):
    card = ModelCard.load("public/README.md")
    result = read_result(Path("public/evidence/evaluation/mine/results.json"))
    [first, *_] = card.data.eval_results
    args = first.metric_args
    assert (first.metric_type, first.metric_value) == ("pass@1", result.metrics["pass@1"].value)
    assert (args["low"], args["high"]) == (result.metrics["pass@1"].low, result.metrics["pass@1"].high)
    assert "apo train model=tiny" in card.text
    assert "apo verify run=public" in card.text
    assert ModelCard.load("run/checkpoints/final/README.md").data.library_name == "transformers"


def test_a_run_is_published_once_and_whole_or_not_at_all(run, monkeypatch):
    with pytest.raises(ConfigError, match="to=public exists"):
        publish(composed("run=run", "to=public", config_name="publish"))
    sent = []
    monkeypatch.setattr(
        HfApi,
        "upload_folder",
        lambda self, **given: sent.append((given["repo_id"], read_origin(Path(given["folder_path"])).step)),
    )
    publish(composed("run=run", "to=hub:me/mine", config_name="publish"))
    assert sent == [("me/mine", 3)]
    flip_a_byte(f"{FINAL}/model.safetensors")
    with pytest.raises(ConfigError, match="is damaged"):
        publish(composed("run=run", "to=other", config_name="publish"))
    assert not Path("other").exists()


# ------------------------------------------------------------------ hostile folders


class Payload:
    def __reduce__(self):
        return os.system, ("touch canary",)


def test_a_pickle_in_place_of_weights_is_not_unpickled_by_verify(run):
    Path(FINAL, "model.safetensors").unlink()
    torch.save({"lm_head.weight": Payload()}, Path(FINAL, "pytorch_model.bin"))
    seal_the_policy()
    assert "hold more than tensors" in found("weights").detail
    assert "hold more than tensors" in found("mine: policy").detail
    Path("run/checkpoints/step_000003/shared.pt").write_bytes(pickle.dumps(Payload()))
    seal_the_checkpoint()
    assert "holds more than plain data" in found("metrics.csv").detail
    assert not Path("canary").exists()


def test_a_setting_that_names_a_function_is_not_called_by_verify(run):
    edit("run/.hydra/config.yaml", "_target_: torch.optim.AdamW", "_target_: os.system")
    assert "os.system, which no option" in found("training").detail
    assert found("rollouts").state == "cannot be checked"


def test_a_link_out_of_a_published_folder_is_refused(run):
    Path("public/evidence/checkpoints").mkdir()
    Path("public/evidence/checkpoints/final").symlink_to("/etc")
    with pytest.raises(ConfigError, match="leads out of it"):
        verify(composed("run=public", config_name="verify"))


def test_escapes_of_a_terminal_and_formulas_of_a_spreadsheet_stay_text(run, capsys):
    edit_lines(STEP_3, set_to("prompt_id", value="\x1b[2J"))
    edit_json("run/summary.json", lambda record: record["versions"].update(torch="\x1b]0;x\x07"))
    show(check_table([found("packages"), found("rollouts")]))
    said = capsys.readouterr().out
    assert "\\x1b]0;x" in said
    assert "\x1b" not in said
    edit("run/metrics.csv", "train/reward", '"=HYPERLINK(""http://x"")"')
    publish(composed("run=run", "to=other", config_name="publish"))
    assert "'=HYPERLINK" in Path("other/evidence/metrics.csv").read_text()
