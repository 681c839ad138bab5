"""``rmqha job``: the jobs of ``pipeline.cli``, and ``replay``, which needs a reactor; the others must not have one."""

from rmqha.cli.replay import replay
from rmqha.pipeline.cli import job

job.add_command(replay)
