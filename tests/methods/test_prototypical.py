"""Test that methods in an embedding equal those on an embedded table, and that it trains once."""

from dataclasses import replace

import pytest
import torch

from cpaan import evaluate
from cpaan.core.randomness import draw_word, new_rng, spawn
from cpaan.methods.controls import Control
from cpaan.methods.prototypical import Embedded
from cpaan.methods.registry import METHODS
from cpaan.protocol.augmentation import mean_shift
from cpaan.protocol.tasks import read_base
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.embedding import EmbeddingRun, embed_table
from helpers.runs import QUICK, tiny
from helpers.tasks import read_problems

CONFIG = tiny(EmbeddingConfig())


@pytest.mark.parametrize("translation", [None, mean_shift])
def test_a_method_in_an_embedding_is_the_method_on_an_embedded_table(gaussians, translation):
    task, queries = read_problems(gaussians)
    fitted = Embedded(Control(translation, QUICK), CONFIG).fit(task, new_rng(0))

    for_embedding, for_method = spawn(new_rng(0), 2)
    classes = sorted(gaussians.split.base_classes("validation"))
    base = read_base(gaussians.table, classes, torch.device("cpu"))
    run = EmbeddingRun(base, CONFIG, draw_word(for_embedding))
    run.advance(4)
    embedded = replace(gaussians, table=embed_table(run, gaussians.table))
    by_hand_task, by_hand_queries = read_problems(embedded)
    by_hand = Control(translation, QUICK).fit(by_hand_task, for_method)

    expected = by_hand.predict(by_hand_queries.features)
    for head, scores in fitted.predict(queries.features).items():
        torch.testing.assert_close(scores, expected[head], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fitted.represent(queries.features), by_hand_queries.features)


def test_an_embedding_is_trained_once_for_both_phases_and_all_methods_that_share_its_file(
    gaussians, tmp_path
):
    names, said = ("PN", "c-GAN-PN", "cDeLi-GAN-PN"), list[str]()

    evaluate(
        gaussians.table,
        gaussians.split,
        phase="test",
        methods=names,
        config=QUICK,
        settings={name: tiny(METHODS[name].config) for name in names},
        checkpoints=tmp_path,
        progress=said.append,
    )

    runs = ("the embedding", "c-GAN", "cDeLi-GAN")
    trained = [line.partition(",")[0] for line in said if line.partition(": ")[0] in runs]
    begun = "the embedding: resuming from episode 4"
    assert [line for line in trained if "engine" not in line] == [
        *("the embedding: episode 4 of 4", begun, "c-GAN: episode 4 of 4"),
        *(begun, "cDeLi-GAN: episode 4 of 4"),
    ]
    assert {path.name for path in tmp_path.glob("*.pt")} == {f"{name}-seed0.pt" for name in names}
