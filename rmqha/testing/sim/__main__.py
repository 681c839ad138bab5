"""``python -m rmqha.testing.sim``."""

import sys

from rmqha.testing.sim.runner import main

sys.exit(main())
