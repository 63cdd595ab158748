"""Test the ``settings`` command."""

import re

from cpaan.cli import main
from cpaan.core.settings import parse_settings
from cpaan.gan.config import TrainConfig
from cpaan.protocol.config import EvaluationConfig
from cpaan.representation.config import BackboneConfig, EmbeddingConfig


def test_settings_are_listed_with_meanings_and_every_value_can_be_set(capsys):
    assert main(["settings"]) == 0

    text = capsys.readouterr().out
    assert "  cycle_weight=5.0\n" in text
    assert "  residual=identity    (as printed: none)\n      Input that is added" in text
    assert "  episode_shots=1,2,5,10,20    (as printed: 10)\n" in text
    sections = {section.partition("\n")[0]: section for section in text.split("\n\n")}
    for title, config in {
        "Evaluation": EvaluationConfig(),
        "Meta-training": TrainConfig(),
        "Backbone": BackboneConfig(),
        "Embedding": EmbeddingConfig(),
    }.items():
        (settings,) = parse_settings(re.findall(r"^  (\w+=\S+)", sections[title], re.M), config)
        assert set(settings) == set(config.to_dict())
        assert type(config)(**settings) == config
