"""The examples for Compose, Kubernetes and KubeRay, against their schemas and this project's own
images, servers and proxies."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "examples/compose/compose.yaml"
SERVER = ROOT / "examples/kubernetes/server.yaml"
RAY_SERVICE = ROOT / "examples/ray_serve/kuberay.yaml"
DOCKERFILE = (ROOT / "Dockerfile.cpu").read_text()
VERSIONS = ("1.28.0", "1.35.0")  # of Kubernetes


def server() -> dict[str, dict[str, Any]]:
    """The objects of the Kubernetes example by kind."""
    return {item["kind"]: item for item in yaml.safe_load_all(SERVER.read_text())}


def ray_pods() -> Iterator[dict[str, Any]]:
    """The pods of the Ray cluster, as if each stood alone."""
    cluster = yaml.safe_load(RAY_SERVICE.read_text())["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        spec = group["template"]["spec"]
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}


def instruction(name: str) -> str:
    """The last value of an instruction in the Dockerfile."""
    return re.findall(rf"^{name} +(.*(?:\\\n.*)*)", DOCKERFILE, re.MULTILINE)[-1]


@pytest.mark.needs("kubernetes-validate")
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_examples_fit_the_schemas(version: str) -> None:
    import kubernetes_validate

    for item in (*server().values(), *ray_pods()):
        kubernetes_validate.validate(item, version, strict=True)
        broken = {**item, "spec": {**item["spec"], "replica": 1}}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, version, strict=True)


@pytest.mark.needs("check-jsonschema")
def test_compose_example_fits_the_schema(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(COMPOSE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    broken = tmp_path / "compose.yaml"
    broken.write_text(COMPOSE.read_text().replace("network_mode:", "network_mod:"))
    assert subprocess.run([*command, str(broken)], capture_output=True).returncode == 1


def test_kubernetes_example_asks_for_what_the_image_gives() -> None:
    pod = server()["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    # All that may be written is mounted.
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"/cache", "/tmp", "/dev/shm"}
    assert instruction("VOLUME") == "/cache"
    assert {volume["name"] for volume in pod["volumes"]} == {
        mount["name"] for mount in container["volumeMounts"]
    }
    [port] = container["ports"]
    assert str(port["containerPort"]) == instruction("EXPOSE")
    [served] = server()["Service"]["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    assert container["resources"]["requests"] == container["resources"]["limits"]


def test_compose_example_puts_servers_where_the_proxy_looks() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    proxy = (COMPOSE.parent / services["proxy"]["volumes"][0].partition(":")[0]).read_text()
    looks = set(re.findall(r"server (127\.0\.0\.1:\d+)", proxy))
    engines = [service for name, service in services.items() if name.startswith("engine-")]
    listens = set()
    for engine in engines:
        assert engine["network_mode"] == "service:proxy"
        _, host_option, host, port_option, port = engine["command"]
        assert (host_option, port_option) == ("--host", "--port")
        listens.add(f"{host}:{port}")
        assert engine["environment"]["HEALTH_URL"] == f"http://{host}:{port}/health"
        assert (COMPOSE.parent / engine["build"]["context"]).resolve() == ROOT
    assert listens == looks
    assert services["proxy"]["ports"] == [
        f"{port}:{port}" for port in re.findall(r"listen (\d+)", proxy)
    ]


def test_ray_service_is_one_that_ray_and_this_project_read() -> None:
    from ray.serve.schema import ServeDeploySchema

    from cpu_backend.ray_serve.settings import Settings

    text = yaml.safe_load(RAY_SERVICE.read_text())["spec"]["serveConfigV2"]
    [application] = ServeDeploySchema.model_validate(yaml.safe_load(text)).applications
    assert application.import_path == "cpu_backend.ray_serve:build"
    assert Settings(**application.args).model == application.args["model"]
    for pod in ray_pods():
        [container] = pod["spec"]["containers"]
        assert container["securityContext"]["runAsNonRoot"]


def test_image_runs_as_a_user_that_is_not_root() -> None:
    assert instruction("USER") == "1000:0"
    assert instruction("ENTRYPOINT") == '["vllm", "serve"]'
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "g++" not in final
