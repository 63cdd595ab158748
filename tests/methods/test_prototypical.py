"""Test that methods in an embedding equal those on an embedded table, and that it trains once."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cpaan.core.randomness import draw_word, new_rng, spawn
from cpaan.methods.base import Checkpointing
from cpaan.methods.controls import Control
from cpaan.methods.prototypical import Embedded
from cpaan.methods.registry import ROWS, make_method
from cpaan.protocol.augmentation import mean_shift
from cpaan.protocol.tasks import read_base
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.embedding import EmbeddingRun, embed_table
from helpers.runs import QUICK
from helpers.tasks import read_problems

CPU = torch.device("cpu")
CONFIG = EmbeddingConfig(num_episodes=6, episode_shots=(1, 2), num_queries=2, hidden_dim=10)


def embedding_of(gaussians) -> EmbeddingRun:
    """Train the embedding of methods with seed 0, without a method."""
    for_embedding, _ = spawn(new_rng(0), 2)
    classes = sorted(gaussians.split.base_classes("validation"))
    run = EmbeddingRun(read_base(gaussians.table, classes, CPU), CONFIG, draw_word(for_embedding))
    run.advance(6)
    return run


def new_method(name: str, folder: Path | None = None, progress=lambda message: None):
    config = ROWS[name].config.with_overrides({**ROWS[name].quick, "num_episodes": 2})
    if "perplexity" in config.to_dict():
        config = config.with_overrides({"perplexity": 4.0})
    config = CONFIG if name == "PN" else config
    return make_method(name, QUICK, config, embedding=CONFIG, folder=folder, progress=progress)


@pytest.mark.parametrize("translation", [None, mean_shift])
def test_a_method_in_an_embedding_is_the_method_on_an_embedded_table(gaussians, translation):
    task, queries = read_problems(gaussians)
    method = Embedded(Control(translation, QUICK), CONFIG, Checkpointing())
    method.fit(task, new_rng(0))

    by_hand = Control(translation, QUICK)
    embedded = embed_table(embedding_of(gaussians), gaussians.table)
    by_hand_task, by_hand_queries = read_problems(replace(gaussians, table=embedded))
    _, for_method = spawn(new_rng(0), 2)
    by_hand.fit(by_hand_task, for_method)

    expected = by_hand.predict(by_hand_queries.features)
    for head, scores in method.predict(queries.features).items():
        torch.testing.assert_close(scores, expected[head], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(method.represent(queries.features), by_hand_queries.features)


def test_an_embedding_is_trained_once_for_both_phases_and_all_methods_that_share_its_file(
    gaussians, tmp_path
):
    tasks = [read_problems(gaussians, phase=phase)[0] for phase in ("validation", "test")]
    names, said = ("PN", "c-GAN-PN", "cDeLi-GAN-PN"), []

    for name in names:
        method = new_method(name, tmp_path, said.append)
        for task in tasks:
            method.fit(task, new_rng(0))

    begun = "the embedding: resuming from episode 6"
    assert [line.partition(",")[0] for line in said] == [
        *("the embedding: episode 6 of 6", begun, "c-GAN: episode 2 of 2"),
        *(begun, "cDeLi-GAN: episode 2 of 2"),
    ]
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}-seed0.pt" for name in names}
