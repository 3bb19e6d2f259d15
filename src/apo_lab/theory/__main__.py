"""`apo theory`: check every statement, print the measurements and draw the figures."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from apo_lab.theory.page import END, fill, section, summary
from apo_lab.theory.statements import STATEMENTS
from apo_lightning.common.files import write_atomically


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if a statement does not hold."""
    parser = argparse.ArgumentParser(prog="python -m apo_lab.theory", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("theory"), help="folder for the figures (default: theory/)")
    parser.add_argument("--only", nargs="+", metavar="KEY", default=[], help="statements to check (no figures)")
    parser.add_argument("--page", type=Path, help="page to regenerate, such as docs/theory.md")
    options = parser.parse_args(arguments)
    known = [statement.key for statement in STATEMENTS]
    if unknown := [key for key in options.only if key not in known]:
        parser.error(f"there is no statement {unknown[0]}: choose from {' '.join(known)}")
    chosen = [statement for statement in STATEMENTS if statement.key in (options.only or known)]
    sections, broken = [], []
    for statement in chosen:
        readings = list(statement.check())
        sections.append(section(statement, readings))
        print(sections[-1] if options.only else summary(statement, readings))
        broken += [] if all(reading.holds for reading in readings) else [statement.key]
    if not options.only:
        _draw(options.out)
        print(f"figures: {options.out}")
    if options.page is not None:
        if options.only or END not in options.page.read_text():
            parser.error(f"{options.page} cannot be regenerated: it needs the mark {END}, and --only must not be given")
        write_atomically(options.page, fill(options.page.read_text(), "\n".join(sections)).encode())
    print(f"not as stated: {', '.join(broken)}" if broken else f"{len(chosen)} statements hold")
    return 1 if broken else 0


def _draw(folder: Path) -> None:
    # Imported here, so that checking statements does not need matplotlib.
    from apo_lab.theory.figures import FIGURES
    from apo_report.figures.canvas import NamedFigure, save

    for name, draw in FIGURES.items():
        save(NamedFigure(name, title="", caption="", figure=draw()), folder)


if __name__ == "__main__":
    sys.exit(main())
