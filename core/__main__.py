"""``python -m counterpoint``: the command line, where the command ``counterpoint`` is on no path."""

if __name__ == "__main__":
    import sys

    from counterpoint_command import main

    sys.exit(main())
