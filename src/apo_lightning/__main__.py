"""`python -m apo_lightning <command> <overrides>`, which is what `apo` runs."""

from apo_lightning.run.command_line import main

if __name__ == "__main__":
    main()
