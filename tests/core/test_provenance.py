import subprocess
from pathlib import Path

import cpaan.core.provenance
from cpaan.core.provenance import commit


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_commit_says_whether_files_differ_from_it(tmp_path, monkeypatch):
    package = tmp_path / "cpaan" / "core"
    package.mkdir(parents=True)
    (package / "provenance.py").write_text("one")
    monkeypatch.setattr(cpaan.core.provenance, "__file__", str(package / "provenance.py"))
    assert commit() == "unknown"

    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit() == head

    (package / "provenance.py").write_text("two")
    assert commit() == f"{head}-dirty"

    monkeypatch.setenv("CPAAN_COMMIT", "abc123")
    assert commit() == "abc123"
