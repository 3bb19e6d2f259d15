"""A reward with a signal for random models: TRL's signature, right about half of the time."""


def even_start(completions: list[str], **columns: object) -> list[float]:
    return [float(ord(text[0]) % 2 == 0) if text else 0.0 for text in completions]


def never(completions: list[str], **columns: object) -> list[float]:
    return [0.0] * len(completions)
