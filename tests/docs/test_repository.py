"""The repository as a whole: what a clone holds, and that it names no machine of ours."""

from __future__ import annotations

import os
import re
import tomllib

from reading import REPO, tracked

# Joined here, so that this file does not name them either.
PACKAGE_INDEXES = [".".join(parts) for parts in (
    ("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"), ("yarnpkg", "com"),
    ("jfrog", "io"), ("anaconda", "org"), ("maven", "org"),
)]  # fmt: skip
TEXT = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".json", ".sh", ".cfg", ""}


def test_no_file_names_a_package_index() -> None:
    pattern = re.compile(
        "|".join(map(re.escape, [*PACKAGE_INDEXES, "index" + "-url", chr(34) + "resol" + "ved" + chr(34)]))
    )
    texts = {f: f.read_text(errors="replace") for f in tracked() if f.suffix in TEXT}
    assert [str(f.relative_to(REPO)) for f, text in texts.items() if pattern.search(text)] == []
    assert len(texts) > 50


def test_the_constraints_are_exact_versions_and_nothing_else() -> None:
    lines = [line for line in (REPO / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    exact = re.compile(r"^[a-z0-9][a-z0-9._-]*==[0-9][a-zA-Z0-9.+]*$")
    assert [line for line in lines if not exact.match(line)] == []
    assert len(lines) > 80


def test_every_dependency_of_the_package_is_pinned_and_explained() -> None:
    """A dependency that nobody can justify is one too many."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    extras = [one for name, more in project["optional-dependencies"].items() if name != "otel" for one in more]
    listed = [*project["dependencies"], *extras]
    names = {re.split(r"[<>=!~\[; ]", d)[0].lower() for d in listed} - {"swamp"}
    pinned = {line.split("==")[0].replace("_", "-") for line in (REPO / "constraints.txt").read_text().splitlines()}
    decision = (REPO / "docs" / "decisions" / "0001-dependencies.md").read_text()
    assert sorted(names - pinned) == []
    assert sorted(name for name in names if f"`{name}`" not in decision) == []


def test_only_what_a_slim_install_does_without_is_an_extra() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert sorted(project["optional-dependencies"]) == [
        *("all", "arrow", "azure", "duckdb", "gcs", "otel", "pandas", "serve", "spark")
    ]
    assert project["requires-python"] == ">=3.11"


def test_the_continuous_build_runs_what_the_readme_says() -> None:
    script = REPO / ".ci" / "run"
    commands = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert commands == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "exec make test"]
    assert os.access(script, os.X_OK)
    assert "make test" in (REPO / "README.md").read_text()
