"""Benchmark of a GAN training step: draw an episode, update discriminators, then generators."""

import math
from typing import Any

import torch

from cpaan.bench import kyfan
from cpaan.bench.measuring import Bench, Case, Subject
from cpaan.bench.plain import PlainRun, both_terms
from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import MetaEpisodes, TrainingData
from cpaan.gan.gans import GANS, Gan
from cpaan.gan.loop import TrainingRun

HELP = "a whole training step of each of the four GANs, against the plain definition of it"

_EPISODES_AT_ONCE = {"cpu": 5, "cuda": 500}  # as in training, which checks losses once per call


def measure(bench: Bench) -> None:
    """Measure the four GANs at the scale, then with one size changed at a time."""
    for gan in GANS.values():
        sizes = bench.scale.varied if gan.has_covariance else ("batch_size",)
        for case in bench.cases(f"episode {gan.name}", *sizes):
            _measure_case(bench, case, gan)


def _measure_case(bench: Bench, case: Case, gan: Gan) -> None:
    config, data, seed = case.config, case.data, bench.seed
    episodes = MetaEpisodes(data, config)
    count = _EPISODES_AT_ONCE[bench.device.type]
    run = TrainingRun(gan, episodes, config, new_rng(seed))
    run.advance(count)
    subjects = {"ours": Subject(lambda: run.advance(count), count)}
    comparison = kyfan.compare(data, config, seed, is_moved=True)
    num_pairs = comparison.classes.numel() if gan.has_covariance else 0
    pairs = kyfan.choose_pairs(comparison)
    is_in_parts = not case.is_usual and len(pairs) < num_pairs
    plain_config = config
    if is_in_parts:
        # Decompositions of all pairs would take minutes for each size. Measure the step without the
        # term, and some decompositions to extrapolate from; both take seconds.
        plain_config = config.with_overrides({"covariance_weight": 0.0})
        subjects["decompositions"] = Subject(lambda: kyfan.plain(comparison, pairs))
    plain_run = PlainRun(gan, episodes, plain_config, new_rng(seed))
    times = bench.time(**subjects, plain=Subject(plain_run.step))
    plain = times["plain"]
    if is_in_parts:
        plain = plain.plus(times["decompositions"].times(num_pairs / len(pairs)))
    flop = count_flop(gan, config, case.sizes["num_dims"], case.sizes["num_classes"])
    flop += kyfan.count_work(comparison)[0] if gan.has_covariance else 0.0
    # Parameters and Adam's two moments are read and written, gradients are read, all in float32.
    # Activations may stay in caches.
    num_bytes = 4.0 * 7 * sum(part.numel() for part in run.networks.parameters())
    bench.row(
        case.name,
        times["ours"],
        plain,
        work=(flop, num_bytes),
        **({} if is_in_parts else compare_terms(gan, data, config, seed)),
        similarity_left_out=comparison.similarity_left_out if gan.has_covariance else None,
        num_pairs=num_pairs or None,
        plain_pairs=(len(pairs) if is_in_parts else num_pairs) or None,  # decomposed
        **case.sizes,
    )


def compare_terms(gan: Gan, data: TrainingData, config: TrainConfig, seed: int) -> dict[str, Any]:
    """Return the largest relative difference of a loss, ours in the precision of training.

    Residual generators start as the identity, where cycle losses vanish. Their last layers are
    therefore drawn again here.
    """
    networks = TrainingRun(gan, MetaEpisodes(data, config), config, new_rng(seed)).networks
    for_weights = new_rng(seed, 1)
    bound = 1 / math.sqrt(config.hidden_dim)
    with torch.no_grad():
        for name, part in networks.named_parameters():
            if ".last." in name:
                part.copy_(torch.empty(part.shape).uniform_(-bound, bound, generator=for_weights))
        rng = new_rng(seed, 2, device=data.base.features.device)
        fast, plain = both_terms(gan, networks, data, config, rng)
    differences = {
        name: float((ours[name] - value).abs() / value.abs())
        for ours, reference in zip(fast, plain, strict=True)
        for name, value in reference.items()
        if name != "similarity_left_out"  # can be zero
    }
    worst = max(differences, key=lambda name: differences[name])
    return {"relative_error": differences[worst], "worst_term": worst, "differences": differences}


def count_flop(gan: Gan, config: TrainConfig, num_dims: int, num_classes: int) -> float:
    """Return the least FLOP of a step without Ky Fan norms, from matrix products alone.

    The first layer of generators is split, so that only inputs of single pairs are multiplied for
    every pair. The key of a class is multiplied into the embedding. The backward pass of a product
    needs another one for its weight, and one for its input if that has a gradient.
    """
    num_novel, num_base, width = config.num_ways, config.num_base_examples, config.hidden_dim
    num_pairs, num_shots = num_novel * num_base, num_novel * config.max_shots
    num_prototypes = num_novel + min(num_base, num_classes - num_novel)
    outer, inner, noise = num_dims * width, width**2, config.noise_dim * width  # for one row
    later = 3 * num_pairs * (inner + outer)  # of a generator, after its first layer
    products = 2 * (num_base + num_prototypes) * outer + later
    discriminators = [(num_novel, num_shots)]  # answers, real examples
    if gan.has_cycle:
        products += 2 * (num_shots + num_prototypes) * outer + later
        # The cycle runs both networks again, on examples that have gradients themselves.
        products += 2 * (later + 3 * num_pairs * outer) + 4 * num_pairs * noise
        discriminators.append((num_classes - num_novel, num_base))
    for num_answers, num_real in discriminators:
        last = width * (num_answers + 1)
        # The discriminator's update; inputs of its first layer have no gradient there.
        products += (num_real + num_pairs) * (2 * outer + 3 * (inner + last))
        products += 2 * num_pairs * (outer + inner + last)  # gradients for the generators
    if gan.has_covariance:
        products += 2 * num_pairs * num_dims**2  # covariances, and their gradient
    return 2.0 * products
