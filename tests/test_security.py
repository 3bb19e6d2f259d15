"""What comes from others runs nothing: each way that was thought of is tried, and ends in one line."""

import json
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from hydra.utils import instantiate
from omegaconf import OmegaConf

from apo_lightning.checkpoints.contents import SHARED
from apo_lightning.checkpoints.folder import MANIFEST
from apo_lightning.common.files import write_atomically
from apo_lightning.common.identity import files_of, read_sealed, sealed, sha256_of_file
from apo_lightning.data.files import HubDataset, ProblemSet
from apo_lightning.data.prompts import PromptTemplate, build_prompt
from apo_lightning.data.rows import Row
from apo_lightning.model.spec import PolicySpec
from apo_lightning.run.choices import composed, options_of, targets_of
from apo_lightning.run.evaluating import evaluate
from apo_lightning.run.trained import TrainedRun, targets_in
from apo_lightning.run.user_message import user_message
from apo_report.names import slug
from apo_report.runs import read_runs
from composing import ROOT
from running import train_tiny

NOT_ON_THE_PAGE = {"test_every_test_that_the_page_names_exists", "test_every_target_of_our_own_options_may_be_called"}


class Payload:
    """Creates a file as soon as it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable, tuple]:
        return os.system, (f"touch {self.canary}",)


def refusal(call: Callable[[], object]) -> str:
    """The line that a command prints for the error that this raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any error that a command shows as one line
        call()
    line = user_message(caught.value)
    assert line is not None, caught.value
    assert "\n" not in line
    return line


@pytest.fixture
def canary(tmp_path):
    """A file that code from a hostile input would create; its absence is checked after every test that names it."""
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "code of the input was run"


def test_every_test_that_the_page_names_exists():
    page = (ROOT / "docs" / "security.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named - set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE)) == set()
    own = set(re.findall(r"^def (test_\w+)", Path(__file__).read_text(), re.MULTILINE))
    assert own - named == NOT_ON_THE_PAGE


# ------------------------------------------------------------------ models


@pytest.fixture
def model(tmp_path) -> Path:
    """A small model in a Hugging Face folder."""
    spec = instantiate(composed("train", ["model=tiny"]).model, _convert_="all")
    spec.load_model(seed=0).save_pretrained(tmp_path / "model")
    spec.load_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("write", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_a_pickled_model_is_refused_and_not_unpickled(model, canary, write):
    (model / "model.safetensors").unlink()
    write({"lm_head.weight": Payload(canary)}, model / "pytorch_model.bin")
    assert "hold more than tensors" in refusal(lambda: PolicySpec(name="x", path=str(model)).load_model(0))


def test_a_file_of_weights_whose_header_lies_about_its_size_is_refused(model):
    (model / "model.safetensors").write_bytes((2**40).to_bytes(8, "little") + b"{}")
    assert "its weights are damaged" in refusal(lambda: PolicySpec(name="x", path=str(model)).load_model(0))


@pytest.mark.parametrize("part", ["load_config", "load_tokenizer"])
def test_a_models_own_python_is_never_run_and_nobody_is_asked(model, canary, part, monkeypatch):
    def ask(*_: object) -> str:
        pytest.fail("the user was asked to run the code")

    monkeypatch.setattr("builtins.input", ask)
    (model / "theirs.py").write_text(f"from pathlib import Path\nPath({str(canary)!r}).touch()\n")
    edit_json(model / "config.json", model_type="theirs", auto_map={"AutoConfig": "theirs.Config"})
    edit_json(
        model / "tokenizer_config.json", tokenizer_class="Theirs", auto_map={"AutoTokenizer": ["theirs.T", "theirs.T"]}
    )
    assert "which is never run" in refusal(getattr(PolicySpec(name="x", path=str(model)), part))


def test_a_known_architecture_is_loaded_without_the_python_beside_it(model, canary):
    (model / "theirs.py").write_text(f"from pathlib import Path\nPath({str(canary)!r}).touch()\n")
    edit_json(model / "config.json", auto_map={"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"})
    (model / "custom_generate").mkdir()
    shutil.copy(model / "theirs.py", model / "custom_generate" / "generate.py")
    assert type(PolicySpec(name="x", path=str(model)).load_model(0)).__module__.startswith("transformers.")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch CANARY') }}",
        "{% for _ in range(10**9) %}x{% endfor %}",
    ],
)
def test_a_chat_template_reaches_neither_python_nor_a_billion_rounds(model, canary, template):
    tokenizer = PolicySpec(name="x", path=str(model)).load_tokenizer()
    tokenizer.chat_template = template.replace("CANARY", str(canary))
    row = Row(id="a", problem="1 + 1?", answer="2")
    line = refusal(lambda: build_prompt(row, tokenizer, PromptTemplate(), source="x"))
    assert "has a chat template that cannot be rendered" in line


