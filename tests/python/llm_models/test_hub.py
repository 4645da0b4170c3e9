# SPDX-License-Identifier: Apache-2.0
"""Models of the Hugging Face hub: from the local cache, or downloaded over HTTP from a hub that this file serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from llm_models.checkpoints import CheckpointError, load_checkpoint
from llm_models.hub import find_checkpoint
from support.serving.deployment import write_tiny_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = "acme/tiny"


class Hub(ThreadingHTTPServer):
    """Serves one model folder as the hub does; remembers the paths that were asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.folder = folder
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_arguments: object) -> None:
        pass

    def _answer(self, *, body: bool) -> None:
        self.server.asked.append(self.path)
        content = self._content(self.path.partition("?")[0])
        self.send_response(404 if content is None else 200)
        if content is None:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", str(len(content or b"")))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{len(content or b"")}-{self.path.rpartition("/")[2]}"')
        self.end_headers()
        if body and content is not None:
            self.wfile.write(content)

    def _content(self, path: str) -> bytes | None:
        names = sorted(file.name for file in self.server.folder.iterdir())
        if path == f"/api/models/{MODEL}/revision/main":
            files = [{"rfilename": name} for name in names]
            return json.dumps({"id": MODEL, "sha": COMMIT, "siblings": files}).encode()
        if path.startswith(f"/api/models/{MODEL}/tree/{COMMIT}"):
            entries = [
                {"type": "file", "path": name, "size": (self.server.folder / name).stat().st_size, "oid": name}
                for name in names
            ]
            return json.dumps(entries).encode()
        name = path.removeprefix(f"/{MODEL}/resolve/{COMMIT}/")
        return (self.server.folder / name).read_bytes() if name in names else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    made = write_tiny_model(tmp_path / "model")
    (made / "pytorch_model.bin").write_bytes(b"weights in another format")
    return made


@pytest.fixture
def hub(folder: Path) -> Iterator[Hub]:
    server = Hub(folder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def find(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Look for a model in a process of its own, which reads the hub's variables when it starts."""

    def run(name: str, *, endpoint: str, **variables: str) -> subprocess.CompletedProcess[str]:
        code = f"from llm_models.hub import find_checkpoint; print(find_checkpoint({name!r}))"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "HF_HOME": str(tmp_path / "home"),
            "HF_ENDPOINT": endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "*",
            **variables,
        }
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    return run


def test_a_model_is_downloaded_once_and_then_found_offline(
    hub: Hub, find: Callable[..., subprocess.CompletedProcess[str]], folder: Path
) -> None:
    done = find(MODEL, endpoint=hub.url)
    assert done.returncode == 0, done.stderr
    snapshot = Path(done.stdout.split()[-1])
    assert {file.name for file in snapshot.iterdir()} == {
        file.name for file in folder.iterdir() if file.suffix in (".json", ".safetensors")
    }
    assert not any("pytorch_model" in path for path in hub.asked if "resolve" in path)
    wanted, found = load_checkpoint(folder), load_checkpoint(snapshot)
    np.testing.assert_array_equal(found.tensor("final_norm"), wanted.tensor("final_norm"))
    asked = len(hub.asked)
    again = find(MODEL, endpoint=hub.url, HF_HUB_OFFLINE="1")
    assert again.stdout == done.stdout
    assert len(hub.asked) == asked


def test_offline_nothing_is_asked_for(hub: Hub, find: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = find(MODEL, endpoint=hub.url, HF_HUB_OFFLINE="1")
    assert done.returncode != 0
    assert f"CheckpointError: model '{MODEL}' (revision main) is neither a path nor in the local cache" in done.stderr
    assert hub.asked == []


def test_a_model_that_the_hub_does_not_have(hub: Hub, find: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = find("acme/other", endpoint=hub.url)
    assert done.returncode != 0
    assert "CheckpointError: model 'acme/other'" in done.stderr
    assert hub.asked


def test_snapshots_with_weights_are_taken_from_the_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "hub" / "models--some--model"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc\n")
    (model / "snapshots" / "empty").mkdir(parents=True)
    (model / "snapshots" / "abc").symlink_to(folder)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    wanted = model / "snapshots" / "abc"
    assert find_checkpoint("some/model") == find_checkpoint("some/model", revision="abc") == wanted
    assert find_checkpoint("some/model", cache_dir=tmp_path / "hub") == wanted
    for name, revision in (("some/model", "other"), ("some/model", "empty"), ("some/other", None)):
        with pytest.raises(CheckpointError, match="neither a path nor in the local cache"):
            find_checkpoint(name, revision=revision)
    assert find_checkpoint(str(folder)) == folder
    with pytest.raises(CheckpointError, match="is a path, which has no revision 'abc'"):
        find_checkpoint(str(folder), revision="abc")
