"""`rollouts.html`: sampled completions of a run, token by token, on one page that opens from disk.

rollouts/step_*.jsonl and rollouts/tokens/step_*.jsonl → RolloutSample → HTML with the same lines in it as JSON
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from apo_lab.reporting.render import template
from apo_lab.reporting.runs import run_name
from apo_lightning.common.files import to_json
from apo_lightning.errors import ConfigError

TOKENS = "tokens"
"""The folder of the tokens' files, within that of the completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSample:
    """The completions of a page, and from how many they were taken."""

    title: str
    lines: Sequence[Mapping[str, Any]]
    """Lines of `step_000010.jsonl`, as `callbacks.RolloutWriter` wrote them."""
    tokens: Sequence[Mapping[str, Any] | None]
    """Their lines of `tokens/step_000010.jsonl`, as `callbacks.TokenWriter` wrote them; None: there is none."""
    texts: Mapping[str, str]
    """Token id → its text."""
    steps: tuple[int, ...]
    """The steps that are shown."""
    num_steps: int
    """Steps that were written."""
    num_completions: int
    """Completions of the steps that are shown."""


def read_rollouts(run: Path, limit: int) -> RolloutSample:
    """Whole groups of completions, as many of every step.

    Where some steps have a file of their tokens, the page shows those steps alone. It has at most `limit` completions,
    or one group of every step where that is more.

    Raises:
        ConfigError: the run has no rollout files, a file is malformed, or a limit below 1.
    """
    if limit < 1:
        raise ConfigError(f"rollout_limit is {limit}: give 1 or more completions")
    folder = run / "rollouts"
    written = sorted(folder.glob("step_*.jsonl"))
    if not written:
        raise ConfigError(
            f"rollouts={run}: there is no {folder.name}/step_*.jsonl in it: name the folder of a run that was trained "
            "with callbacks.rollout_writer"
        )
    shown = [path for path in written if (folder / TOKENS / path.name).is_file()] or written
    lines, tokens, texts, num_completions = [], [], {}, 0
    for path in shown:
        step = read_completions(path)
        recorded = folder / TOKENS / path.name
        head, *own = read_completions(recorded) if recorded.is_file() else [{"texts": {}}]
        by_completion = {(line["prompt_id"], line["sample"]): line for line in own}
        taken = _first_groups(step, max(1, limit // len(shown)))
        lines += taken
        tokens += [by_completion.get((line["prompt_id"], line["sample"])) for line in taken]
        texts |= head["texts"]
        num_completions += len(step)
    return RolloutSample(
        title=run_name(run),
        lines=lines,
        tokens=tokens,
        texts=texts,
        steps=tuple(int(path.stem.removeprefix("step_")) for path in shown),
        num_steps=len(written),
        num_completions=num_completions,
    )


def rollout_page(sample: RolloutSample) -> str:
    """The whole page, as HTML. The same sample gives the same text."""
    # Each completion's tokens on their own, so that a browser parses those alone that somebody looks at.
    return template("rollouts.html.j2").render(
        sample=sample,
        texts=Markup(script_json(sample.texts)),
        lines=Markup(script_json(sample.lines)),
        tokens=[Markup(script_json(line)) for line in sample.tokens],
    )


def script_json(record: object) -> str:
    r"""JSON that may stand in a `<script>`: nothing in it closes the element, whatever a completion says.

    Example:
        >>> script_json(["</script>"])
        '["\\u003c/script\\u003e"]'
    """
    text = to_json(record).decode("utf-8")
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _first_groups(lines: Sequence[Mapping[str, Any]], share: int) -> list[Mapping[str, Any]]:
    """The completions of the first prompts, up to a share, and of one prompt at least."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault(line["prompt_id"], []).append(line)
    taken: list[Mapping[str, Any]] = []
    for group in groups.values():
        if taken and len(taken) + len(group) > share:
            break
        taken += group
    return taken


def read_completions(path: Path) -> list[dict[str, Any]]:
    """The lines of a rollout file; raises `ConfigError`."""
    try:
        return [json.loads(line) for line in path.read_bytes().splitlines()]
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error}): remove the file, or train again") from error
