"""What a type checker finds in code that declares and calls tools."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("typed_page.py")
ROOT = PAGE.parents[2]


def test_pyright_finds_each_mistake_of_the_page_and_no_other(tmp_path: Path) -> None:
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT / "src")],
    }
    (tmp_path / PAGE.name).write_text(PAGE.read_text())
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pyright",
            "--outputjson",
            "-p",
            str(tmp_path),
            "--pythonpath",
            sys.executable,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    found = json.loads(run.stdout)["generalDiagnostics"]
    expected = {
        (number, match.group(1))
        for number, line in enumerate(PAGE.read_text().splitlines(), 1)
        if (match := re.search(r"# error: (\w+)$", line))
    }
    seen = {(item["range"]["start"]["line"] + 1, item.get("rule")) for item in found}
    assert expected - seen == set(), found
    # One mistake may be told in more than one way.
    assert {line for line, _ in seen} == {line for line, _ in expected}, found
