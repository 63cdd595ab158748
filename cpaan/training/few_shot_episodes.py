"""Episodes for meta-learners: support examples and queries of base classes.

Shapes: D = feature dimension, N = ways, K = shots, Q = queries per class.
"""

from abc import abstractmethod
from collections.abc import Mapping
from statistics import median_high
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cpaan.protocol.tasks import BaseSet
from cpaan.training.learning import EpisodeSettings, Learner


class FewShotEpisode(NamedTuple):
    """Support examples and queries of some base classes."""

    classes: Tensor  # (N,) positions among the base classes
    supports: Tensor  # (N, K, D); the S supports of an uneven episode have shape (1, S, D)
    queries: Tensor  # (N * Q, D)
    labels: Tensor  # (N * Q,) positions in classes


def check_rows(num_rows: Mapping[str, int], config: EpisodeSettings) -> None:
    """Raise ValueError if there is only one class, or a class has too few train rows."""
    needed = max(config.episode_shots) + config.num_queries
    smallest = min(num_rows, key=lambda name: num_rows[name])
    if len(num_rows) < 2 or num_rows[smallest] < needed:
        raise ValueError(
            f"class {smallest}, the smallest of {len(num_rows)}, has {num_rows[smallest]} train "
            f"rows, but at least 2 classes with {needed} rows each are needed: the largest of "
            "episode_shots plus num_queries (--set episode_shots=...)"
        )


def rows_of_least_keys(base: BaseSet, classes: Tensor, keys: Tensor, count: int) -> Tensor:
    """Return the features of some rows of base classes, shape (classes, count, D).

    They are the rows with the smallest keys, shape (classes, most rows of a class). With random
    keys, they are drawn without replacement, and no result is awaited.
    """
    every_row = torch.arange(keys.shape[1], device=keys.device)
    keys = keys.masked_fill(every_row >= base.counts[classes].unsqueeze(1), torch.inf)
    rows = keys.topk(count, dim=1, largest=False).indices
    return base.features[base.first_row[classes].unsqueeze(1) + rows]


class FewShotEpisodes:
    """Sampler of episodes from base classes, without random state."""

    def __init__(self, base: BaseSet, config: EpisodeSettings) -> None:
        check_rows(dict(zip(base.names, base.counts.tolist(), strict=True)), config)
        self._base = base
        self._config = config
        self._most_rows = int(base.counts.max())
        self._uneven: dict[int, tuple[Tensor, Tensor]] = {}

    def draw_num_shots(self, rng: torch.Generator) -> int:
        """Draw one of the configured numbers of shots; ``rng`` is on the CPU."""
        choice = torch.randint(len(self._config.episode_shots), (), generator=rng)
        return self._config.episode_shots[int(choice)]

    def draw_with_median_shots(self, rng: torch.Generator) -> FewShotEpisode:
        """Draw an episode with the median of the configured numbers of shots, to set a scale."""
        return self.draw(median_high(self._config.episode_shots), rng)

    def draw(self, num_shots: int, rng: torch.Generator) -> FewShotEpisode:
        """Draw classes, and rows of every class without replacement; do not wait for the device.

        Supports and queries have no common rows.
        """
        base, config, device = self._base, self._config, self._base.counts.device
        classes = torch.randperm(len(base.counts), generator=rng, device=device)[: config.num_ways]
        keys = torch.rand((len(classes), self._most_rows), generator=rng, device=device)
        rows = rows_of_least_keys(base, classes, keys, num_shots + config.num_queries).float()
        labels = torch.arange(len(classes), device=device).repeat_interleave(config.num_queries)
        return FewShotEpisode(
            classes, rows[:, :num_shots], rows[:, num_shots:].flatten(0, 1), labels
        )

    def draw_uneven(self, first: int, rng: torch.Generator) -> tuple[FewShotEpisode, Tensor]:
        """Draw classes with different numbers of supports, and queries that may be supports.

        Classes, in random order, have the configured numbers of shots in turn, from ``first`` on.
        So all numbers are equally likely for a class, and ``first`` determines all shapes.

        Returns:
            The episode, and the positions of the classes' supports among all S, shape
            (N, largest number); S stands for none.
        """
        episode = self.draw(max(self._config.episode_shots), rng)
        if first not in self._uneven:  # kept, because CUDA graphs cannot copy from the CPU
            self._uneven[first] = self._arrange(first, len(episode.classes))
        places, members = self._uneven[first]
        classes = episode.classes[episode.labels]
        uniforms = torch.rand(classes.shape, generator=rng, device=classes.device)
        return episode._replace(
            supports=episode.supports.flatten(0, 1)[places].unsqueeze(0),
            queries=self._base.pick(classes, uniforms).float(),
        ), members

    def _arrange(self, first: int, num_ways: int) -> tuple[Tensor, Tensor]:
        """Return the places of used supports among the even episode's, and those by class."""
        shots, device = self._config.episode_shots, self._base.counts.device
        turns = torch.arange(num_ways) + shots.index(first)
        counts = torch.tensor(shots)[turns % len(shots)].unsqueeze(1)
        is_used = torch.arange(max(shots)) < counts
        number = is_used.flatten().cumsum(0).view_as(is_used) - 1
        members = torch.where(is_used, number, is_used.sum())
        return is_used.flatten().nonzero().squeeze(1).to(device), members.to(device)


class FewShotLearner(Learner):
    """A learner that classifies the queries of an episode, given its supports."""

    TERMS = ("query_loss", "query_top1")

    episodes: FewShotEpisodes

    def draw_shape(self, rng: torch.Generator) -> int:
        """Draw the number of shots of an episode."""
        return self.episodes.draw_num_shots(rng)

    @abstractmethod
    def draw_logits(self, num_shots: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw an episode; return logits of its queries, shape (queries, N), and their labels."""

    def episode_terms(self, shape: int, rng: torch.Generator) -> list[Tensor]:
        """Return the cross-entropy of an episode's queries, and their accuracy in percent."""
        logits, labels = self.draw_logits(shape, rng)
        is_right = logits.detach().argmax(dim=1) == labels
        return [cross_entropy(logits, labels), 100 * is_right.float().mean()]
