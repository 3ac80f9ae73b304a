"""Half a minute of what ``python -m tests.e2e.soak`` does for as long as one likes."""

from __future__ import annotations

import pytest

from tests.e2e.soak import Held, Soak, served


@pytest.mark.slow
def test_answers_stay_and_nothing_is_left_open(model_path: str) -> None:
    """Beside preemptions: the KV cache holds less than the requests that come at once."""
    arguments = ("--max-model-len", "1400", "--num-gpu-blocks-override", "13")
    with served(model_path, *arguments) as server:
        soak = Soak(server)
        soak.run(8, 12, 0)
        before = Held.of(server)
        soak.run(16, 12, 1)
        after = Held.of(server)
        preempted = server.metric("vllm:num_preemptions_total")
    assert not soak.wrong, soak.wrong[0]
    assert set(soak.kinds) == {
        "answered",
        "refused",
        "gone before the answer",
        "gone within the answer",
    }
    assert preempted > 0
    assert after.processes == before.processes
    assert abs(after.files - before.files) < 8  # connections that end a little later
    assert abs(after.threads - before.threads) < 8
