"""A whole step of each GAN: draw an episode, update discriminators, update generators.

Shapes: N = meta-novel classes, M = meta-base examples, C = base classes, D = feature dimension,
H = hidden dimension, Z = noise dimension.
"""

import math
from typing import Any

import torch
from torch import nn

from cpaan.bench import kyfan
from cpaan.bench.measuring import Bench, Row, Subject
from cpaan.bench.plain import PlainRun, plain_terms
from cpaan.bench.scales import training_data
from cpaan.core.devices import quick_products
from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import MetaEpisodes
from cpaan.gan.gans import GANS, Gan, discriminator_terms, moment_terms, pair_terms
from cpaan.gan.loop import TrainingRun
from cpaan.gan.training_data import TrainingData

HELP = "a whole training step of each of the four GANs, against the plain definition of it"

_EPISODES_AT_ONCE = {"cpu": 5, "cuda": 50}
"""Of ours: losses are looked at once in a while, and a GPU is given the next episode before it has
finished the last."""


def measure(bench: Bench) -> list[Row]:
    """Measure the four GANs at the scale, and other sizes one by one."""
    scale = bench.scale
    rows = []
    cases: list[tuple[str, Gan, dict[str, Any], list[str]]] = []
    for gan in GANS.values():
        varied = ["batch_size"]
        if gan.has_covariance:
            varied += ["num_covariance_classes", "num_dims", "ky_fan_order"]
        cases.append((f"episode {gan.name}", gan, {}, varied))
    sizes: list[tuple[str, tuple[int, ...], int, list[Gan]]] = [
        ("batch_size", scale.batch_sizes, scale.batch_size, list(GANS.values())),
    ]
    with_covariance = [gan for gan in GANS.values() if gan.has_covariance]
    sizes += [
        (
            "num_covariance_classes",
            scale.covariance_classes,
            scale.num_covariance_classes,
            with_covariance,
        ),
        ("num_dims", scale.dims, scale.num_dims, with_covariance),
        ("ky_fan_order", scale.orders, scale.ky_fan_order, with_covariance),
    ]
    for key, values, usual, gans in sizes:
        cases += [
            (f"episode {gan.name} {key}={value}", gan, {key: value}, [key])
            for value in values
            if value != usual
            for gan in gans
        ]
    for name, gan, changes, varied in cases:
        if bench.wants(name):
            bench.say(f"{name} ...")
            rows.append(_measure_case(bench, name, gan, changes, varied))
    return rows


