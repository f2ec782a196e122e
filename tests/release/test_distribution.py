"""What is published: a wheel and an sdist that hold everything, and run in an environment that has nothing of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import swamp

REPO = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in REPO.glob("plugins/*/pyproject.toml"))


def run(*words: str | Path, **more) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=200, **more)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The sdist and the wheel that is made of that sdist, as `python -m build` does it; of plug-ins the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "-o", folder)
    run(*build, REPO)
    for plugin in PLUGINS:
        run(*build, "--wheel", plugin)
    return folder


@pytest.fixture(scope="module")
def clean(built, tmp_path_factory) -> Path:
    """The `bin` of an environment with our wheels installed. What others wrote is borrowed, which saves a gigabyte."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "-q", "--no-deps", "--no-index"]
    run(*pip, *built.glob("*.whl"), env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    site = next(home.glob("lib/python3*/site-packages"))
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return home / "bin"


def files_of_the_package() -> set[str]:
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "src/swamp", cwd=REPO)
    return {name.removeprefix("src/") for name in listed.split("\0") if name and (REPO / name).is_file()}


def test_the_wheel_holds_every_file_of_the_package_and_no_other(built):
    with zipfile.ZipFile(next(built.glob("swamp-*.whl"))) as wheel:
        names = set(wheel.namelist())
    ours = {name for name in names if ".dist-info/" not in name}
    assert ours == files_of_the_package()
    assert "swamp/py.typed" in ours and any(name.endswith(".html") for name in ours)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_can_be_read_and_built_without_the_repository(built):
    """The wheel above was built from it. Tests, benchmarks and what git ignores stay at home."""
    with tarfile.open(next(built.glob("swamp-*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "docs/design/FORMAT.md"} <= names
    assert {name.partition("/")[0] for name in names} & {"tests", "bench", "plugins", ".venv", ".tools"} == set()


def test_the_installed_program_runs(clean, tmp_path):
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "SWAMP_HOME": str(tmp_path / "home")}
    assert run(clean / "swamp", "--version", env=env, cwd=tmp_path).split()[-1] == swamp.__version__
    where = run(clean / "python", "-c", "import swamp; print(swamp.__file__)", env=env, cwd=tmp_path)
    assert where.startswith(str(clean.parent))
    run(clean / "swamp", "repo", "init", env=env, cwd=tmp_path)
    (tmp_path / "f.json").write_text('{"hosts": 3}')
    run(clean / "swamp", "data", "put", "m", "n", "f.json", env=env, cwd=tmp_path)
    assert "hosts" in run(clean / "swamp", "data", "get", "m", "n", env=env, cwd=tmp_path)


def test_the_installed_plugins_are_found(clean, tmp_path):
    code = "from swamp.extras import find\nfor kind in %r: print(find('datastores', kind).load().__module__)"
    kinds = ["@swamp-postgres/datastore", "@swamp-mongodb/datastore"]
    assert run(clean / "python", "-c", code % kinds, cwd=tmp_path).split() == ["swamp_postgres", "swamp_mongodb"]
