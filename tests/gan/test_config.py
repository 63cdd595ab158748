import json

import pytest

from cpaan.gan.config import TrainConfig


def test_a_config_is_read_from_json_also_with_removed_settings_that_had_no_effect():
    config = TrainConfig(episode_shots=(1, 5))
    content = json.loads(json.dumps(config.to_dict()))

    assert TrainConfig.from_dict(content) == config
    assert TrainConfig.from_dict({**content, "noise_penalty": 0.0}) == config
    with pytest.raises(TypeError, match="noise_penalty"):
        TrainConfig.from_dict({**content, "noise_penalty": 0.5})


def test_training_as_printed_has_the_numbers_of_the_paper():
    config = TrainConfig.as_printed()

    printed = {
        "num_episodes": 100_000,
        "generator_learning_rate": 1e-4,
        "discriminator_learning_rate": 1e-4,
        "anneal_factor": 0.5,
        "anneal_every_episodes": 20_000,
        "ky_fan_order": 10,
        "cycle_weight": 5.0,
        "covariance_weight": 0.5,
        "noise_dim": 100,
        "num_components": 50,
        "noise_spread": 0.2,
        "batch_size": 1_000,
        "num_ways": 20,
        "episode_shots": (10,),
        "hidden_dim": 512,
        "neighbours": "soft",
        "perplexity": None,
        "generator_loss": "minimax",
        "sampling": "uniform",
        "normalised_weights": False,
        "normalisation": "none",
        "residual": "none",
        "covariance_classes": "all",
        "prototype_weight": 0.0,
    }
    assert {name: getattr(config, name) for name in printed} == printed
    assert config.num_base_examples == 1_000 - 20 * 10
