"""The host's OpenAI app without its HTTP server, for Ray Serve.

What: an engine and an app, from the words of a command line.
Why: the host offers its parts to its own server only.
Since: 0.32
Until: a function of the host that makes its app.
"""

from __future__ import annotations

import contextlib
import types
from typing import Any

from cpu_backend.host import command_line


async def start(stack: contextlib.AsyncExitStack, words: list[str]) -> tuple[Any, Any]:
    """(app, engine), which end with ``stack``."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
    from vllm.entrypoints.launchers.app import build_app

    args = command_line.parse(words)
    engine = await stack.enter_async_context(build_async_engine_client(args))
    tasks = await engine.get_supported_tasks()
    app = build_app(args, tasks, engine.model_config)
    await init_app_state(engine, app.state, args, tasks)
    # Where the host's error handler tells its own HTTP server to stop; there is none here.
    app.state.server = types.SimpleNamespace()
    await stack.enter_async_context(app.router.lifespan_context(app))
    return app, engine
