"""Terminal output: our own lines and warnings only. Messages of libraries go to the run's `run.log`."""

import contextlib
import io
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from apo_lightning.common.formatting import printable
from apo_lightning.common.launch import is_first_process

NOISY = (
    "lightning",
    "lightning.pytorch",
    "lightning.fabric",
    "transformers",
    "vllm",
    "datasets",
    "wandb",
    "torch",
    "huggingface_hub",
)


class OwnWarnings(logging.Handler):
    """Prints the first warning of each kind on the terminal; `run.log` has all of them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning; an error ends the run, and is printed there."""
        if record.levelno == logging.WARNING and record.msg not in self.printed:
            self.printed.add(record.msg)
            say(f"warning: {record.getMessage()} (others like it: run.log)")


def quiet_libraries(log_file: Path) -> None:
    """Send all logs and warnings to `log_file`, our own warnings to the terminal too, and disable progress bars."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    handler = logging.FileHandler(log_file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old, logging.StreamHandler) and type(old).__module__ == "logging":
            root.removeHandler(old)
            old.close()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    logging.raiseExceptions = False  # on a full disk, each line for the log would print a traceback
    warnings.simplefilter("default")
    for name in NOISY:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    own = logging.getLogger("apo_lightning")
    own.handlers.clear()
    own.addHandler(OwnWarnings())
    # The engine silences vLLM's logger if it has no handler.
    logging.getLogger("vllm").addHandler(handler)
    logging.getLogger("vllm").propagate = False
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()


@contextlib.contextmanager
def progress_bars_hidden() -> Iterator[None]:
    """Hide progress bars of libraries that cannot disable them; exceptions propagate."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def say(line: str) -> None:
    """Print one line for the user, on the first rank only."""
    show(line, soft_wrap=True)


def show(content: RenderableType, *, soft_wrap: bool = False) -> None:
    """Print text or a table for the user, on the first rank only."""
    if is_first_process() and sys.stdout is not None:
        # Rich would end a process whose output nobody reads.
        page = io.TextIOWrapper(io.BytesIO(), sys.stdout.encoding or "utf-8", "backslashreplace")
        is_terminal = sys.stdout.isatty()
        # Without a terminal, Rich would limit tables to 80 columns.
        width = None if is_terminal else 120
        # Rich would take the `[wandb,tensorboard]` of a command for a style, and leave it out.
        console = _Console(
            file=page, force_terminal=is_terminal, highlight=False, markup=False, emoji=False, width=width
        )
        console.print(content, soft_wrap=soft_wrap)
        page.seek(0)
        try:
            print(page.read(), end="", flush=True)
        except OSError:  # nobody reads any more, or the disk is full: output ends, and the run does not
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it again when it ends


class _Console(Console):
    """A console whose texts, also those in a table, are `printable`."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield Segment(printable(segment.text), segment.style, segment.control)


@contextlib.contextmanager
def saying(line: str, every_s: float = 60.0) -> Iterator[None]:
    """Print what the block waits for, and for how long, again and again until it ends; on the first rank only."""
    ended, started = threading.Event(), time.monotonic()

    def speak() -> None:
        while not ended.wait(every_s):
            say(f"{line} ({time.monotonic() - started:.0f} s so far)")

    thread = threading.Thread(target=speak, daemon=True, name="saying")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
