"""The server builds what answers requests while its engine starts.

What: when the engines have been started (``MPClient._start_mm_warmup``), a thread of ``vllm serve``
    makes what ``build_app`` will be asked for, and looks for the model's chat template.
Why: the host waits for its engine first, on a core that has nothing else to do.
Since: 0.30
Until: it does so.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from cpu_backend.host import process
from cpu_backend.host.seam import patch, rely_on

APP = "vllm.entrypoints.launchers.app"
# What a text model that generates is asked for; of others only its class knows.
TASKS = ("generate",)

rely_on("vllm.renderers.hf", "resolve_chat_template(tokenizer, chat_template, tools, *, ...)")


class _Preparation:
    """Of the one server of this process."""

    arguments: Any = None  # of the command line
    thread: threading.Thread | None = None
    app: Any = None

    def begin(self, renderer: Any) -> None:
        model = renderer.model_config
        if self.arguments is None or model.runner_type != "generate" or model.is_multimodal_model:
            return
        # A server that is stopped meanwhile waits for it, a second at most: a thread that Python's
        # end finds in a library's code may take the process down.
        self.thread = threading.Thread(target=self._prepare, args=(renderer,))
        self.thread.start()

    def _prepare(self, renderer: Any) -> None:
        """What fails here is left to the host, which does it again and says why."""
        model = renderer.model_config
        from vllm.entrypoints.launchers.app import build_app

        with contextlib.suppress(Exception):
            self.app = build_app(self.arguments, TASKS, model)
        with contextlib.suppress(Exception):
            is_ending = not threading.main_thread().is_alive()
            if not (is_ending or renderer.tokenizer is None or self.arguments.chat_template):
                from vllm.renderers.hf import resolve_chat_template

                # Which loads the tokenizer once more, and keeps what it has found.
                resolve_chat_template(renderer.tokenizer, None, None, model_config=model)

    def take(self, arguments: Any, tasks: Any) -> Any:
        """The app, if it is the one that was made; None otherwise."""
        if self.thread is None or threading.current_thread() is self.thread:
            return None
        self.thread.join()
        app, self.app = self.app, None
        return app if arguments is self.arguments and tuple(tasks or ()) == TASKS else None


_preparation = _Preparation()


@patch(
    "vllm.entrypoints.launchers.api_server.entry",
    "run_server_worker(listen_address, sock, args, ...)",
)
def note_arguments(original: Any) -> Any:
    """With which the app will be built."""

    async def run_server_worker(address: Any, sock: Any, args: Any, *a: Any, **kw: Any) -> Any:
        if process.serves():
            _preparation.arguments = args
        return await original(address, sock, args, *a, **kw)

    return run_server_worker


@patch("vllm.v1.engine.core_client", "MPClient._start_mm_warmup(self)")
def engines_started(original: Any) -> Any:
    """No process is forked from here on."""

    def start(self: Any) -> None:
        original(self)
        if self._renderer is not None:
            _preparation.begin(self._renderer)

    return start


@patch(APP, "build_app(args, supported_tasks, model_config)")
def build(original: Any) -> Any:
    """Once for each server."""

    def build_app(args: Any, supported_tasks: Any = None, model_config: Any = None) -> Any:
        ready = _preparation.take(args, supported_tasks)
        return original(args, supported_tasks, model_config) if ready is None else ready

    return build_app
