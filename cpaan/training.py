"""Meta-training: the loop, and a run that can stop and go on.

Shapes: N = meta-novel classes, M = meta-base examples, D = feature dimension.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # exported, but not declared so

from cpaan.config import TrainConfig
from cpaan.episodes import Episode, Episodes
from cpaan.files import replacing
from cpaan.objectives import (
    FAKE,
    Gan,
    Networks,
    choose_covariance_classes,
    covariance_loss,
    cycle_loss,
    discriminator_loss,
    generator_loss,
    prototype_loss,
)
from cpaan.provenance import describe_run
from cpaan.randomness import new_rng

TERMS = (
    "novel_discriminator",
    "base_discriminator",
    "novel_adversarial",
    "base_adversarial",
    "cycle",
    "covariance",
    "prototype",
    "effective_examples",
    "similarity_left_out",
)
"""What the history has of every episode, in the order of computation: losses without their weights,
zero where a GAN has no such term; the mean over classes of the effective number of translated
examples, 1 / Σ weight²; and the share of similarity that the covariance term does not look at."""


class TrainingDivergedError(ValueError):
    """A loss is no longer a number."""


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
    ) -> None:
        """Draw the networks' weights.

        Args:
            gan: Which of the four.
            episodes: Where episodes come from; their device and type are those of the run.
            config: Everything else.
            rng: Decides the run.
            has_way_back: Whether G_b is trained; by default where the GAN has a cycle.
        """
        self.gan = gan
        self.config = config
        self.episodes = episodes
        self.episode = 0
        self._seed_word = int(torch.randint(2**62, (), generator=rng))
        self._rng = new_rng(self._seed_word, 1, device=episodes.data.base.features.device)
        self.networks = Networks(
            gan,
            episodes.data,
            config,
            new_rng(self._seed_word, 0),
            has_way_back=gan.has_cycle if has_way_back is None else has_way_back,
        )
        self._generators = _adam(self.networks.of_generators(), config.adam_beta1)
        self._discriminators = _adam(self.networks.of_discriminators(), config.adam_beta1)
        self._history: list[Tensor] = []  # (episodes, terms) each

    @property
    def history(self) -> Tensor:
        """All terms of all episodes so far, shape (episodes, terms)."""
        return torch.cat([torch.zeros(0, len(TERMS), dtype=torch.float64), *self._history])

    def advance(self, num_episodes: int) -> dict[str, float]:
        """Train for some more episodes.

        Returns:
            Means of all terms over these episodes.

        Raises:
            TrainingDivergedError: If a term was not finite; it names the first one. Losses are
                looked at here once, not in every episode, so that a GPU never waits for it.
        """
        rows: list[Tensor] = []
        with _quick_products(self._rng.device):
            for _ in range(num_episodes):
                terms = dict.fromkeys(TERMS, torch.zeros((), device=self._rng.device))
                try:
                    self._train_one_episode(terms)
                except LinAlgError:  # of NaN, there are no eigenvalues
                    terms["covariance"] = terms["covariance"] + torch.nan
                rows.append(torch.stack([term.detach().double() for term in terms.values()]))
                self.episode += 1
        chunk = torch.stack(rows).cpu()
        is_bad = ~chunk.isfinite()
        if is_bad.any():
            row, term = is_bad.nonzero()[0].tolist()
            first = self.episode - len(chunk)
            raise TrainingDivergedError(
                f"{self.gan.name} diverged: at episode {first + row} the term {TERMS[term]} "
                f"became {float(chunk[row, term])}"
            )
        self._history.append(chunk)
        return dict(zip(TERMS, chunk.mean(dim=0).tolist(), strict=True))

    def _train_one_episode(self, terms: dict[str, Tensor]) -> None:
        """Draw an episode, update the discriminators, update the generators; fill in the terms."""
        config, networks, data = self.config, self.networks, self.episodes.data
        episode = self.episodes.draw(self._rng)
        novel = episode.novel_prototypes.unsqueeze(1)  # (N, 1, D)
        base = data.base.prototypes[episode.base_classes[episode.sources]]  # (1 or N, M, D)
        shape = tuple(episode.weights.shape)
        weights = episode.weights / len(episode.weights)  # a mean over novel classes

        # Translate every base example to every novel class, and a shot of each the other way.
        translated = networks.base_to_novel(episode.base_examples, base, novel)
        if networks.has_way_back:
            noise = networks.noise(shape, self._rng, translated)
            returned = networks.novel_to_base(episode.partners, novel, base, noise)

        # Discriminators, on translations as they are.
        novel_labels = torch.arange(shape[0], device=translated.device).unsqueeze(1)
        base_labels = episode.sources
        if config.adversarial_weight:
            log_real = self._novel_answers(episode, episode.real)
            log_fake = self._novel_answers(episode, translated.detach())
            terms["novel_discriminator"] = discriminator_loss(
                _answer(log_real, novel_labels),
                episode.real_weights / shape[0],
                log_fake[..., FAKE],
                weights,
            )
            if networks.has_way_back:
                log_real = self._base_answers(episode, episode.base_examples)
                log_fake = self._base_answers(episode, returned.detach())
                terms["base_discriminator"] = discriminator_loss(
                    _answer(log_real, base_labels),
                    torch.full_like(base_labels, 1 / base_labels.numel(), dtype=weights.dtype),
                    log_fake[..., FAKE],
                    episode.back_weights,
                )
            self._update(
                self._discriminators,
                config.discriminator_learning_rate,
                terms["novel_discriminator"] + terms["base_discriminator"],
            )

        # Generators: c-GAN is the first adversarial term; cCyc-GAN and cDeLi-GAN add the second
        # one and the cycle; cCov-GAN adds the covariance. The prototype term is ours.
        if config.adversarial_weight:
            terms["novel_adversarial"] = generator_loss(
                self._novel_answers(episode, translated),
                novel_labels,
                weights,
                config.generator_loss,
            )
            if networks.has_way_back:
                terms["base_adversarial"] = generator_loss(
                    self._base_answers(episode, returned),
                    base_labels,
                    episode.back_weights,
                    config.generator_loss,
                )
        if self.gan.has_cycle and config.cycle_weight:
            noise = networks.noise(shape, self._rng, translated)
            if config.cycle_noise == "forward":
                noise = torch.zeros_like(noise)
            forward = networks.base_to_novel(returned, base, novel)
            backward = networks.novel_to_base(translated, novel, base, noise)
            terms["cycle"] = cycle_loss(forward, episode.partners, weights) + cycle_loss(
                backward, episode.base_examples, weights
            )
        if self.gan.has_covariance and config.covariance_weight:
            assert data.spectra is not None
            spectra, classes, scores, left_out = choose_covariance_classes(
                episode, data.spectra, config, self._rng
            )
            terms["covariance"] = covariance_loss(
                translated, episode.sample_weights, spectra, classes, scores, config
            )
            terms["similarity_left_out"] = left_out
        if config.prototype_weight:
            terms["prototype"] = prototype_loss(
                translated, episode.sample_weights, episode.class_means
            )
        loss = (
            config.adversarial_weight * (terms["novel_adversarial"] + terms["base_adversarial"])
            + config.cycle_weight * terms["cycle"]
            + config.covariance_weight * terms["covariance"]
            + config.prototype_weight * terms["prototype"]
        )
        if networks.has_way_back and config.noise_penalty:
            loss = loss + config.noise_penalty * networks.noise.penalty()
        self._update(self._generators, config.generator_learning_rate, loss)

        terms["effective_examples"] = (1 / episode.sample_weights.square().sum(dim=1)).mean()

    def _novel_answers(self, episode: Episode, examples: Tensor) -> Tensor:
        """Return what D_n says of examples, shape (..., N + 1)."""
        return self.networks.novel_discriminator(
            examples, episode.novel_classes, episode.novel_prototypes
        )

    def _base_answers(self, episode: Episode, examples: Tensor) -> Tensor:
        """Return what D_b says of examples: only base classes of the episode's batch can be it."""
        classes = episode.base_classes
        is_present = torch.zeros_like(classes, dtype=torch.bool)
        is_present = is_present.index_fill(0, episode.sources.flatten(), True)
        return self.networks.base_discriminator(
            examples, classes, self.episodes.data.base.prototypes[classes], is_present
        )

    def _update(self, optimiser: torch.optim.Adam, learning_rate: float, loss: Tensor) -> None:
        """Take one step of one side; the other side's gradients are not even computed."""
        (group,) = optimiser.param_groups
        halvings = self.episode // self.config.anneal_every_episodes
        group["lr"] = learning_rate * self.config.anneal_factor**halvings
        parameters: Sequence[nn.Parameter] = group["params"]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimiser.step()

    def state_dict(self) -> dict[str, Any]:
        """Return all that decides how the run goes on."""
        return {
            **self._identity(),
            "config": self.config.to_dict(),
            "episode": self.episode,
            "networks": self.networks.state_dict(),
            "generators": self._generators.state_dict(),
            "discriminators": self._discriminators.state_dict(),
            "rng": self._rng.get_state(),
            "history": self.history,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another run of the same kind was.

        Raises:
            ValueError: If that run had another GAN, other data, another seed or other settings;
                the number of episodes alone may differ.
        """
        for name, value in self._identity().items():
            if state[name] != value:
                raise ValueError(f"it has another {name}: {state[name]} and not {value}")
        for name, value in self.config.to_dict().items():
            if name != "num_episodes" and state["config"].get(name) != value:
                before = state["config"].get(name)
                raise ValueError(f"it was trained with {name} = {before} and not {value}")
        self.networks.load_state_dict(state["networks"])
        self._generators.load_state_dict(state["generators"])
        self._discriminators.load_state_dict(state["discriminators"])
        self._rng.set_state(state["rng"])
        self._history = [state["history"]]
        self.episode = state["episode"]

    def _identity(self) -> dict[str, Any]:
        base = self.episodes.data.base
        digest = hashlib.sha256(base.counts.cpu().numpy().tobytes())
        digest.update(base.features[base.first_row].cpu().numpy().tobytes())
        return {"GAN": self.gan.name, "data": digest.hexdigest()[:16], "seed": self._seed_word}

    def save(self, path: Path) -> None:
        """Write a checkpoint, whole or not at all: the old one survives a full disk."""
        with replacing(path) as file:
            torch.save({**self.state_dict(), "run": describe_run()}, file)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint.

        Raises:
            ValueError: If it is none, or one of another run; see `load_state_dict`.
        """
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            self.load_state_dict(state)
        except Exception as error:
            raise ValueError(f"cannot go on from {path}: {error}") from error


@contextmanager
def _quick_products(device: torch.device) -> Iterator[None]:
    """Let a GPU multiply float32 matrices to three digits, which training a GAN does not notice."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _adam(parameters: list[nn.Parameter], beta1: float) -> torch.optim.Adam:
    # The learning rate is set before every step.
    return torch.optim.Adam(parameters, lr=0.0, betas=(beta1, 0.999))


def _answer(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each example's class, shape (...)."""
    labels = labels.expand(log_probabilities.shape[:-1]).unsqueeze(-1)
    return log_probabilities.gather(-1, labels).squeeze(-1)
