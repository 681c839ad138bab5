"""``python -m rmqha.cli``."""

from rmqha.cli import main

if __name__ == "__main__":
    main()
