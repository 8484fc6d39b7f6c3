"""Containers outlive a killed owner until somebody reaps them."""

import os
import signal
import subprocess
import sys

import pytest

from pipeline.containers.base_image import BaseImage
from pipeline.containers.engine import Client
from pipeline.containers.reaper import is_orphan, owner_labels, reap
from pipeline.containers.sandbox import Sandbox
from tests.docker.conftest import LIMITS

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

OWNER = """
import sys, time
from pipeline.containers.engine import connect
from pipeline.containers.sandbox import Sandbox, SandboxLimits
print(Sandbox.start(connect(), sys.argv[1], limits=SandboxLimits()).container_id, flush=True)
time.sleep(100)
"""


def test_containers_of_a_killed_owner_are_removed_and_those_of_the_living_kept(client: Client, base: BaseImage) -> None:
    with Sandbox.start(client, base.ref, limits=LIMITS) as mine:
        owner = subprocess.Popen([sys.executable, "-c", OWNER, base.ref], stdout=subprocess.PIPE, text=True)
        assert owner.stdout is not None
        orphan = owner.stdout.readline().strip()
        assert {orphan, mine.container_id} <= containers(client)
        reap(client)
        assert orphan in containers(client)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        assert reap(client) >= 1
        assert orphan not in containers(client) and mine.container_id in containers(client)


def containers(client: Client) -> set[str]:
    return {found["Id"] for found in client.api.containers(all=True)}


def test_only_an_owner_that_is_certainly_gone_makes_an_orphan() -> None:
    labels = owner_labels()
    assert not is_orphan(labels)
    assert is_orphan(labels | {"treadle.owner_start": "1"})
    assert is_orphan(labels | {"treadle.owner_pid": str(2**22 + 1)})
    assert is_orphan(labels | {"treadle.boot_id": "before"})
    assert not is_orphan(labels | {"treadle.boot_id": "before", "treadle.owner_host": "elsewhere"})
    assert not is_orphan(labels | {"treadle.owner_start": "1", "treadle.owner_pid_namespace": "pid:[1]"})
    assert not is_orphan(labels | {"treadle.owner_pid": ""})
