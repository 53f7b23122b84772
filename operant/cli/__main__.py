"""`python -m operant.cli`: the `operant` command without an installed script."""

from operant.cli import main

if __name__ == "__main__":
    main()