def _measure_case(
    bench: Bench, name: str, gan: Gan, changes: dict[str, Any], varied: list[str]
) -> Row:
    scale = bench.scale
    settings = dict(changes)
    num_dims = settings.pop("num_dims", scale.num_dims)
    config = scale.training(**settings)
    data = training_data(scale, num_dims, config.ky_fan_order, str(bench.device))
    episodes = MetaEpisodes(data, config)
    count = _EPISODES_AT_ONCE[bench.device.type]
    run = TrainingRun(gan, episodes, config, new_rng(bench.seed))
    subjects = {"ours": Subject(lambda: run.advance(count), count, is_warm=False)}
    num_pairs = plain_pairs = None
    if gan.has_covariance:
        comparison = kyfan.compare(data, config, bench.seed, is_moved=True)
        num_pairs = plain_pairs = comparison.classes.numel()
        pairs = kyfan.choose_pairs(comparison)
    if gan.has_covariance and changes and len(pairs) < comparison.classes.numel():
        # Minutes for each size, almost all of it decompositions: the step without the term, and
        # some decompositions in proportion, are the same in seconds.
        plain_pairs = len(pairs)
        without = PlainRun(
            gan,
            episodes,
            config.with_overrides({"covariance_weight": 0.0}),
            new_rng(bench.seed),
        )
        subjects["plain"] = Subject(without.step)
        subjects["decompositions"] = Subject(lambda: kyfan.plain(comparison, pairs))
    else:
        subjects["plain"] = Subject(PlainRun(gan, episodes, config, new_rng(bench.seed)).step)
    times = bench.time(subjects)
    plain = times["plain"]
    if "decompositions" in times:
        factor = comparison.classes.numel() / len(pairs)
        plain = plain.plus(times["decompositions"].times(factor))
    found = compare_terms(gan, data, config, bench.seed) if plain_pairs == num_pairs else {}
    flop, num_bytes = count_work(gan, config, num_dims, len(data.base.counts))
    if gan.has_covariance:
        of_term, _ = kyfan.count_work(comparison)
        flop += of_term
    return bench.row(
        name,
        times["ours"],
        plain,
        floor_ms=bench.peaks.floor_ms(flop, num_bytes),
        **found,
        similarity_left_out=comparison.similarity_left_out if gan.has_covariance else None,
        num_pairs=num_pairs,
        plain_pairs=plain_pairs,  # decomposed; where fewer than all, their time is in proportion
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

    At weights where no loss vanishes: residual generators start as the identity, with cycles that
    cost nothing, and so their last layers are drawn anew here.
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
        fast = moment_terms(gan, episode, moved, data, config, rng)
        fast |= discriminator_terms(networks, episode, moved)
        fast |= pair_terms(gan, networks, episode, moved, config, rng)
    rng.set_state(state)
    with torch.no_grad():
        of_discriminators, of_generators = plain_terms(gan, networks, episode, data, config, rng)
    reference = {**of_discriminators, **of_generators}
    tiny = torch.finfo(data.base.features.dtype).tiny
    differences = {
        name: float((fast[name] - value).abs() / value.abs().clamp(min=tiny))
        for name, value in reference.items()
        if name != "similarity_left_out"  # a share that may be nothing at all
    }
    worst = max(differences, key=lambda name: differences[name])
    return {"relative_error": differences[worst], "worst_term": worst, "differences": differences}


def count_work(
    gan: Gan, config: TrainConfig, num_dims: int, num_classes: int
) -> tuple[float, float]:
    """Return the least arithmetic and traffic of a step without Ky Fan norms: FLOP and bytes.

    Matrix products alone, with the first layer of generators in parts, so that nothing is
    multiplied for every pair that is not of the pair, and with a class's key multiplied into the
    embedding. A product's backward pass is one more for its weight, and one for its input where
    that has a gradient. Traffic: the parameters and Adam's two means of them, read and written,
    with the gradients read; activations might stay where they are, and do not count.
    """
    num_novel, num_base = config.num_ways, config.num_base_examples
    num_pairs = num_novel * num_base
    shape = num_dims, config.hidden_dim
    example = num_dims * config.hidden_dim  # multiplications of a row in each kind of layer
    inner = config.hidden_dim**2
    later = inner + example
    noise = config.noise_dim * config.hidden_dim
    own_examples = num_pairs if config.sampling == "per-class" else num_base
    prototypes = num_novel + min(num_base, num_classes - num_novel)

    # Translation; weights' gradients as much again, inputs' too in the later layers.
    products = 2 * (own_examples + prototypes) * example + 3 * num_pairs * later
    if gan.has_cycle:
        num_shots = num_novel * config.max_shots
        products += 2 * (num_shots + prototypes) * example + 3 * num_pairs * later
        products += 2 * num_pairs * noise
        # The cycle: both networks once more, on examples that have gradients themselves.
        products += 2 * (3 * num_pairs * (example + later)) + 2 * num_pairs * noise
    sides = [(num_novel, num_novel * config.max_shots)]
    if gan.has_cycle:
        sides.append((num_classes - num_novel, own_examples))
    for num_answers, num_real in sides:
        last = config.hidden_dim * (num_answers + 1)
        layers = example + inner + last
        # Its own update; the first layer's inputs have no gradient there.
        products += (num_real + num_pairs) * (2 * layers + inner + last)
        products += 2 * num_pairs * layers  # what the generators learn from it
    if gan.has_covariance:
        products += 2 * num_pairs * num_dims**2  # covariances, and their gradient
    num_parameters = _count_parameters(gan, config, *shape)
    return 2.0 * products, 4.0 * 7 * num_parameters


def _count_parameters(gan: Gan, config: TrainConfig, num_dims: int, width: int) -> int:
    generator = 3 * num_dims * width + width**2 + width * num_dims
    discriminator = num_dims * width + 2 * width**2 + num_dims * width
    sides = 2 if gan.has_cycle else 1
    return sides * (generator + discriminator) + (sides - 1) * config.noise_dim * width
