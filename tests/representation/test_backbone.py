"""The network, its losses and its views; training learns, and can stop and go on."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from cpaan.core.randomness import new_rng
from cpaan.representation.backbone import Backbone, backbone_loss
from cpaan.representation.backbone_run import BackboneRun
from cpaan.representation.config import BackboneConfig
from cpaan.representation.resnet import CosineClassifier, LinearClassifier, ResNet10
from cpaan.representation.views import cut_and_paste, plain_views, random_views
from cpaan.training.workers import Workers
from helpers.backbones import small_config, striped_images

CPU = torch.device("cpu")
NO_CHANGE = {"smallest_crop": 1.0, "colour_jitter": 0.0, "cut_and_paste": 0.0}


def weights_of(run: BackboneRun) -> torch.Tensor:
    return torch.cat([value.double().flatten() for value in run.model.state_dict().values()])


def random_scores(num_images: int = 4, num_classes: int = 3) -> tuple[torch.Tensor, ...]:
    rng = new_rng(0)
    features = torch.rand(num_images, 512, generator=rng)
    classifier = LinearClassifier(num_classes, rng)
    targets = torch.eye(num_classes)[torch.arange(num_images) % num_classes]
    return features, classifier, targets


def test_features_are_512_and_none_is_negative():
    images = torch.randn(2, 3, 16, 16, generator=new_rng(0))

    features = ResNet10(is_small=True, last_relu=True, rng=new_rng(1))(images)

    assert features.shape == (2, 512)
    assert features.min() >= 0
    assert features.max() > 0


def test_without_the_last_relu_features_have_both_signs():
    images = torch.randn(2, 3, 16, 16, generator=new_rng(0))

    features = ResNet10(is_small=True, last_relu=False, rng=new_rng(1))(images)

    assert features.min() < 0 < features.max()


@pytest.mark.parametrize(("is_small", "size", "width"), [(True, 64, 64), (False, 224, 56)])
def test_the_stem_keeps_small_images_and_quarters_large_ones(is_small, size, width):
    network = ResNet10(is_small=is_small, last_relu=True, rng=new_rng(0))

    assert network.stem(torch.zeros(1, 3, size, size)).shape == (1, 64, width, width)


@pytest.mark.parametrize(("image_size", "view_size"), [(64, 72), (256, 224)])
def test_the_usual_views_of_both_sizes(image_size, view_size):
    config = BackboneConfig(image_size=image_size)

    assert config.last_view_size == view_size
    assert config.is_small == (image_size == 64)


def test_equal_seeds_give_equal_networks_and_nothing_global_is_drawn():
    state = torch.random.get_rng_state()

    first, second, other = (
        Backbone(small_config(), 3, new_rng(seed)).state_dict() for seed in (0, 0, 1)
    )

    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["network.stem.0.weight"], other["network.stem.0.weight"])


def test_a_cosine_classifier_does_not_see_lengths():
    classifier = CosineClassifier(3, new_rng(0))
    features = torch.randn(2, 512, generator=new_rng(1))

    scores = classifier(features)

    torch.testing.assert_close(classifier(5 * features), scores)
    assert scores.abs().max() <= 10  # the first scale
    own = classifier(classifier.weight.detach())
    torch.testing.assert_close(own.diagonal(), torch.full((3,), 10.0))


def test_plain_cross_entropy():
    features, classifier, targets = random_scores()
    scores = classifier(features)

    loss = backbone_loss(features, scores, targets, small_config(loss="ce"))

    torch.testing.assert_close(loss, cross_entropy(scores, targets.argmax(1)))


def test_sgm_is_the_squared_gradient_of_the_classifier():
    features, classifier, targets = random_scores()
    scores = classifier(features)
    squared = []
    for score, target in zip(scores, targets, strict=True):
        of_image = cross_entropy(score, target)
        (gradient,) = torch.autograd.grad(of_image, classifier.weight, retain_graph=True)
        squared.append(gradient.square().sum())
    expected = cross_entropy(scores, targets) + 0.02 * torch.stack(squared).mean()

    loss = backbone_loss(features, scores, targets, small_config(loss="sgm"))

    torch.testing.assert_close(loss, expected)


def test_l2_is_half_the_squared_norm():
    features, classifier, targets = random_scores()
    scores = classifier(features)
    plain = backbone_loss(features, scores, targets, small_config(loss="ce"))

    loss = backbone_loss(features, scores, targets, small_config(loss="l2", auxiliary_weight=2.0))

    torch.testing.assert_close(loss - plain, features.square().sum(1).mean())


def test_a_plain_view_is_the_centre_of_a_large_image():
    image = torch.zeros(1, 10, 10, 3, dtype=torch.uint8)
    image[:, 1:9, 1:9] = 255

    view = plain_views(image, 8)

    assert view.shape == (1, 3, 8, 8)
    torch.testing.assert_close(view[0, 0], torch.full((8, 8), (1 - 0.485) / 0.229))


def test_a_plain_view_of_a_small_image_is_all_of_it():
    image = torch.full((1, 8, 8, 3), 51, dtype=torch.uint8)
    image[:, :, 4:] = 204

    view = plain_views(image, 16)[0, 0] * 0.229 + 0.485

    torch.testing.assert_close(view[:, [0, -1]], torch.tensor([[0.2, 0.8]]).expand(16, 2))


def test_a_random_view_of_a_whole_image_is_the_image_or_its_mirror_image():
    images = torch.from_numpy(striped_images()[0])
    config = small_config(**NO_CHANGE)

    # A stretched view is cut off at the border: unstretched ones are as wide as the image.
    views = random_views(images, 8, config, new_rng(0))

    plain = plain_views(images, 8)
    is_same, is_mirrored = (
        (views - each).abs().flatten(1).mean(dim=1) < 0.5 for each in (plain, plain.flip(-1))
    )
    assert 0 < is_same.sum() < len(images)
    assert 0 < is_mirrored.sum() < len(images)


def test_views_differ_from_each_other_and_not_between_runs():
    images = torch.from_numpy(striped_images()[0][:1]).expand(6, -1, -1, -1)

    views = random_views(images, 8, small_config(), new_rng(0))

    assert torch.equal(views, random_views(images, 8, small_config(), new_rng(0)))
    assert all(not torch.equal(views[0], other) for other in views[1:])


def test_a_pasted_rectangle_counts_by_its_area():
    views = torch.arange(1.0, 9.0).view(8, 1, 1, 1).expand(8, 3, 8, 8)  # each of one colour
    targets = torch.eye(8)

    mixed, new_targets = cut_and_paste(views, targets, 1.0, new_rng(0))

    for view, target in zip(mixed, new_targets, strict=True):
        areas = torch.stack([(view[0] == colour + 1).float().mean() for colour in range(8)])
        torch.testing.assert_close(target, areas)
    assert (new_targets < 1).all(dim=1).any()


def test_no_rectangle_where_none_is_wanted():
    views, targets = torch.randn(4, 3, 8, 8, generator=new_rng(0)), torch.eye(4)

    mixed, new_targets = cut_and_paste(views, targets, 0.0, new_rng(1))

    assert torch.equal(mixed, views)
    assert torch.equal(new_targets, targets)


@pytest.mark.parametrize("loss", ["ce", pytest.param("cosine", marks=pytest.mark.slow)])
def test_training_learns_to_tell_new_stripes(loss):
    images, labels = striped_images(96)
    config = small_config(loss=loss, num_epochs=8, label_smoothing=0.0, **NO_CHANGE)
    run = BackboneRun(images[:72], labels[:72], 3, config, 0, CPU)

    first = run.advance(2)
    last = run.advance(run.num_steps - 2)

    _, scores = run.model.describe(torch.from_numpy(images[72:]))
    assert last < first
    assert (scores.argmax(dim=1).numpy() == labels[72:]).mean() > 0.9


def test_a_run_goes_on_to_the_last_bit():
    images, labels = striped_images()
    config = small_config(num_epochs=2)
    whole, before, after = (BackboneRun(images, labels, 3, config, 3, CPU) for _ in range(3))
    whole.advance(whole.num_steps)
    before.advance(4)  # in the middle of an epoch

    after.load_state_dict(before.state_dict())
    after.advance(after.num_steps - 4)

    assert torch.equal(weights_of(after), weights_of(whole))


def test_a_run_of_other_settings_is_refused():
    images, labels = striped_images()
    state = BackboneRun(images, labels, 3, small_config(), 0, CPU).state_dict()

    other = BackboneRun(images, labels, 3, small_config(learning_rate=0.1), 0, CPU)
    with pytest.raises(ValueError, match=r"learning_rate = 0\.05 and not 0\.1"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="seed = 0 and not 1"):
        BackboneRun(images, labels, 3, small_config(), 1, CPU).load_state_dict(state)


def test_an_image_that_is_left_out_has_no_influence():
    images, labels = striped_images()
    labels[7] = -1
    poisoned = images.copy()
    poisoned[7] = 255

    runs = [BackboneRun(each, labels, 3, small_config(), 0, CPU) for each in (images, poisoned)]
    for run in runs:
        run.advance(run.steps_per_epoch)

    assert torch.equal(weights_of(runs[0]), weights_of(runs[1]))


def test_workers_share_every_step_without_overlap():
    images, labels = striped_images()
    images[:, 0, 0, 0] = np.arange(len(images))  # an image is known by its first pixel
    config = small_config()

    alone, first, second = (
        BackboneRun(images, labels, 3, config, 0, CPU, workers)._batch()[0][:, 0, 0, 0].tolist()
        for workers in (Workers(), Workers(0, 2), Workers(1, 2))
    )

    assert len(first) == len(second) == 8
    assert sorted(first + second) == sorted(alone)


def test_an_epoch_shows_every_image_once():
    images, labels = striped_images()
    images[:, 0, 0, 0] = np.arange(len(images))
    run = BackboneRun(images, labels, 3, small_config(), 0, CPU)

    seen = []
    for step in range(run.steps_per_epoch):
        run.step = step
        seen += run._batch()[0][:, 0, 0, 0].tolist()

    assert sorted(seen) == list(range(48))


def test_too_few_images_for_the_workers():
    images, labels = striped_images(3)

    with pytest.raises(ValueError, match="3 images of a step cannot be shared by 2 workers"):
        BackboneRun(images, labels, 3, small_config(), 0, CPU, Workers(0, 2))


def test_divergence_is_an_error():
    images, labels = striped_images()
    run = BackboneRun(images, labels, 3, small_config(learning_rate=1e30, warmup=0.0), 0, CPU)

    with pytest.raises(ValueError, match=r"diverged before step 12.*learning_rate is 1e\+30"):
        run.advance(12)


def test_the_learning_rate_rises_and_falls():
    images, labels = striped_images()
    run = BackboneRun(images, labels, 3, small_config(num_epochs=10, warmup=0.1), 0, CPU)

    rates = [run._learning_rate(step) for step in range(run.num_steps)]

    assert rates[:3] == pytest.approx([0.05 / 3, 0.1 / 3, 0.05])
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] < 0.001


@pytest.mark.parametrize("warmup", [0.02, 0.37])
def test_no_learning_rate_is_above_the_largest(warmup):
    images, labels = striped_images()
    run = BackboneRun(images, labels, 3, small_config(num_epochs=2, warmup=warmup), 0, CPU)

    rates = [run._learning_rate(step) for step in range(run.num_steps)]

    assert max(rates) <= 0.05


def test_weights_that_are_not_finite_are_not_kept():
    images, labels = striped_images()
    run = BackboneRun(images, labels, 3, small_config(), 0, CPU)
    run.advance(1)
    with torch.no_grad():
        run.model.network.stem[1].running_var.fill_(torch.inf)  # no loss of training shows it

    with pytest.raises(ValueError, match="weights are not finite"):
        run.advance(1)


def test_shares_of_different_sizes_weigh_by_their_images():
    images, labels = striped_images(15)
    config = small_config(batch_size=15)

    batches = [
        BackboneRun(images, labels, 3, config, 0, CPU, Workers(rank, 2))._batch() for rank in (0, 1)
    ]

    assert [len(labels) for _, labels, _ in batches] == [8, 7]
    assert [share for *_, share in batches] == pytest.approx([16 / 15, 14 / 15])


def test_the_benchmark_divides_by_ten_after_each_third():
    images, labels = striped_images()
    config = BackboneConfig.as_in_benchmark().with_overrides({"num_epochs": 6, "batch_size": 16})
    run = BackboneRun(images, labels, 3, config, 0, CPU)

    rates = [run._learning_rate(step) for step in range(run.num_steps)]

    assert rates == pytest.approx([0.1] * 6 + [0.01] * 6 + [0.001] * 6)


def test_views_grow_to_their_last_size():
    images, labels = striped_images()
    config = small_config(image_size=64, first_view=0.5, grown_after=0.5, num_epochs=8)
    run = BackboneRun(images, labels, 3, config, 0, CPU)

    sizes = [run._view_size(step) for step in range(run.num_steps)]

    assert sizes[0] == 32  # of 36, in steps of eight
    assert sizes == sorted(sizes)
    assert set(sizes[run.num_steps // 2 :]) == {72}
