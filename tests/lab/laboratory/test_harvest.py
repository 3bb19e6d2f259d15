"""A row's hash of its configuration: without paths, and with methods under the names of published rows."""

from omegaconf import OmegaConf

from apo_lab.laboratory.harvest import config_sha256
from apo_lightning.common.identity import sha256_of_plain


def config(package, **model):
    loss = {"_target_": f"{package}.losses.GridLoss", "later": {500: 1, 1000: 2}}
    exact = {"_target_": "apo_lab.diagnostics.ExactCoverage"}
    return {"loss": loss, "callbacks": {"exact": exact}, "model": model, "reference": {}}


def test_a_method_is_hashed_as_in_published_rows_which_have_it_in_the_laboratory():
    now = OmegaConf.create(config("apo_methods", path="here"))
    assert config_sha256(now) == sha256_of_plain(config("apo_lab"))
    assert config_sha256(now) != sha256_of_plain(config("apo_methods"))
