"""Diversity of the completions of one problem: in their words (Self-BLEU), and in their meaning (embeddings)."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from apo_lightning.errors import ConfigError

TOKEN = re.compile(
    r"""
    \\(?:[A-Za-z]+|\S)                      # a LaTeX command, or an escaped symbol: \frac  \{  \\
    | [^\W\d_]+(?:['’][^\W\d_]+)*           # a word of any alphabet: triangle  don't
    | \d+(?:\.\d+)?                         # a number: 12  3.5
    | \S                                    # any other symbol, one by one
    """,
    re.VERBOSE,
)
SMOOTHED_COUNT = 0.1
"""Replaces a number of matches of 0: ε of nltk's `SmoothingFunction().method1`."""

Encoder = Callable[[Sequence[str]], Float[Tensor, "texts dimensions"]]


def tokenize(text: str) -> list[str]:
    r"""Split into LaTeX commands, words, numbers and single symbols; white space is dropped.

    Self-BLEU depends more on the tokeniser than on the order of its n-grams: compare results of one tokeniser only.

    Example:
        >>> tokenize(r"So $\frac{1}{2}x = 3.5$.")
        ['So', '$', '\\frac', '{', '1', '}', '{', '2', '}', 'x', '=', '3.5', '$', '.']
    """
    return TOKEN.findall(text)


def self_bleu(texts: Sequence[str], max_order: int = 4) -> float:
    """Mean BLEU of each text against all the others; 1 where all texts have the same tokens. Diversity is 1 minus it.

        BLEU_i = min(1, e^{1 − r_i/c_i}) · Π_{n ≤ N} p_{i,n}^{1/N}

    with p_{i,n} the fraction of text i's n-grams that another text contains (as often), c_i its length and r_i the
    nearest length among the others. Where no n-gram matches, 0.1 replaces the number of matches; a text without a
    common word has BLEU 0. Equal texts of fewer than N tokens therefore look diverse.

    Equal to the mean of nltk's `sentence_bleu(others, text, smoothing_function=SmoothingFunction().method1)`, which is
    quadratic in the number of texts: for 64 texts of 760 tokens it takes 19 times as long.

    Source: Zhu et al. 2018 (Texygen), section 3.2, and its code; Papineni et al. 2002, section 2.3; APO, Table
        "Distributional Health Analysis", for diversity.
    Departure: Texygen's default is N = 3 and a tokeniser for prose; here N = 4 and `tokenize`. APO gives neither.

    Args:
        texts: at least 2 completions of one problem.
        max_order: N ≥ 1; all orders have the same weight.

    Raises:
        ConfigError: fewer than 2 texts.

    Example:
        >>> self_bleu(["a b c d", "a b c d"]), self_bleu(["a b c d", "e f g h"])
        (1.0, 0.0)
    """
    _require_two(texts, "Self-BLEU")
    tokens = [tokenize(text) for text in texts]
    lengths = [len(words) for words in tokens]
    matches = [_matches(tokens, order) for order in range(1, max_order + 1)]
    return sum(_bleu(i, lengths, [of_order[i] for of_order in matches]) for i in range(len(texts))) / len(texts)


def semantic_similarity(texts: Sequence[str], encoder: Encoder) -> float:
    """Mean cosine similarity of the embeddings of all pairs of texts, in [−1, 1].

        2/(N(N−1)) Σ_{i<j} cos(e_i, e_j)

    Source: APO, Table "Distributional Health Analysis", with Sentence-BERT (Reimers and Gurevych 2019).

    `encoder` returns one vector per text.

    Raises:
        ConfigError: fewer than 2 texts.

    Example:
        Two parallel vectors and one orthogonal to them: cosines 1, 0 and 0.

        >>> import torch
        >>> axes = {"a": [1.0, 0.0], "b": [2.0, 0.0], "c": [0.0, 3.0]}
        >>> round(semantic_similarity(["a", "b", "c"], lambda texts: torch.tensor([axes[t] for t in texts])), 4)
        0.3333
    """
    _require_two(texts, "semantic similarity")
    directions = normalize(encoder(texts).double(), dim=1)
    cosines = directions @ directions.T
    mean = (cosines.sum() - cosines.trace()).item() / (len(texts) * (len(texts) - 1))
    return min(1.0, max(-1.0, mean))  # rounding could leave the range


def _require_two(texts: Sequence[str], name: str) -> None:
    if len(texts) < 2:
        raise ConfigError(f"{name} of {len(texts)} texts: draw at least 2 samples a problem")


def _matches(tokens: Sequence[Sequence[str]], order: int) -> list[tuple[int, int]]:
    """For each text: how many of its n-grams another text matches, and how many it has.

    The largest count of an n-gram among the *other* texts is its largest or second largest count among all.
    """
    counts = [Counter(zip(*(words[start:] for start in range(order)), strict=False)) for words in tokens]
    largest: Counter[tuple[str, ...]] = Counter()
    second: Counter[tuple[str, ...]] = Counter()
    for of_text in counts:
        for ngram, count in of_text.items():
            second[ngram] = max(second[ngram], min(count, largest[ngram]))
            largest[ngram] = max(largest[ngram], count)
    matched = [
        sum(second[ngram] if count == largest[ngram] else count for ngram, count in of_text.items())
        for of_text in counts
    ]
    return [(number, of_text.total()) for number, of_text in zip(matched, counts, strict=True)]


def _bleu(text: int, lengths: Sequence[int], matches: Sequence[tuple[int, int]]) -> float:
    if matches[0][0] == 0:
        return 0.0
    others = (length for index, length in enumerate(lengths) if index != text)
    nearest = min(others, key=lambda length: (abs(length - lengths[text]), length))
    penalty = min(1.0, math.exp(1 - nearest / lengths[text]))
    precisions = [(matched or SMOOTHED_COUNT) / max(1, total) for matched, total in matches]
    return penalty * math.exp(sum(map(math.log, precisions)) / len(precisions))
