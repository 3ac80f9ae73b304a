"""What a server makes while its engine starts: the app, if the host asks for the same one."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.entrypoints.launchers.app import build_app
from vllm.renderers import hf, renderer_from_config

from cpu_backend.host import command_line, server_parts


@pytest.fixture(scope="module")
def server(model_path: str) -> tuple[Any, Any]:
    """(arguments, renderer) of `vllm serve MODEL`."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    arguments = command_line.parse([model_path, "--device", "cpu", "--max-model-len", "256"])
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    return arguments, renderer_from_config(config)


@pytest.fixture
def preparation(server: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of that server, begun, in the place of this process's."""
    preparation = server_parts._Preparation()
    monkeypatch.setattr(server_parts, "_preparation", preparation)
    preparation.arguments, renderer = server
    preparation.begin(renderer)
    return preparation


def paths(app: Any) -> set[str]:
    return {route.path for route in app.routes}


def test_the_app_that_was_made_is_taken_once(preparation: Any, server: tuple[Any, Any]) -> None:
    arguments, renderer = server
    preparation.thread.join()
    made = preparation.app
    assert "/v1/chat/completions" in paths(made)
    assert build_app(arguments, ("generate",), renderer.model_config) is made
    again = build_app(arguments, ("generate",), renderer.model_config)
    assert again is not made
    assert paths(again) == paths(made)


def test_other_tasks_or_arguments_get_their_own(preparation: Any, server: tuple[Any, Any]) -> None:
    arguments, renderer = server
    preparation.thread.join()
    assert preparation.app is not None
    app = build_app(arguments, ("embed",), renderer.model_config)
    assert "/v1/embeddings" in paths(app)
    assert "/v1/chat/completions" not in paths(app)


def test_the_chat_template_is_known_afterwards(preparation: Any, server: tuple[Any, Any]) -> None:
    preparation.thread.join()
    names = {key[0] for key in hf._PROCESSOR_CHAT_TEMPLATES}
    assert server[1].tokenizer.name_or_path in names


def test_without_arguments_of_a_server_nothing_is_made(server: tuple[Any, Any]) -> None:
    preparation = server_parts._Preparation()
    preparation.begin(server[1])
    assert preparation.thread is None
