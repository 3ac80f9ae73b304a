"""The scaling model and the simulated replicas: what must hold whatever was measured."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scaling import report
from benchmarks.scaling.__main__ import INPUTS
from benchmarks.scaling.chart import Panel, svg, ticks
from benchmarks.scaling.model import BYTES, MODELS, Costs, Node, decode, prompt
from benchmarks.scaling.replicas import (
    POLICIES,
    Engine,
    Limits,
    Request,
    Result,
    Service,
    Simulation,
    Traffic,
    capacity,
)
from benchmarks.scaling.servers import REFERENCE, SERVERS

NODE = Node(cores=64, bytes_per_s=160e9, core_bytes_per_s=20e9, core_flop_per_s=80e9)
COSTS = Costs(
    read_share=0.9,
    flop_share=0.8,
    decode_overhead=1e-3,
    prompt_overhead=1e-3,
    ranks_overhead=1e-3,
    eager_layer=1e-4,
    serial_loop=1e-7,
    barrier_turn=1e-7,
    meeting=5e-6,
    meeting_rank=2e-6,
    sum_bytes_per_s=2e9,
)
FREE = dataclasses.replace(
    COSTS,
    decode_overhead=0.0,
    prompt_overhead=0.0,
    ranks_overhead=0.0,
    eager_layer=0.0,
    serial_loop=0.0,
    barrier_turn=0.0,
    meeting=0.0,
    meeting_rank=0.0,
)
SERVICE = Service(step=0.01, decode_token=0.001, prompt_token=0.001)


@pytest.fixture(scope="module")
def inputs() -> dict[str, Any]:
    return json.loads(INPUTS.read_text())


# ---- the model -----------------------------------------------------------------------------------


def test_sizes_are_those_of_the_published_models() -> None:
    for name, billions in (("Llama-3.2-1B", 1.236), ("Llama-3.1-8B", 8.03)):
        model, shape = MODELS[name], MODELS[name].shape
        tied = name == "Llama-3.2-1B"
        weights = shape.layer_weights + shape.head_weights * (1 if tied else 2)
        norms = (2 * model.layers + 1) * model.hidden
        assert (weights + norms) / 1e9 == pytest.approx(billions, abs=0.005)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("predict", [decode, prompt])
def test_more_cores_never_hurt_where_meeting_is_free(name: str, predict: Any) -> None:
    times = [predict(NODE, FREE, MODELS[name], cores).seconds for cores in range(1, 65)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[-1]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_nothing_is_faster_than_the_limits_allow(name: str, ranks: int) -> None:
    shape = MODELS[name].shape
    weights = shape.layer_weights + shape.head_weights
    for cores in (1, 3, 16, 64):
        for costs in (COSTS, FREE):
            step = decode(NODE, costs, MODELS[name], cores, ranks)
            bandwidth = ranks * min(cores * NODE.core_bytes_per_s, NODE.bytes_per_s)
            assert weights * BYTES / step.seconds < bandwidth
            whole = prompt(NODE, costs, MODELS[name], cores, ranks, tokens=512)
            flop = 2 * 512 * shape.layer_weights
            assert flop / whole.seconds < ranks * cores * NODE.core_flop_per_s


def test_every_cost_counts_and_names_what_bounds() -> None:
    model = MODELS["Llama-3.2-1B"]
    plain = decode(NODE, COSTS, model, 16, 2)
    assert plain.seconds == pytest.approx(sum(plain.parts.values()))
    for field, value, bound in (
        ("decode_overhead", 1.0, "host"),
        ("serial_loop", 1.0, "single thread"),
        ("barrier_turn", 1.0, "barriers"),
        ("meeting", 1.0, "sums over ranks"),
        ("sum_bytes_per_s", 1.0, "sums over ranks"),
        ("ranks_overhead", 1.0, "several ranks"),
    ):
        slow = decode(NODE, dataclasses.replace(COSTS, **{field: value}), model, 16, 2)
        assert slow.bound == bound
        assert slow.seconds > plain.seconds
    assert decode(NODE, FREE, model, 1).bound == "cores' reads"
    assert decode(NODE, FREE, model, 64).bound == "memory"
    assert decode(NODE, FREE, model, 64, requests=512).bound == "multiply-adds"
    assert prompt(NODE, FREE, model, 64).bound == "multiply-adds"


def test_one_rank_pays_for_no_other() -> None:
    one = decode(NODE, COSTS, MODELS["Llama-3.2-1B"], 16)
    assert not {"sums over ranks", "several ranks"} & set(one.parts)
    further = [decode(NODE, COSTS, MODELS["Llama-3.2-1B"], 1, ranks).parts for ranks in (2, 4, 8)]
    sums = [parts["sums over ranks"] for parts in further]
    assert sums == sorted(sums)
    assert sums[0] < sums[-1]


def test_costs_come_from_the_probe(inputs: dict[str, Any]) -> None:
    for name in MODELS:
        costs = report.costs_of(inputs, name)
        assert 0 < costs.read_share <= 1
        assert 0 < costs.flop_share <= 1
        assert all(value >= 0 for value in dataclasses.asdict(costs).values())
        assert costs.sum_bytes_per_s > 0
    changed = json.loads(json.dumps(inputs))
    changed["kernels"][str(inputs["cores"])]["loop"]["shared_s"] += 1e-6
    more = Costs.of(changed, "Llama-3.2-1B").barrier_turn
    less = report.costs_of(inputs, "Llama-3.2-1B").barrier_turn
    assert more - less == pytest.approx(1e-6 / (inputs["cores"] - 1))


def test_server_nodes_share_what_the_sockets_have() -> None:
    for server in SERVERS:
        assert server.node(1, 1e9).cores == server.cores
        assert server.socket_bytes_per_s < server.channels * 8 * server.mega_transfers * 1e6
    for nodes in (2, 4, 8):
        node = REFERENCE.node(nodes, 1e9)
        assert node.cores * nodes == 256
        assert node.bytes_per_s * nodes == pytest.approx(2 * REFERENCE.socket_bytes_per_s)


# ---- tables and pictures -------------------------------------------------------------------------


def test_layouts_that_do_not_fit_are_left_out(inputs: dict[str, Any]) -> None:
    def at(cores: int, nodes: int) -> Any:
        return report.point(inputs, REFERENCE, "Llama-3.1-8B", cores, nodes, False)

    assert at(256, 1) is None
    assert at(2, 4) is None
    assert at(256, 8) is not None


def test_the_document_holds_what_the_model_says(inputs: dict[str, Any]) -> None:
    document = (Path(report.__file__).parents[2] / "docs" / "scaling.md").read_text()
    tables = {
        "validation": report.validation_table(inputs),
        "grid": report.grid(inputs, "Llama-3.1-8B", False),
        "servers": report.servers_table(inputs),
        "service": report.service_table(inputs),
    }
    assert [name for name, content in tables.items() if content not in document] == []


def test_tables_are_put_between_their_marks(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("a\n<!-- one -->\nold\n<!-- end -->\nb\n<!-- two -->\nold\n<!-- end -->\n")
    report.replace_table(document, "two", "new \\1")
    assert document.read_text().endswith("b\n<!-- two -->\nnew \\1\n<!-- end -->\n")
    assert "<!-- one -->\nold\n" in document.read_text()
    with pytest.raises(SystemExit, match="0 places for 'three'"):
        report.replace_table(document, "three", "")


def test_figures_have_three_digits() -> None:
    found = [report.figure(value) for value in (1234.5, 12.345, 9.996, 0.01234, 0.0)]
    assert found == ["1,230", "12.3", "10.00", "0.0123", "0"]


def test_pictures_are_svg_with_a_line_per_name(inputs: dict[str, Any]) -> None:
    lines = {"a <b>": [(1.0, 1.0), (10.0, 100.0)], "c": [(1.0, 2.0), (10.0, 3.0)]}
    root = ET.fromstring(svg("t", "c", [Panel("p", "x", lines), Panel("q", "x", lines, False)]))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"t", "p", "q", "a <b>", "c"} <= set(texts)
    shown = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    curves = [line for line in shown if line.get("stroke-width") == "2"]
    assert len(curves) == 2 + 2 * 2  # the legend's as well
    ET.fromstring(report.model_picture(inputs))


def test_ticks_are_round_and_inside() -> None:
    assert ticks(1.0, 1000.0, True) == [1, 10, 100, 1000]
    assert ticks(0.0, 0.9, False) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert ticks(0.0, 47.0, False) == [0, 10, 20, 30, 40]


# ---- replicas ------------------------------------------------------------------------------------


def simulate(policy: str, replicas: int = 8, load: float = 1.8, **changed: Any) -> Result:
    rate = load * replicas * capacity(SERVICE, Traffic())
    arguments = {"seconds": 60.0, "service": SERVICE, **changed}
    return Simulation(policy, replicas, rate, **arguments).run()


def deterministic(result: Result) -> Result:
    return dataclasses.replace(result, decisions_per_s=0.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_ends_once(policy: str) -> None:
    rate = 8 * 8 * capacity(SERVICE, Traffic())
    simulation = Simulation(
        policy, 8, rate, 20.0, SERVICE, limits=Limits(max_ongoing=4, max_waiting=5)
    )
    result = simulation.run()
    assert result.refused > 0
    assert result.arrived == result.finished + result.refused
    assert len({id(request) for request in simulation.finished}) == result.finished
    assert not simulation.queue
    assert set(simulation.loads.values()) == {0}
    assert not any(engine.running or engine.waiting for engine in simulation.engines)
    for request in simulation.finished:
        assert request.to_write == request.to_compute == 0
        assert request.arrived < request.first <= request.ended


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_result(policy: str) -> None:
    first = simulate(policy, replicas=4)
    assert deterministic(simulate(policy, replicas=4)) == deterministic(first)
    assert deterministic(simulate(policy, replicas=4, seed=2)) != deterministic(first)


def test_the_router_finds_more_than_others_and_answers_earlier() -> None:
    results = {policy: simulate(policy) for policy in POLICIES}
    ours = results.pop("prefix")
    for other in results.values():
        assert ours.hit_rate > other.hit_rate + 0.1
        assert ours.first_p50 < other.first_p50
        assert ours.tokens_per_s > other.tokens_per_s


def test_policies_are_equal_where_there_is_no_choice() -> None:
    results = [deterministic(simulate(policy, replicas=1)) for policy in POLICIES]
    assert all(result == results[0] for result in results)


def test_a_queue_that_counts_nothing_is_no_limit_to_affinity() -> None:
    """With busy_tokens of 0 the real policy never looks at the load; requests must then wait."""
    usual = simulate("prefix", traffic=Traffic(systems=1))
    blind = simulate("prefix", traffic=Traffic(systems=1), limits=Limits(busy_tokens=0))
    assert blind.first_p99 > 2 * usual.first_p99


def test_throughput_ends_at_the_capacity() -> None:
    traffic = Traffic(turns=1, system_tokens=0, user_tokens=63)  # shorter than a chunk: no hits
    rate = 4 * 2 * capacity(SERVICE, traffic)
    result = Simulation("least loaded", 2, rate, 200.0, SERVICE, traffic).run()
    most = 2 * traffic.answer_tokens * capacity(SERVICE, traffic)
    assert result.hit_rate == 0
    assert 0.85 * most < result.tokens_per_s < 1.01 * most


def test_a_step_takes_what_its_tokens_cost() -> None:
    engine = Engine(Service(step=1.0, decode_token=0.1, prompt_token=0.01, max_step_tokens=100))
    for number in range(2):
        engine.waiting.append(Request(number, 0, 0, [1, 2], 130, 0.0, to_write=2))
    seconds, writing = engine.step()
    assert (seconds, writing) == (pytest.approx(2.0), [])
    # The second one found both chunks of the first one's prompt: only two tokens are its own.
    assert [request.found for request in engine.running] == [0, 128]
    seconds, writing = engine.step()
    assert seconds == pytest.approx(1.32)
    assert writing == engine.running
    assert engine.step()[0] == pytest.approx(1.2)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of random"):
        Simulation("best", 1, 1.0, 1.0, SERVICE)
