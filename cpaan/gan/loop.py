"""Meta-training: the loop, and the state of a run that can stop and go on.

Shapes: N = meta-novel classes, M = meta-base examples, D = feature dimension.
"""

from typing import Any, NoReturn

import torch
from torch import Tensor

from cpaan.core.devices import quick_products
from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import Episodes
from cpaan.gan.gans import Gan, Networks
from cpaan.gan.steps import LOSSES, TERMS, Step
from cpaan.training.learning import TrainingDivergedError, check_resumable
from cpaan.training.workers import ALONE, Workers


class TrainingRun:
    """Meta-training of one GAN, from its first episode on or from where it was left."""

    def __init__(
        self,
        gan: Gan,
        episodes: Episodes,
        config: TrainConfig,
        rng: torch.Generator,
        *,
        has_way_back: bool | None = None,
        workers: Workers = ALONE,
    ) -> None:
        """Draw the networks' weights.

        Several workers must make the same calls: see `Step`.

        Args:
            gan: Which of the four.
            episodes: Where episodes come from; their device and type are those of the run.
            config: Everything else.
            rng: Decides the run.
            has_way_back: Whether G_b is trained; by default where the GAN has a cycle.
            workers: Which of how many processes this is.

        Raises:
            ValueError: If the workers cannot share the configured number of episodes evenly.
        """
        workers.check_shares(config.num_episodes)
        self.gan = gan
        self.name = gan.name
        self.losses: tuple[str, ...] = LOSSES
        self.config = config
        self.episodes = episodes
        self.episode = 0
        self._seed_word = int(torch.randint(2**62, (), generator=rng))
        self._workers = workers
        self.networks = Networks(
            gan,
            episodes.data,
            config,
            new_rng(self._seed_word, 0),
            has_way_back=gan.has_cycle if has_way_back is None else has_way_back,
        )
        self._step = Step(gan, episodes, self.networks, config, self._seed_word, workers)
        self._history: list[Tensor] = []  # (steps, terms) each
        self._has_diverged = False

    @property
    def num_episodes(self) -> int:
        """How many there are to be, of all workers together."""
        return self.config.num_episodes

    @property
    def data(self) -> str:
        """Fingerprint of the base examples."""
        return self.episodes.data.fingerprint

    @property
    def history(self) -> Tensor:
        """All terms of all steps so far, means over workers, shape (steps, terms).

        A step has one episode for each worker.
        """
        return torch.cat([torch.zeros(0, len(TERMS), dtype=torch.float64), *self._history])

    def advance(self, num_episodes: int) -> dict[str, float]:
        """Train for some more episodes, of all workers together.

        Args:
            num_episodes: A multiple of the number of workers.

        Returns:
            Means of all terms over these episodes, the same for every worker.

        Raises:
            TrainingDivergedError: If a term or, at the end, a weight is not finite; it names the
                first one. They are looked at once, not in every episode, so that a GPU never
                waits for it.
        """
        assert num_episodes % self._workers.count == 0, "every worker has its share"
        rows: list[Tensor] = []
        with quick_products(self._step.device):
            for _ in range(num_episodes // self._workers.count):
                rows.append(self._step(self.episode))
                self.episode += self._workers.count
        chunk = torch.stack(rows)
        self._workers.average([chunk])  # so that all of them see when one has diverged
        chunk = chunk.cpu()
        is_finite = torch.stack([each.isfinite().all() for each in self.networks.parameters()])
        if not chunk.isfinite().all():
            row, term = (~chunk.isfinite()).nonzero()[0].tolist()
            self._raise_divergence(
                self.episode - (len(chunk) - row) * self._workers.count,
                f"{TERMS[term]} became {float(chunk[row, term])}",
            )
        if not is_finite.all():
            last = self.episode - self._workers.count
            self._raise_divergence(last, "weights became infinite or NaN in the update")
        self._history.append(chunk)
        return dict(zip(TERMS, chunk.mean(dim=0).tolist(), strict=True))

    def _raise_divergence(self, episode: int, what: str) -> NoReturn:
        self._has_diverged = True
        raise TrainingDivergedError(f"{self.name} diverged: at episode {episode}, {what}")

    def state_dict(self) -> dict[str, Any]:
        """Return all that decides how the run goes on.

        Raises:
            TrainingDivergedError: If it cannot go on.
        """
        if self._has_diverged:
            raise TrainingDivergedError(f"{self.name} has diverged: there is nothing to keep")
        return {
            **self._identity(),
            "config": self.config.to_dict(),
            "episode": self.episode,
            "networks": self.networks.state_dict(),
            **self._step.state_dict(),
            "device": self._step.device.type,
            "workers": self._workers.count,
            "history": self.history,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another run of the same kind was.

        Raises:
            ValueError: If that run had another GAN, other data, another seed or other settings,
                or is past the end of this one; or if it must go on, but with another number of
                workers, or on another kind of device, which has other random numbers.
        """
        for name, value in self._identity().items():
            if state[name] != value:
                raise ValueError(f"it has another {name}: {state[name]} and not {value}")
        before = type(self.config)(**{**self.config.to_dict(), **state["config"]}).to_dict()
        for name, value in self.config.to_dict().items():
            if name != "num_episodes" and before[name] != value:
                raise ValueError(f"it was trained with {name} = {before[name]} and not {value}")
        if state["episode"] > self.config.num_episodes:
            raise ValueError(
                f"it has {state['episode']} episodes, and {self.config.num_episodes} are wanted"
            )
        if state["episode"] < self.config.num_episodes:
            check_resumable(state, self._step.device, self._workers)
        self.networks.load_state_dict(state["networks"])
        self._step.load_state_dict(state)
        self._history = [state["history"]]
        self.episode = state["episode"]

    def _identity(self) -> dict[str, Any]:
        return {"GAN": self.name, "data": self.data, "seed": self._seed_word}