# ------------------------------------------------------------------ data


def test_a_data_set_with_a_loading_script_is_refused_and_the_script_not_run(tmp_path, canary):
    folder = tmp_path / "problems"
    folder.mkdir()
    (folder / "problems.py").write_text(f"from pathlib import Path\nPath({str(canary)!r}).touch()\n")
    line = refusal(lambda: ProblemSet(hub=HubDataset(hub_id=str(folder))).rows("x"))
    assert "Dataset scripts are no longer supported" in line


def test_an_archive_is_no_data_file_and_is_not_unpacked(tmp_path):
    path = tmp_path / "problems.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("problems.jsonl", b"0" * 2**20)
    assert "only .jsonl and .parquet can be read" in refusal(ProblemSet(path=str(path)).check)


# ------------------------------------------------------------------ run folders


def write_run(folder: Path, **changes: object) -> Path:
    """The `.hydra` of a run of `model=tiny`, and a `metrics.csv`."""
    config = composed("train", ["model=tiny"], with_hydra=True)
    OmegaConf.set_struct(config, False)
    hydra = {"hydra": {"runtime": {"choices": {"algo": "apo"}}}}
    del config["hydra"]
    for key, value in changes.items():
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(config, folder / ".hydra" / "config.yaml")
    (folder / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump(hydra))
    (folder / ".hydra" / "overrides.yaml").write_text("[model=tiny]\n")
    (folder / "metrics.csv").write_text("step,train/reward\n1,0.5\n")
    (folder / "identity.json").write_bytes(sealed({"format": 1, "identity": {}}))
    return folder


def evaluated(run: Path) -> str:
    """What `apo evaluate run=… checkpoint=base` says of a run."""
    overrides = [f"run={run}", "checkpoint=base", "engine=transformers", "benchmark=arithmetic", "limit=1"]
    return refusal(lambda: evaluate(composed("evaluate", overrides), overrides))


HOSTILE_NODES = {
    "of the library that opens files": {"_target_": "io.FileIO", "_args_": ["CANARY", "w"]},
    "of the package, but no model": {
        "_target_": "apo_lightning.checkpoints.contents.save_plain",
        "content": "x",
        "path": {"_target_": "pathlib.Path", "_args_": ["CANARY"]},
    },
    "that is a part of an argument": {
        "_target_": "apo_lightning.model.spec.PolicySpec",
        "name": "x",
        "config": {"_target_": "logging.FileHandler", "filename": "CANARY"},
    },
    "that another key holds": {
        "_target_": "apo_lightning.model.spec.PolicySpec",
        "name": "x",
        "config": "${elsewhere}",
    },
    "that is made from text": {
        "_target_": "apo_lightning.model.spec.PolicySpec",
        "name": "x",
        "config": "${oc.create:'{_target_: logging.FileHandler, filename: CANARY}'}",
    },
}


@pytest.mark.parametrize("node", HOSTILE_NODES.values(), ids=HOSTILE_NODES)
def test_a_target_of_a_run_that_no_option_here_names_is_not_called(tmp_path, canary, node):
    elsewhere = {"_target_": "logging.FileHandler", "filename": str(canary)}
    model = json.loads(json.dumps(node).replace("CANARY", str(canary)))
    run = write_run(tmp_path / "run", model=model, elsewhere=elsewhere)
    line = evaluated(run)
    assert "which no option of model= here names, so it is not called" in line
    assert "configs/model/" in line


@pytest.mark.parametrize(("key", "group"), [("policy.lora", "policy"), ("data", "data")])
def test_adapters_and_data_of_a_run_are_made_in_the_same_way(tmp_path, canary, key, group):
    run = TrainedRun.read(write_run(tmp_path / "run", **{key: {"_target_": "io.FileIO", "_args_": [str(canary), "w"]}}))
    piece = "lora" if group == "policy" else "source"
    assert f"no option of {group}= here names" in refusal(lambda: getattr(run.recipe, piece))


def test_a_report_reads_a_hostile_run_and_calls_nothing(tmp_path, canary):
    node = {"_target_": "io.FileIO", "_args_": [str(canary), "w"], "name": "../../x"}
    [card] = read_runs([write_run(tmp_path / "run", model=node)])
    assert card.model == "../../x"
    assert "/" not in slug(card.model)


