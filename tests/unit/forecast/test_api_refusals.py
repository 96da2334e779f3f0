"""What the API server would refuse is refused in its words: the plan and the double say the same
(tests/cluster/test_api_refusals asks a real server)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordra.api import objects
from koordra.cel.selectors import admission_error
from koordra.compat.settings import Settings
from koordra.controller.explain.forecast.admission import admitted
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.apiserver.server import ApiServer
from tests.fakes.refused_claims import CASES, refused_claim, refused_object


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeClient]:
    folder: Path = tmp_path_factory.mktemp("api")
    server = ApiServer(folder / "api", compile_cel=admission_error)
    server.start()
    server.write_kubeconfig(folder / "kubeconfig")
    yield new_client(str(folder / "kubeconfig"))
    server.close()


@pytest.mark.parametrize("case", CASES)
def test_the_plan_says_what_the_server_says(client: KubeClient, case: str) -> None:
    kind, obj = refused_object(case)
    with pytest.raises(ApiError) as told:
        client.create(kind, obj, strict=True)
    (refused,) = admitted([obj], Settings()).refused
    words = refused.why.partition("compilation failed")[0]  # what follows is the compiler's
    assert words in str(told.value)


@pytest.mark.parametrize("spelled", ["device.driver == ", "device.nothing == 'a'"])
def test_an_expression_that_does_not_compile_is_refused_in_the_server_s_words(spelled: str) -> None:
    claim = refused_claim("an-empty-selector")
    claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": spelled}}]
    (refused,) = admitted([claim], Settings()).refused
    where = "spec.devices.requests[0].exactly.selectors[0].cel.expression"
    assert f'is invalid: {where}: Invalid value: "{spelled}": compilation failed' in refused.why


def test_admin_access_is_for_namespaces_that_say_so() -> None:
    claim = refused_claim("admin-access")
    place = {"kind": "Namespace", "metadata": {"name": "default", "labels": {}}}
    place["metadata"]["labels"] = {"resource.kubernetes.io/admin-access": "true"}
    assert not admitted([place, claim], Settings()).refused
    stored = {**claim, "metadata": {**objects.metadata(claim), "uid": "u"}}
    assert not admitted([stored], Settings()).refused, "it was stored when it was allowed"
