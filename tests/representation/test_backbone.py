"""Test the backbone, its losses and views, and that training learns, stops and resumes."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from cpaan.core.randomness import new_rng
from cpaan.representation.backbone import BackboneClassifier, ResNet10, backbone_loss
from cpaan.representation.backbone_training import BackboneRun
from cpaan.representation.config import BackboneConfig
from cpaan.representation.views import cut_and_paste, plain_views, random_views
from cpaan.training.workers import ALONE, Workers
from helpers.backbones import small_config, striped_images
from helpers.runs import assert_goes_on, flat

CPU = torch.device("cpu")
NO_CHANGE = {"smallest_crop": 1.0, "colour_jitter": 0.0, "cut_and_paste": 0.0}


def new_run(
    num_images: int = 48, seed: int = 0, workers: Workers = ALONE, **settings: object
) -> BackboneRun:
    images, labels = striped_images(num_images)
    images[:, 0, 0, 0] = np.arange(num_images)  # the first pixel identifies an image
    return BackboneRun(images, labels, 3, small_config(**settings), seed, CPU, workers)


def test_features_are_512_and_negative_only_without_the_last_relu():
    images = torch.randn(2, 3, 16, 16, generator=new_rng(0))

    rectified, signed = (
        ResNet10(is_small=True, last_relu=last_relu, rng=new_rng(1))(images)
        for last_relu in (True, False)
    )

    assert rectified.shape == signed.shape == (2, 512)
    assert rectified.min() == 0 < rectified.max()
    assert signed.min() < 0 < signed.max()


@pytest.mark.parametrize(("size", "view_size", "width"), [(64, 72, 72), (256, 224, 56)])
def test_the_stem_keeps_small_images_and_quarters_large_ones(size, view_size, width):
    config = BackboneConfig(image_size=size)
    network = ResNet10(is_small=config.is_small, last_relu=True, rng=new_rng(0))

    assert config.last_view_size == view_size
    assert network.stem(torch.zeros(1, 3, view_size, view_size)).shape == (1, 64, width, width)


def test_a_cosine_classifier_ignores_lengths():
    classifier = BackboneClassifier(3, new_rng(0), has_cosine=True)
    features = torch.randn(2, 512, generator=new_rng(1))

    scores = classifier(features)

    torch.testing.assert_close(classifier(5 * features), scores)
    assert scores.abs().max() <= 10  # the initial scale
    of_weights = classifier(classifier.weight.detach())
    torch.testing.assert_close(of_weights.diagonal(), torch.full((3,), 10.0))


def test_sgm_adds_the_squared_gradient_of_the_classifier_and_l2_half_the_squared_norm():
    rng = new_rng(0)
    features = torch.rand(4, 512, generator=rng)
    classifier = BackboneClassifier(3, rng, has_cosine=False)
    targets = torch.eye(3)[torch.arange(4) % 3]
    scores = classifier(features)
    squared = []
    for score, target in zip(scores, targets, strict=True):
        of_image = cross_entropy(score, target)
        (gradient,) = torch.autograd.grad(of_image, classifier.weight, retain_graph=True)
        squared.append(gradient.square().sum())

    plain, sgm, l2 = (
        backbone_loss(features, scores, targets, kind) for kind in ("ce", "sgm", "l2")
    )

    torch.testing.assert_close(plain, cross_entropy(scores, targets.argmax(1)))
    torch.testing.assert_close(sgm, plain + 0.02 * torch.stack(squared).mean())
    torch.testing.assert_close(l2, plain + 0.03 / 2 * features.square().sum(1).mean())


def test_a_plain_view_is_the_centre_of_a_large_image_and_all_of_a_small_one():
    large = torch.zeros(1, 10, 10, 3, dtype=torch.uint8)
    large[:, 1:9, 1:9] = 255
    small = torch.full((1, 8, 8, 3), 51, dtype=torch.uint8)
    small[:, :, 4:] = 204

    centre, enlarged = (
        plain_views(image, size)[0, 0] * 0.229 + 0.485 for image, size in ((large, 8), (small, 16))
    )

    torch.testing.assert_close(centre, torch.ones(8, 8))
    torch.testing.assert_close(enlarged[:, [0, -1]], torch.tensor([[0.2, 0.8]]).expand(16, 2))


def test_a_random_view_of_a_whole_image_is_the_image_or_its_mirror_image():
    images = torch.from_numpy(striped_images()[0])

    # Stretched views are cut off at the border; unstretched views are as wide as the image.
    views = random_views(images, 8, small_config(**NO_CHANGE), new_rng(0))

    plain = plain_views(images, 8)
    is_same, is_mirrored = (
        (views - image).abs().flatten(1).mean(dim=1) < 0.5 for image in (plain, plain.flip(-1))
    )
    assert 0 < is_same.sum() < len(images)
    assert 0 < is_mirrored.sum() < len(images)
    alike = random_views(images[:1].expand(6, -1, -1, -1), 8, small_config(), new_rng(0))
    assert all(not torch.equal(alike[0], other) for other in alike[1:])


def test_a_pasted_rectangle_counts_by_its_area():
    views = torch.arange(1.0, 9.0).view(8, 1, 1, 1).expand(8, 3, 8, 8)  # one colour each
    targets = torch.eye(8)

    mixed, new_targets = cut_and_paste(views, targets, 1.0, new_rng(0))
    same, same_targets = cut_and_paste(views, targets, 0.0, new_rng(0))

    for view, target in zip(mixed, new_targets, strict=True):
        areas = torch.stack([(view[0] == colour + 1).float().mean() for colour in range(8)])
        torch.testing.assert_close(target, areas)
    assert (new_targets < 1).all(dim=1).any()
    assert torch.equal(same, views)
    assert torch.equal(same_targets, targets)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["ce", "cosine"])
def test_training_learns_to_tell_new_stripes(loss):
    images, labels = striped_images(96)
    config = small_config(loss=loss, num_epochs=8, label_smoothing=0.0, **NO_CHANGE)
    run = BackboneRun(images[:72], labels[:72], 3, config, 0, CPU)

    first = run.advance(2)
    last = run.advance(run.num_episodes - 2)

    _, scores = run.model.describe(torch.from_numpy(images[72:]))
    assert last["loss"] < first["loss"]
    assert (scores.argmax(dim=1).numpy() == labels[72:]).mean() > 0.9


def test_a_run_resumes_to_the_last_bit_and_draws_nothing_global():
    state = torch.random.get_rng_state()

    assert_goes_on(lambda: new_run(seed=3, num_epochs=2))  # stops in the middle of an epoch

    assert not torch.equal(flat(new_run(seed=4)), flat(new_run(seed=3)))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_an_image_that_is_left_out_has_no_influence():
    images, labels = striped_images()
    labels[7] = -1
    poisoned = images.copy()
    poisoned[7] = 255

    runs = [BackboneRun(x, labels, 3, small_config(), 0, CPU) for x in (images, poisoned)]
    for run in runs:
        run.advance(run.steps_per_epoch)

    assert torch.equal(flat(runs[0]), flat(runs[1]))


def test_an_epoch_shows_every_image_once_and_workers_share_every_step():
    alone, *shared = (new_run(workers=x) for x in (ALONE, Workers(0, 2), Workers(1, 2)))

    seen = []
    for step in range(alone.steps_per_epoch):
        for run in (alone, *shared):
            run.episode = step
        batch, *parts = (run._batch()[0][:, 0, 0, 0].tolist() for run in (alone, *shared))
        assert [len(part) for part in parts] == [8, 8]
        assert sorted([*parts[0], *parts[1]]) == sorted(batch)
        seen += batch
    assert sorted(seen) == list(range(48))


def test_shares_of_different_sizes_weigh_by_their_images():
    batches = [new_run(15, workers=Workers(rank, 2), batch_size=15)._batch() for rank in (0, 1)]

    assert [len(labels) for _, labels, _ in batches] == [8, 7]
    assert [share for *_, share in batches] == pytest.approx([16 / 15, 14 / 15])
    with pytest.raises(ValueError, match="a step of 3 images cannot be divided among 2 workers"):
        new_run(3, workers=Workers(0, 2))


def test_divergence_is_an_error():
    run, spoilt = new_run(learning_rate=1e30, warmup=0.0), new_run()
    spoilt.advance(1)
    with torch.no_grad():
        spoilt.model.network.stem[1].running_var.fill_(torch.inf)  # not in the training loss

    with pytest.raises(ValueError, match=r"diverged at step \d+: .*learning_rate is 1e\+30"):
        run.advance(4)
    with pytest.raises(ValueError, match=r"diverged at step 1: .* weights infinite"):
        spoilt.advance(1)


def rates_of(run: BackboneRun) -> list[float]:
    return [run.learning_rate(step) for step in range(run.num_episodes)]


def test_the_learning_rate_rises_to_its_largest_and_falls():
    rates = rates_of(new_run(num_epochs=10, warmup=0.1))

    assert rates[:3] == pytest.approx([0.05 / 3, 0.1 / 3, 0.05])
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] < 0.001
    assert max(rates_of(new_run(num_epochs=2, warmup=0.37))) <= 0.05
    benchmark = {**BackboneConfig.as_in_benchmark().to_dict(), "num_epochs": 6, "batch_size": 16}
    expected = [0.1] * 6 + [0.01] * 6 + [0.001] * 6
    assert rates_of(new_run(**benchmark)) == pytest.approx(expected)


def test_views_grow_to_their_last_size():
    run = new_run(image_size=64, first_view=0.5, grown_after=0.5, num_epochs=8)

    sizes = [run.view_size(step) for step in range(run.num_episodes)]

    assert sizes[0] == 32  # from 36, as a multiple of eight
    assert sizes == sorted(sizes)
    assert set(sizes[run.num_episodes // 2 :]) == {72}
