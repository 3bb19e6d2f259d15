"""A model's folder: every weight is accounted for before any is loaded, and a broken folder is one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from apo_lightning.errors import ConfigError
from apo_lightning.model import folder_weights
from apo_lightning.model.folder_weights import read_folder
from apo_lightning.model.policy import Policy
from apo_lightning.model.spec import PolicySpec
from apo_lightning.model.tokenizer import character_tokenizer

HEAD, EMBEDDING, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
Tensors = dict[str, torch.Tensor]


def make_folder(folder: Path, model_type: str = "llama", **fields) -> Path:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 256}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "eos_token_id": 2, "pad_token_id": 2}
    tokenizer = character_tokenizer()
    config = AutoConfig.for_model(model_type, **{"vocab_size": len(tokenizer), **sizes, **heads, **fields})
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("whole"), tie_word_embeddings=False)


def weights(change: Callable[[Tensors], Tensors], *, to: str = WEIGHTS) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        changed = change({name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()})
        save = torch.save if to.endswith(".bin") else save_file
        save({name: tensor.contiguous() for name, tensor in changed.items()}, folder / to)

    return edit


def settings(file: str = CONFIG, **fields) -> Callable[[Path], None]:
    return lambda folder: write(folder / file, json.dumps({**json.loads((folder / file).read_text()), **fields}))


def write(path: Path, text: str) -> None:
    path.write_text(text)


def without(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def in_shards(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / WEIGHTS).unlink()
    model.save_pretrained(folder, max_shard_size="16KB")


def in_order(*steps: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda folder: [step(folder) for step in steps] and None


def set_to(name: str, value: float) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: tensors[name].index_fill(0, torch.tensor([0]), value)}


def stored_as(dtype: torch.dtype) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {n: t.to(dtype) if t.dim() > 1 else t for n, t in tensors.items()}


def old_format(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def index_without(key: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        fields = json.loads((folder / f"{WEIGHTS}.index.json").read_text())
        write(folder / f"{WEIGHTS}.index.json", json.dumps({k: v for k, v in fields.items() if k != key}))

    return edit


def with_another_norm(folder: Path) -> None:
    last = folder / "model-00007-of-00007.safetensors"
    tensors = load_file(last)
    save_file({**tensors, "model.layers.0.input_layernorm.weight": torch.zeros(32)}, last)


def no_head(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != HEAD}


def own_head(tensors: Tensors) -> Tensors:
    return {**tensors, HEAD: tensors[EMBEDDING].clone()}


def renamed(prefix: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {prefix + name: tensor for name, tensor in tensors.items()}


NO_HEAD = f"lacks {HEAD} of LlamaForCausalLM, which would be random"
BROKEN = {
    "no head": (weights(no_head), NO_HEAD),
    "a prefix": (weights(renamed("module.")), r"random; .*\(module\..* under the names of the model itself"),
    "compiled": (weights(renamed("_orig_mod.")), r"random; .*\(_orig_mod\..* under the names of the model itself"),
    "a value head": (weights(lambda t: {**t, "v_head.weight": torch.ones(1)}), r"no weight for v_head\.weight"),
    "a layer too few": (settings(num_hidden_layers=3), r"lacks 9 tensors \(model\.layers\.2\."),
    "a layer too many": (settings(num_hidden_layers=1), r"no weight for 9 tensors \(model\.layers\.1\."),
    "another width": (settings(intermediate_size=40), r"another shape .* 6 tensors .* \(\[32, 48\], not \[32, 40\]\)"),
    "NaN": (weights(set_to(NORM, torch.nan)), f"NaN or inf in {NORM}"),
    "inf": (weights(set_to(EMBEDDING, torch.inf)), f"NaN or inf in {EMBEDDING}"),
    "int8": (weights(stored_as(torch.int8)), "stored as int8: 16 tensors .* quantised"),
    "float8": (weights(stored_as(torch.float8_e4m3fn)), "stored as float8_e4m3fn: 16 tensors"),
    "a tied flag": (settings(tie_word_embeddings=True), f"has a {HEAD} that differs from {EMBEDDING}: set it to false"),
    "a tied flag, in bfloat16": (
        in_order(settings(tie_word_embeddings=True),
                 weights(lambda t: {**t, HEAD: t[EMBEDDING], EMBEDDING: t[EMBEDDING].bfloat16()})),
        f"has a {HEAD} that differs from {EMBEDDING}",
    ),
    "a number": (weights(lambda t: {**t, "step": torch.tensor(3)}), "no weight for step in the folder"),
    "more than tensors": (
        in_order(lambda f: torch.save({"state_dict": {}}, f / "pytorch_model.bin"), without(WEIGHTS)),
        "state_dict is no tensor",
    ),
    "an index cut": (in_order(in_shards, index_without("metadata")), r"index.json is damaged \('metadata'\)"),
    "two values": (in_order(in_shards, with_another_norm), "is in model-.* and, with other values, in another file"),
    "truncated": (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:5000]), "weights are damaged"),
    "a pointer": (lambda f: write(f / WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
    "a shard missing": (in_order(in_shards, without("model-00002-of-00007.safetensors")), r"1 of 7 files\): copy all"),
    "no index": (in_order(in_shards, lambda f: write(f / f"{WEIGHTS}.index.json", "{")), "index.json is damaged"),
    "a shard unlisted": (
        in_order(in_shards, lambda f: write(f / f"{WEIGHTS}.index.json", (f / f"{WEIGHTS}.index.json").read_text()
                                            .replace("model-00001-of", "model-00002-of"))),
        NO_HEAD,
    ),
    "an adapter": (in_order(without(CONFIG, WEIGHTS), lambda f: write(f / "adapter_config.json", "{}")), "an adapter"),
    "an adapter beside": (lambda f: write(f / "adapter_config.json", "{}"), "merge the two"),
    "no config": (without(CONFIG), "the folder has no config.json"),
    "no JSON": (lambda f: write(f / CONFIG, "{"), "the folder cannot be loaded .*not a valid JSON"),
    "a list": (lambda f: write(f / CONFIG, "[]"), "the folder cannot be loaded"),
    "a string": (settings(hidden_size="32"), "the folder cannot be loaded .*'hidden_size' expected int"),
    "no tokenizer": (without("tokenizer.json", "tokenizer_config.json"), "has no tokenizer .*save it there too"),
    "half a tokenizer": (lambda f: write(f / "tokenizer.json", "{}"), "the folder cannot be loaded"),
    "no generation": (lambda f: write(f / "generation_config.json", "{"), "generation_config.json cannot be read"),
    "no generation of this kind": (settings("generation_config.json", cache_implementation="no"), "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_one_line_before_weights_are_loaded(name, whole, tmp_path, monkeypatch):
    change, words = BROKEN[name]
    change(folder := Path(shutil.copytree(whole, tmp_path / "m")))
    monkeypatch.setattr(folder_weights, "check_loaded", None)
    with pytest.raises(ConfigError, match=words) as refused:
        checked(folder)
    assert str(refused.value).startswith(f"model.path={folder}: ")
    assert "\n" not in str(refused.value)


def checked(folder: Path) -> PolicySpec:
    spec = PolicySpec(name="x", path=str(folder))
    spec.load_tokenizer()
    spec.check_weights()
    return spec


SOUND = {
    "as it is": lambda f: None,
    "in shards": in_shards,
    "a .bin file": in_order(weights(dict, to="pytorch_model.bin"), without(WEIGHTS)),
    "a .bin file of the same": weights(dict, to="pytorch_model.bin"),
    "a .bin file of old": in_order(old_format, without(WEIGHTS)),
    "another attention": settings(_attn_implementation="flash_attention_2"),
    "other names beside": weights(renamed("original."), to="consolidated.safetensors"),
    "bfloat16": weights(lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()}),
    "a buffer of old": weights(lambda t: {**t, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}),
    "tied": in_order(settings(tie_word_embeddings=True), weights(no_head)),
    "tied to an equal head": in_order(settings(tie_word_embeddings=True), weights(own_head)),
    "of the backbone": weights(lambda t: {n.removeprefix("model."): v for n, v in t.items()}),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_transformers_loads_whole_is_loaded(name, whole, tmp_path):
    SOUND[name](folder := Path(shutil.copytree(whole, tmp_path / "m")))
    model = checked(folder).load_model(seed=0)
    norm = read_folder(folder, "").get(NORM, read_folder(folder, "").get("norm.weight"))
    assert torch.equal(model.get_parameter(NORM), norm.float())


def test_experts_that_loading_fuses_are_accounted_for_one_by_one(tmp_path):
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "tie_word_embeddings": False}
    checked(make_folder(tmp_path, "qwen3_moe", **experts)).load_model(seed=0)
    expert = "model.layers.1.mlp.experts.3.up_proj.weight"
    weights(lambda tensors: {name: tensor for name, tensor in tensors.items() if name != expert})(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.layers\.1\.mlp\.experts|do not fit"):
        checked(tmp_path)


def test_values_that_no_sample_holds_are_found_when_they_are_loaded(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_weights, "SAMPLED_BYTES", 2000)
    folder = Path(shutil.copytree(whole, tmp_path / "m"))
    weights(lambda t: {**t, HEAD: t[HEAD].index_fill(0, torch.tensor([1]), torch.nan)})(folder)
    spec = checked(folder)
    with pytest.raises(ConfigError, match=f"NaN or inf in {HEAD}"):
        spec.load_model(seed=0)


def test_a_folder_without_weights_can_be_planned_with_and_not_trained(whole, tmp_path):
    without(WEIGHTS)(folder := Path(shutil.copytree(whole, tmp_path / "m")))
    spec = checked(folder)
    assert spec.check_weights() is None
    with pytest.raises(ConfigError, match=r"cannot be loaded .*no file named model\.safetensors"):
        spec.load_model(seed=0)


@pytest.mark.parametrize("sampled", [2**20, 2000])
def test_the_fingerprint_is_that_of_the_weights_not_of_their_files(sampled, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_weights, "SAMPLED_BYTES", sampled)
    shards, other = (Path(shutil.copytree(whole, tmp_path / name)) for name in ("shards", "other"))
    in_shards(shards)
    weights(lambda tensors: {name: tensor * 1.0001 for name, tensor in tensors.items()})(other)
    first, same, changed = (checked(folder).check_weights() for folder in (whole, shards, other))
    assert first == same != changed


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0.6, "top_p": 0.9}, {"length_penalty": 0.8}, {"pad_token_id": -1, "temperature": 0.9}],
)
def test_a_generation_config_that_cannot_be_saved_does_not_end_the_export(fields, whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "m"))
    settings("generation_config.json", eos_token_id=[2, 5], **fields)(folder)
    spec = checked(folder)
    spec.check_export(spec.load_tokenizer())
    policy = Policy(spec.load_model(seed=0), spec.load_tokenizer(), torch.float32)
    assert policy.stop_token_ids == (2, 5)
    policy.save_pretrained(to := tmp_path / "final")
    AutoModelForCausalLM.from_pretrained(to).save_pretrained(tmp_path / "again")
    assert json.loads((to / "generation_config.json").read_text())["eos_token_id"] == [2, 5]


def test_a_tokenizer_that_cannot_be_written_ends_the_run_before_it_begins(whole):
    spec, tokenizer = checked(whole), character_tokenizer()
    tokenizer.init_kwargs["unwritable"] = {1, 2}
    with pytest.raises(ConfigError, match="cannot be written, as the export"):
        spec.check_export(tokenizer)
