"""What the user has trusted: by kind, place and hash, in a file that only the user may write."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from turnlog.system import Trusted, TrustStore, config_folder


def test_trust_holds_for_one_kind_one_place_and_one_content(tmp_path: Path) -> None:
    store, file = TrustStore(tmp_path / "config" / "trust.json"), tmp_path / ".mcp.json"
    assert store.status("mcp", file, "{}") == "new"
    store.trust("mcp", file, "{}")
    again = TrustStore(tmp_path / "config" / "trust.json")
    assert again.trusted("mcp", file, b"{}")
    assert again.status("mcp", file, '{"other": 1}') == "changed"
    assert again.status("hooks", file, "{}") == "new"
    assert again.status("mcp", tmp_path / "elsewhere", "{}") == "new"
    assert [(each.kind, each.path) for each in again.entries()] == [("mcp", str(file.resolve()))]
    assert again.forget("mcp", file) and not again.forget("mcp", file)
    assert store.entries() == []


def test_a_link_is_trusted_for_the_file_that_it_leads_to(tmp_path: Path) -> None:
    store, real, link = TrustStore(tmp_path / "t.json"), tmp_path / "real", tmp_path / "link"
    real.write_text("x")
    link.symlink_to(real)
    store.trust("skills", link, "x")
    assert store.trusted("skills", real, "x")
    link.unlink()
    link.symlink_to(tmp_path / "other")
    assert store.status("skills", link, "x") == "new"


def test_the_file_is_for_the_user_alone_and_one_that_others_may_write_trusts_nothing(tmp_path: Path) -> None:
    store = TrustStore(tmp_path / "config" / "trust.json")
    store.trust("mcp", tmp_path / "a", "x")
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert store.path.parent.stat().st_mode & 0o777 == 0o700
    store.path.chmod(0o666)
    assert not store.trusted("mcp", tmp_path / "a", "x")


@pytest.mark.parametrize("broken", ["", "[]", '{"mcp": 1}', '{"mcp": {"/a": 1}}', "\x00", "[" * 100_000])
def test_a_broken_file_trusts_nothing_and_is_replaced(tmp_path: Path, broken: str) -> None:
    store = TrustStore(tmp_path / "trust.json")
    store.path.write_text(broken)
    store.path.chmod(0o600)
    assert store.entries() == [] and not store.trusted("mcp", "/a", "x")
    store.trust("mcp", "/a", "x")
    assert store.trusted("mcp", "/a", "x")


def test_nothing_is_lost_when_several_change_it_at_once(tmp_path: Path) -> None:
    def trust(number: int) -> None:
        TrustStore(tmp_path / "trust.json").trust("mcp", f"/{number}", "x")

    threads = [threading.Thread(target=trust, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = TrustStore(tmp_path / "trust.json").entries()
    assert [each.path for each in found] == [f"/{number}" for number in range(8)]
    assert found[0] == Trusted("mcp", "/0", found[0].hash) and found[0].hash.startswith("sha256-")


@pytest.mark.skipif(os.name != "posix", reason="XDG is a matter of POSIX systems")
def test_the_config_folder_is_never_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert config_folder() == tmp_path / "xdg" / "turnlog"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert config_folder() == tmp_path / "home" / ".config" / "turnlog"
    assert TrustStore().path == tmp_path / "home" / ".config" / "turnlog" / "trust.json"
