"""Parts of an evaluation, several at a time and kept: what is done is never done again."""

import hashlib
import io
import json
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from cpaan.core.files import replacing, write_whole
from cpaan.core.provenance import describe_run
from cpaan.data.splits import TEST_PHASE, VALIDATION_PHASE
from cpaan.evaluation.runner import Evaluator, Key, Outcome, Part, Plan
from cpaan.methods.base import Progress
from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import FEATURES

Open = Callable[[Plan, Progress], Evaluator]
"""Makes the evaluator of another process, which opens the features for itself; it is pickled."""

_FRAMES = ("scores", "diversity", "validation")
_ABOUT = "part.json"


class KeptParts:
    """Parts in a folder, each with all that decided it."""

    def __init__(self, folder: Path, evaluator: Evaluator) -> None:
        """Keep parts in a folder.

        Args:
            folder: Where.
            evaluator: Has the plan, the features and the split that decide them.
        """
        self._folder = folder
        self._evaluator = evaluator

    def read(self, key: Key) -> Part | None:
        """Return a part that was done with the same settings on the same features, if any."""
        folder = self._place(key)
        try:
            about = json.loads((folder / _ABOUT).read_text())
            if about["decided_by"] != self._decided_by(key):
                return None
            scores, diversity, validation = (
                pd.read_parquet(folder / f"{name}.parquet") for name in _FRAMES
            )
        except (OSError, ValueError, KeyError, TypeError):  # not there, not whole: it is done again
            return None
        return Part(scores, diversity, validation, about["origin"])

    def write(self, key: Key, part: Part) -> None:
        """Keep a part. What names it comes last: without that, there is none."""
        folder = self._place(key)
        for name in _FRAMES:
            buffer = io.BytesIO()
            getattr(part, name).to_parquet(buffer, index=False)
            with replacing(folder / f"{name}.parquet") as file:
                file.write(buffer.getvalue())
        about = {"decided_by": self._decided_by(key), "origin": part.origin}
        write_whole(folder / _ABOUT, json.dumps(about, indent=1))

    def _place(self, key: Key) -> Path:
        return self._folder / f"{key.method}-seed{key.seed}"

    def _decided_by(self, key: Key) -> Any:
        plan, split = self._evaluator.plan, self._evaluator.split
        tables = self._evaluator.tables
        read = dict.fromkeys([FEATURES, ROWS[key.method].features])
        content = {
            "method": key.method,
            "seed": key.seed,
            "settings": plan.settings[key.method].to_dict(),
            "embedding": plan.embedding.to_dict() if ROWS[key.method].is_embedded else None,
            "phase": plan.phase,
            # Which other seeds there are decides nothing.
            "config": {**plan.config.to_dict(), "seed": None, "num_seeds": None},
            "shots": hashlib.sha256(plan.shot_rows.tobytes()).hexdigest()[:16],
            "features": [tables[name].fingerprint for name in read],
            # Names of labels decide nothing: classes are known by name.
            "classes": [asdict(split.phase(name)) for name in (VALIDATION_PHASE, TEST_PHASE)],
            "device": torch.device(plan.device).type,
            # Other code may give other scores, whatever the settings.
            "commit": describe_run()["commit"],
        }
        return json.loads(json.dumps(content))


@dataclass(frozen=True)
class InProcesses:
    """Runs parts in processes of their own, which share the cores, and a GPU if that is named."""

    num_processes: int
    open: Open
    folder: Path | None
    """Where parts are kept, and taken from if they are there; None: nowhere."""
    progress: Progress

    def __call__(self, plan: Plan, evaluator: Evaluator) -> Iterator[tuple[Key, Outcome]]:
        """Yield every part as it ends, first those that are there already.

        Raises:
            ValueError: If a process died.
        """
        kept = None if self.folder is None else KeptParts(self.folder, evaluator)
        missing = []
        for key in plan.keys:
            part = kept.read(key) if kept else None
            if part is None:
                missing.append(key)
            else:
                yield key, part
        total = len(plan.keys)
        if len(missing) < total:
            self.progress(f"{total - len(missing)} of {total} are already there")
        done = total - len(missing)
        for key, outcome in self._run(plan, evaluator, missing):
            done += 1
            if isinstance(outcome, ValueError):
                self.progress(f"{key.method}, seed {key.seed}: {outcome} ({done} of {total})")
            else:
                self.progress(f"{key.method}, seed {key.seed}: done ({done} of {total})")
                if kept:
                    kept.write(key, outcome)
            yield key, outcome

    def _run(
        self, plan: Plan, evaluator: Evaluator, keys: list[Key]
    ) -> Iterator[tuple[Key, Outcome]]:
        if self.num_processes == 1 or len(keys) < 2:
            for key in keys:
                yield key, _outcome_of(evaluator.run, key)
            return
        # A process that has used a GPU cannot be forked.
        context = multiprocessing.get_context("spawn")
        messages = context.Queue()
        threads = max(1, torch.get_num_threads() // self.num_processes)
        listener = threading.Thread(target=self._listen, args=(messages,), daemon=True)
        listener.start()
        executor = ProcessPoolExecutor(
            min(self.num_processes, len(keys)),
            mp_context=context,
            initializer=_begin,
            initargs=(plan, self.open, messages, threads),
        )
        try:
            running: dict[Future[Part], Key] = {executor.submit(_work, key): key for key in keys}
            while running:
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield running.pop(future), _outcome_of(future.result)
        except BrokenProcessPool as error:
            raise ValueError(
                "a process died, for want of memory perhaps; what was done is kept: the same "
                "command goes on"
            ) from error
        except BaseException:  # nobody waits for the others after an error or Ctrl-C
            for process in list(executor._processes.values()):
                process.terminate()
            raise
        finally:
            executor.shutdown(cancel_futures=True)
            messages.put(None)
            # A process that died in the middle of a word would leave it waiting for the rest.
            listener.join(timeout=2)

    def _listen(self, messages: Any) -> None:
        while (message := messages.get()) is not None:
            self.progress(message)


def _outcome_of(run: Callable[..., Part], *arguments: Any) -> Outcome:
    try:
        return run(*arguments)
    except ValueError as error:  # a training that diverged, say: others need not suffer
        return error


_evaluator: Evaluator | None = None  # of a process that works for another one


def _begin(plan: Plan, open_evaluator: Open, messages: Any, num_threads: int) -> None:
    global _evaluator
    torch.set_num_threads(num_threads)
    _evaluator = open_evaluator(plan, messages.put)


def _work(key: Key) -> Part:
    assert _evaluator is not None, "the process has begun"
    return _evaluator.run(key)
