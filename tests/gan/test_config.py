from cpaan.gan.config import TrainConfig


def test_training_as_printed_has_the_numbers_of_the_paper():
    config = TrainConfig.as_printed()

    sizes = {"num_episodes": 100_000, "batch_size": 1_000, "num_ways": 20, "episode_shots": (10,)}
    sizes |= {"hidden_dim": 512, "noise_dim": 100, "num_components": 50, "noise_spread": 0.2}
    weights = {"cycle_weight": 5.0, "covariance_weight": 0.5, "ky_fan_order": 10}
    rates = {"learning_rates": (1e-4, 1e-4), "anneal_factor": 0.5, "anneal_every_episodes": 20_000}
    formulas = {"neighbours": "soft", "perplexity": None, "sampling": "uniform"}
    formulas |= {"generator_loss": "minimax", "normalised_weights": False, "normalisation": "none"}
    formulas |= {"residual": "none", "covariance_classes": "all", "prototype_weight": 0.0}
    printed = {**sizes, **weights, **rates, **formulas}
    assert {name: getattr(config, name) for name in printed} == printed
    assert config.num_base_examples == 1_000 - 20 * 10


def test_discriminators_learn_as_fast_as_the_generators_unless_they_have_a_rate():
    config = TrainConfig(generator_learning_rate=0.8)

    assert config.learning_rates == (0.8, 0.8)
    slower = config.with_overrides({"discriminator_learning_rate": 0.1})
    assert slower.learning_rates == (0.8, 0.1)
