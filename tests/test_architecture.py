"""The shape of the code, as ARCHITECTURE.md tells it, and what it takes to build it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"

# Who may use whom although it comes later, and why ARCHITECTURE.md says so.
EXCEPTIONS = {("error", "job"), ("shared", "claim")}


def order() -> list[str]:
    rows = re.findall(r"^\| `(\w+)(?:\.rs|/)` \|", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), re.MULTILINE)
    return list(dict.fromkeys(rows))


def modules() -> list[str]:
    return sorted({path.stem for path in SOURCE.iterdir()} - {"lib"})


def test_each_module_stands_in_the_table_of_files() -> None:
    assert sorted(order()) == modules()


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_from_those_above_it(module: str) -> None:
    files = [*SOURCE.glob(f"{module}.rs"), *SOURCE.glob(f"{module}/**/*.rs")]
    used = {name for file in files for name in re.findall(r"\bcrate::(\w+)::", file.read_text(encoding="utf-8"))}
    place = order().index(module)
    above = set(order()[: place + 1])
    later = {(module, name) for name in used & set(order()) if name not in above}
    assert later <= EXCEPTIONS


def test_no_dependency_needs_a_newer_rust_than_this_crate_says() -> None:
    if shutil.which("cargo") is None:
        pytest.skip("NOT TESTED: there is no cargo")
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    metadata = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    needed = {
        package["name"]: tuple(map(int, package["rust_version"].split(".")[:2]))
        for package in json.loads(metadata)["packages"]
        if package["rust_version"]
    }
    assert max(needed.values()) == needed["pacchettino"]
