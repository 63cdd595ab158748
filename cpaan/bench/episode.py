"""A whole step of each GAN: draw an episode, update discriminators, update generators."""

import math
from typing import Any

import torch
from torch import nn

from cpaan.bench import kyfan
from cpaan.bench.measuring import Bench, Subject
from cpaan.bench.plain import PlainRun, plain_terms
from cpaan.bench.scales import training_data
from cpaan.core.devices import quick_products
from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import MetaEpisodes, TrainingData
from cpaan.gan.gans import GANS, Gan
from cpaan.gan.loop import TrainingRun
from cpaan.gan.objectives import discriminator_terms, moment_terms, pair_terms

HELP = "a whole training step of each of the four GANs, against the plain definition of it"

_EPISODES_AT_ONCE = {"cpu": 5, "cuda": 50}  # of our side, which checks losses once in a while


def measure(bench: Bench) -> None:
    """Measure the four GANs at the scale, and at other sizes one by one."""
    for gan in GANS.values():
        sizes = bench.scale.varied if gan.has_covariance else ("batch_size",)
        for ending, changes, varied in bench.scale.cases(*sizes):
            if bench.wants(name := f"episode {gan.name}{ending}"):
                bench.say(f"{name} ...")
                _measure_case(bench, name, gan, changes, varied)


def _measure_case(
    bench: Bench, name: str, gan: Gan, changes: dict[str, int], varied: list[str]
) -> None:
    scale, seed = bench.scale, bench.seed
    settings = dict(changes)
    num_dims = settings.pop("num_dims", scale.num_dims)
    config = scale.training.with_overrides(settings)
    data = training_data(scale.num_classes, num_dims, config.ky_fan_order, str(bench.device))
    episodes = MetaEpisodes(data, config)
    count = _EPISODES_AT_ONCE[bench.device.type]
    run = TrainingRun(gan, episodes, config, new_rng(seed))
    subjects = {"ours": Subject(lambda: run.advance(count), count, is_warm=False)}
    comparison = kyfan.compare(data, config, seed, is_moved=True)
    num_pairs = comparison.classes.numel() if gan.has_covariance else 0
    pairs = kyfan.choose_pairs(comparison)
    is_in_parts = bool(changes) and len(pairs) < num_pairs
    plain_config = config
    if is_in_parts:
        # Decompositions of all pairs would take minutes for each size. The step without the
        # term, and some decompositions in proportion, take seconds.
        plain_config = config.with_overrides({"covariance_weight": 0.0})
        subjects["decompositions"] = Subject(lambda: kyfan.plain(comparison, pairs))
    plain_run = PlainRun(gan, episodes, plain_config, new_rng(seed))
    times = bench.time(**subjects, plain=Subject(plain_run.step))
    plain = times["plain"]
    if is_in_parts:
        plain = plain.plus(times["decompositions"].times(num_pairs / len(pairs)))
    bench.row(
        name,
        times["ours"],
        plain,
        **({} if is_in_parts else compare_terms(gan, data, config, seed)),
        similarity_left_out=comparison.similarity_left_out if gan.has_covariance else None,
        num_pairs=num_pairs or None,
        plain_pairs=(len(pairs) if is_in_parts else num_pairs) or None,  # decomposed
        num_classes=scale.num_classes,
        num_ways=config.num_ways,
        num_base_examples=config.num_base_examples,
        num_covariance_classes=config.num_covariance_classes,
        num_dims=num_dims,
        batch_size=config.batch_size,
        hidden_dim=config.hidden_dim,
        ky_fan_order=config.ky_fan_order,
        family=f"episode {gan.name}",
        varied=varied,
    )


def compare_terms(gan: Gan, data: TrainingData, config: TrainConfig, seed: int) -> dict[str, Any]:
    """Return the largest relative difference of a loss, ours in the precision of training.

    Residual generators start as the identity, where cycle losses vanish, so their last layers
    are drawn anew here.
    """
    device = data.base.features.device
    episodes = MetaEpisodes(data, config)
    networks = TrainingRun(gan, episodes, config, new_rng(seed)).networks
    for_weights = new_rng(seed, 1)
    for name, part in networks.named_parameters():
        if ".last." in name:
            bound = 1 / math.sqrt(config.hidden_dim)
            drawn = nn.init.uniform_(torch.empty(part.shape), -bound, bound, generator=for_weights)
            with torch.no_grad():
                part.copy_(drawn)
    rng = new_rng(seed, 2, device=device)
    episode = episodes.draw(rng)
    state = rng.get_state()
    with quick_products(device), torch.no_grad():
        moved = networks.translate(episode, rng)
        fast = moment_terms(gan, episode, moved, data, config)
        fast |= discriminator_terms(networks, episode, moved)
        fast |= pair_terms(gan, networks, episode, moved, config, rng)
    rng.set_state(state)
    with torch.no_grad():
        of_discriminators, of_generators = plain_terms(gan, networks, episode, data, config, rng)
    tiny = torch.finfo(data.base.features.dtype).tiny
    differences = {
        name: float((fast[name] - value).abs() / value.abs().clamp(min=tiny))
        for name, value in {**of_discriminators, **of_generators}.items()
        if name != "similarity_left_out"  # may be zero
    }
    worst = max(differences, key=lambda name: differences[name])
    return {"relative_error": differences[worst], "worst_term": worst, "differences": differences}
