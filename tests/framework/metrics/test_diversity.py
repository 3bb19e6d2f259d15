"""Self-BLEU against nltk's, similarity against a double loop."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from apo_lightning.errors import ConfigError
from apo_lightning.metrics.diversity import self_bleu, semantic_similarity, tokenize

WORDS = st.sampled_from(["x", "y", "2", "+", r"\frac", "so"])
TEXTS = st.lists(st.lists(WORDS, max_size=12).map(" ".join), min_size=2, max_size=6)


@given(TEXTS, st.integers(1, 5))
def test_self_bleu_is_that_of_nltk(texts, order):
    bleu = pytest.importorskip("nltk.translate.bleu_score")
    tokens = [tokenize(text) for text in texts]
    scores = [
        bleu.sentence_bleu(
            tokens[:i] + tokens[i + 1 :],
            words,
            weights=[1 / order] * order,
            smoothing_function=bleu.SmoothingFunction().method1,
        )
        for i, words in enumerate(tokens)
    ]
    assert self_bleu(texts, order) == pytest.approx(sum(scores) / len(scores), abs=1e-12)


def test_self_bleu_of_two_short_texts():
    """a b c | a b d: p₁ = 2/3, p₂ = 1/2, p₃ = 0.1/1; both as long as the other."""
    expected = (2 / 3 * 1 / 2 * 0.1) ** (1 / 3)
    assert self_bleu(["a b c", "a b d"], max_order=3) == pytest.approx(expected)


def test_a_word_counts_as_often_as_another_text_has_it():
    # "a a a" matches two of its three; "a a" both of its two, and is shorter: e^(1 − 3/2).
    assert self_bleu(["a a a", "a a"], max_order=1) == pytest.approx((2 / 3 + math.exp(-1 / 2)) / 2)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (r"\frac{1}{2}", [r"\frac", "{", "1", "}", "{", "2", "}"]),
        (r"\left\{3.5\right\} \\", [r"\left", r"\{", "3.5", r"\right", r"\}", r"\\"]),
        ("x_1^2 isn't 1,234.", ["x", "_", "1", "^", "2", "isn't", "1", ",", "234", "."]),
        ("π≈3 角", ["π", "≈", "3", "角"]),
        ("2x3", ["2", "x", "3"]),
        (" \n", []),
        ("\\", ["\\"]),
    ],
)
def test_the_tokeniser_takes_mathematics_apart(text, tokens):
    assert tokenize(text) == tokens


@given(st.text())
def test_the_tokeniser_drops_white_space_and_nothing_else(text):
    assert "".join(tokenize(text)) == "".join(text.split())


def test_similarity_is_the_mean_cosine_of_all_pairs():
    vectors = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = [(i, j) for i in range(5) for j in range(i)]
    cosines = [torch.cosine_similarity(vectors[i], vectors[j], dim=0).item() for i, j in pairs]
    value = semantic_similarity([str(i) for i in range(5)], lambda texts: vectors[[int(text) for text in texts]])
    assert value == pytest.approx(sum(cosines) / len(cosines))


def test_similarity_of_equal_texts_is_one():
    assert semantic_similarity(["a", "b", "c"], lambda texts: torch.full((3, 384), 0.3)) == pytest.approx(1.0)
    assert semantic_similarity(["a", "b", "c"], lambda texts: torch.full((3, 384), 0.3)) <= 1.0


def test_one_text_is_not_unlike_itself():
    with pytest.raises(ConfigError, match="Self-BLEU of 1 texts"):
        self_bleu(["a"])
    with pytest.raises(ConfigError, match="semantic similarity of 0 texts"):
        semantic_similarity([], lambda texts: torch.zeros(0, 3))
