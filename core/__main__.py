"""Run the command line as ``python -m counterpoint``."""

if __name__ == "__main__":
    import sys

    from counterpoint.integrations.command.main import main

    sys.exit(main())
