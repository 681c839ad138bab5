"""The jobs without the ``rmqha`` command: ``python -m rmqha.pipeline verify …``, or this file for ``spark-submit``."""

from rmqha.pipeline.cli import job

if __name__ == "__main__":
    job(prog_name="rmqha job")
