"""Steps that the walks of all stories take: something that is on its way gets on."""

from random import Random

from rmqha.testing.sim.simulation import Simulation


class Steps:
    """By chance; each story adds its own steps and faults."""

    random: Random
    simulation: Simulation

    def _deliver(self) -> None:
        news = self.simulation.network.news()
        if news:
            end = self.random.choice(news)
            whole = self.random.random() < 0.6 or len(end.inbound) < 2
            self.simulation.deliver(end, None if whole else self.random.randint(1, len(end.inbound)))

    def _resolve(self) -> None:
        if self.simulation.network.attempts:
            self.simulation.resolve(self.random.choice(self.simulation.network.attempts))

    def _flush(self) -> None:
        self.simulation.flush_step(self.random.choice(list(self.simulation.nodes)))
