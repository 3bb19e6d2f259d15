"""A reward function in TRL's signature."""


def short(completions: list[str], answer: list[str], **kwargs: object) -> list[float]:
    """1 where the text contains the answer and has fewer than 20 characters, else 0."""
    return [float(gold in text and len(text) < 20) for text, gold in zip(completions, answer, strict=True)]
