import subprocess
from pathlib import Path

from cpaan.core.provenance import commit


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_commit_says_whether_files_differ_from_it(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("one")
    assert commit(tmp_path) == "unknown"

    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit(tmp_path) == head

    file.write_text("two")
    assert commit(tmp_path) == f"{head}-dirty"

    monkeypatch.setenv("CPAAN_COMMIT", "abc123")
    assert commit(tmp_path) == "abc123"
