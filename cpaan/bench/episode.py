"""Benchmark of a GAN training step: draw an episode, update discriminators, then generators."""

import torch

from cpaan.bench import kyfan
from cpaan.bench.measuring import Bench, Case, Subject
from cpaan.core.randomness import new_rng
from cpaan.gan.engine import new_run
from cpaan.gan.episodes import MetaEpisodes
from cpaan.gan.gans import GANS, Gan
from cpaan.gan.loop import LOSSES, TrainingRun

HELP = "a whole training step of each GAN: the fast engine against the reference, or against SVDs"

_EPISODES_AT_ONCE = {"cpu": 5, "cuda": 500}  # as in training, which checks losses once per call


def measure(bench: Bench) -> None:
    """Measure the four GANs at the scale, then with one size changed at a time.

    On a GPU, plain is the reference engine. On a CPU, ours is the reference engine, and plain
    decomposes every difference of covariances; other GANs have nothing to compare with.
    """
    for gan in GANS.values():
        sizes = bench.scale.varied if gan.has_covariance else ("batch_size",)
        for case in bench.cases(f"episode {gan.name}", *sizes):
            _measure_case(bench, case, gan)


def _measure_case(bench: Bench, case: Case, gan: Gan) -> None:
    config, seed, is_cuda = case.config, bench.seed, bench.device.type == "cuda"
    episodes, count = MetaEpisodes(case.data, config), _EPISODES_AT_ONCE[bench.device.type]
    run = new_run(gan, episodes, config, new_rng(seed))
    reference = TrainingRun(gan, episodes, config, new_rng(seed))
    differences = None
    if is_cuda:
        differences = compare_losses(run, reference)
    run.advance(count)
    subjects = {"ours": Subject(lambda: run.advance(count), count)}
    comparison = kyfan.compare(case.data, config, seed, is_shifted=True)
    num_pairs = comparison.classes.numel() if gan.has_covariance else 0
    pairs = kyfan.choose_pairs(comparison)
    if is_cuda:
        subjects["plain"] = Subject(lambda: reference.advance(1))
    elif gan.has_covariance:
        # All decompositions would take minutes, so some are measured to extrapolate from.
        others = config.with_overrides({"covariance_weight": 0.0})
        without = TrainingRun(gan, episodes, others, new_rng(seed))
        subjects["plain"] = Subject(lambda: without.advance(1))
        subjects["decompositions"] = Subject(lambda: kyfan.plain(comparison, pairs))
    times = bench.time(**subjects)
    plain = times.get("plain")
    if plain and "decompositions" in times:
        plain = plain.plus(times["decompositions"].times(num_pairs / len(pairs)))
    bench.row(
        case.name,
        times["ours"],
        plain,
        relative_error=None if differences is None else max(differences.values()),
        differences=differences,
        similarity_left_out=comparison.similarity_left_out if gan.has_covariance else None,
        num_pairs=num_pairs or None,
        plain_pairs=(num_pairs if is_cuda else len(pairs)) if gan.has_covariance else None,
        **case.sizes,
    )


def compare_losses(run: TrainingRun, reference: TrainingRun) -> dict[str, float]:
    """Return the relative differences of the losses of the first episodes, by name.

    Residual generators start as the identity, where cycle losses vanish. So both runs take two
    episodes from weights that are drawn again.
    """
    for_weights = new_rng(0, 1)
    state = reference.networks.state_dict()
    with torch.no_grad():
        for name, part in state.items():
            if ".last." in name:
                bound = part.shape[-1] ** -0.5
                drawn = torch.empty(part.shape).uniform_(-bound, bound, generator=for_weights)
                part.copy_(drawn)
    run.networks.load_state_dict(state)
    ours, plain = run.advance(1), reference.advance(1)
    return {
        name: abs(ours[name] - plain[name]) / abs(plain[name]) for name in LOSSES if plain[name]
    }
