"""Time one engine of the training step on a GPU, in a process of its own.

Run it once for each engine, with an empty and then with a filled cache of compiled code:

    export TRITON_CACHE_DIR=cache/triton TORCHINDUCTOR_CACHE_DIR=cache/inductor
    python results/bench/gate.py steps engine.json
    python results/bench/gate.py trial engine.json

The engine is that of the `cpaan` on the path, so PYTHONPATH chooses between two checkouts; a last
argument `reference` forces the reference. Data are those of `python -m cpaan.bench --scale paper`.
"""

import json
import sys
import time
from pathlib import Path

STARTED = time.monotonic()

import numpy as np  # noqa: E402  # the start of the process includes the imports
import torch  # noqa: E402

from cpaan.bench.scales import SCALES, training_data  # noqa: E402
from cpaan.core.randomness import new_rng  # noqa: E402
from cpaan.gan.episodes import MetaEpisodes  # noqa: E402
from cpaan.gan.gans import GANS  # noqa: E402
from cpaan.training.drive import train_to_end  # noqa: E402

try:
    from cpaan.gan.engine import new_run
except ImportError:  # before the engines were separated
    from cpaan.gan.loop import TrainingRun as new_run

NUM_EPISODES, NUM_ROUNDS, EPISODES_A_ROUND = 10_000, 7, 300


def main(what: str, path: str, engine: str = "") -> None:
    """Time the steps of all GANs, or a trial of cCov-GAN."""
    scale = SCALES["paper"]
    config = scale.training.with_overrides({"num_episodes": NUM_EPISODES})
    count = EPISODES_A_ROUND
    if engine:
        config, count = config.with_overrides({"engine": engine}), 5  # it is slow
    data = training_data(scale.num_classes, scale.num_dims, config.ky_fan_order, "cuda")
    torch.cuda.synchronize()
    ready = time.monotonic() - STARTED
    rows = []
    for name in reversed(GANS):
        run = new_run(GANS[name], MetaEpisodes(data, config), config, new_rng(0))
        began = time.monotonic()
        if what == "trial":
            path_of_run = Path(path).with_suffix(".pt")
            path_of_run.unlink(missing_ok=True)
            train_to_end(run, path_of_run, progress=print)
            rows.append(
                {
                    "trial": name,
                    "preparation_s": ready,
                    "training_s": time.monotonic() - began,
                    "whole_s": time.monotonic() - STARTED,
                }
            )
            Path(path).write_text(json.dumps(rows, indent=1))
            return
        run.advance(5)  # compile, and capture the graph
        torch.cuda.synchronize()
        compiled = time.monotonic() - began
        run.advance(count)
        times = []
        for _ in range(NUM_ROUNDS):
            began = time.monotonic()
            run.advance(count)  # waits for its losses
            times.append(1e3 * (time.monotonic() - began) / count)
        rows.append({"step": name, "first_steps_s": compiled, "ms": float(np.median(times))})
        del run
        Path(path).write_text(json.dumps(rows, indent=1))


main(*sys.argv[1:])