def test_a_yaml_tag_that_names_a_function_is_refused(tmp_path, canary):
    run = write_run(tmp_path / "run")
    config = run / ".hydra" / "config.yaml"
    config.write_text(f"{config.read_text()}\nx: !!python/object/apply:os.system ['touch {canary}']\n")
    assert "could not determine a constructor for the tag" in evaluated(run)
    assert "could not determine a constructor for the tag" in refusal(lambda: read_runs([run]))


def test_ten_lines_of_yaml_that_make_a_billion_values_are_refused(tmp_path):
    run = write_run(tmp_path / "run")
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (run / ".hydra" / "config.yaml").write_text("\n".join(["a0: &a0 [x]", *lines]))
    assert "has YAML aliases" in evaluated(run)
    assert "has YAML aliases" in refusal(lambda: read_runs([run]))


@pytest.mark.parametrize("group", ["model", "policy", "data"])
def test_every_target_of_our_own_options_may_be_called(group):
    key = {"policy": "policy.lora"}.get(group, group)
    for option in options_of(group):
        node = OmegaConf.select(composed("train", [f"{group}={option}"]), key)
        if node is not None:
            assert set(targets_in(OmegaConf.to_container(node))) <= targets_of(group), option


def test_a_link_that_leads_out_of_a_run_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    run = write_run(tmp_path / "run")
    (run / "evaluation" / "arithmetic").mkdir(parents=True)
    (run / "evaluation" / "arithmetic" / "samples.jsonl").symlink_to(victim)
    assert "the link evaluation/arithmetic/samples.jsonl leads out of it" in evaluated(run)
    assert victim.read_text() == "mine\n"


def test_checkpoints_may_lie_on_another_disk(tmp_path):
    run = write_run(tmp_path / "run")
    (tmp_path / "scratch").mkdir()
    (run / "checkpoints").symlink_to(tmp_path / "scratch")
    assert TrainedRun.read(run).folder == run


def test_a_link_in_place_of_a_temporary_file_is_replaced_and_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    (tmp_path / f".report.html.{os.getpid()}.partial").symlink_to(victim)
    write_atomically(tmp_path / "report.html", b"page")
    assert victim.read_text() == "mine\n"
    assert (tmp_path / "report.html").read_bytes() == b"page"


# ------------------------------------------------------------------ checkpoints


CHECKPOINTED = ("trainer.max_steps=1", "checkpoint.save_every=1", "data.max_completion_tokens=8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run of one step, with its checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    train_tiny(folder, *CHECKPOINTED)
    return folder


def rewrite_manifest(checkpoint: Path, **changes: object) -> None:
    """Change the manifest as its author can: with right sizes and checksums."""
    manifest = read_sealed(checkpoint / MANIFEST)
    (checkpoint / MANIFEST).write_bytes(
        sealed({**manifest, "files": files_of(checkpoint, manifest["files"]), **changes})
    )


def resumed(trained: Path, tmp_path: Path, change: Callable[[Path], None]) -> str:
    """What a run says that resumes a changed copy of the checkpoint."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    [checkpoint] = (copy / "checkpoints").glob("step_*")
    change(checkpoint)
    overrides = (*CHECKPOINTED, "trainer.max_steps=2", f"resume={checkpoint}")
    return refusal(lambda: train_tiny(tmp_path / "resumed", *overrides))


def test_a_pickled_checkpoint_with_right_checksums_is_refused_and_not_unpickled(trained, tmp_path, canary):
    def change(checkpoint: Path) -> None:
        torch.save(Payload(canary), checkpoint / SHARED)
        rewrite_manifest(checkpoint)

    assert f"{SHARED} holds more than plain data" in resumed(trained, tmp_path, change)


def test_a_checkpoint_that_lists_a_file_outside_of_it_is_refused(trained, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    found = {"../../../outside": (6, sha256_of_file(outside))}

    def change(checkpoint: Path) -> None:
        rewrite_manifest(checkpoint, files=found | files_of(checkpoint, read_sealed(checkpoint / MANIFEST)["files"]))

    line = resumed(trained, tmp_path, change)
    assert "'../../../outside' leads out of it" in line


def test_a_checkpoint_with_a_link_that_leads_out_of_it_is_refused(trained, tmp_path):
    def change(checkpoint: Path) -> None:
        (checkpoint / SHARED).rename(tmp_path / SHARED)
        (checkpoint / SHARED).symlink_to(tmp_path / SHARED)

    assert f"'{SHARED}' leads out of it" in resumed(trained, tmp_path, change)


def test_a_checkpoint_whose_step_is_a_path_is_refused(trained, tmp_path):
    line = resumed(trained, tmp_path, lambda checkpoint: rewrite_manifest(checkpoint, step="../../x"))
    assert "is damaged: step: Input should be a valid integer" in line
