"""Images hold what tests need and none of the repository's code, whatever its build tries."""

import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.containers import base_image
from pipeline.containers.base_image import BaseImage, BaseImageConfig, ensure_base_image, find_image
from pipeline.containers.engine import Client, connect
from pipeline.containers.images import build_image, ensure_image, refuse_copies
from pipeline.containers.sandbox import Sandbox
from pipeline.containers.wheelhouse import UnbuildableError, ensure_wheelhouse
from pipeline.errors import InfrastructureError, UserError
from pipeline.store import Lake
from pipeline.trees import Tree
from pipeline.types import Repo, RepoImage
from tests.docker.conftest import LIMITS, SOLVED, WHEELHOUSES, make_repo

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

LOOK = """
import importlib.metadata as m, json, os, sysconfig
site = sysconfig.get_paths()["purelib"]
print(json.dumps([m.version("knots"), m.metadata("knots").get_payload() or m.metadata("knots")["Description"] or ""]))
print(sorted(name for name in os.listdir(site) if "knots" in name or name.endswith(".pth")))
import knots.text, pytest, pytest_timeout
print(knots.text.__file__, os.getcwd(), sorted(os.listdir("/wheelhouse") + os.listdir("/tmp")))
"""


def built(client: Client, lake: Lake, base: BaseImage, changes: Tree) -> RepoImage:
    """Files laid over those of the small package -> its image, under a version that no other test has."""
    version = f"3.{secrets.randbelow(10**9)}"
    return build_image(lake, client, make_repo(lake, SOLVED | changes, version), base, WHEELHOUSES)


def test_image_holds_metadata_and_tools_and_no_code(client: Client, image: RepoImage, repo: Repo) -> None:
    with Sandbox.start(client, image.ref, limits=LIMITS) as sandbox:
        empty = sandbox.execute("find /testbed -type f; python -c 'import knots'; knots", timeout_sec=20)
        sandbox.write_tree(SOLVED, "/testbed", uid=1000)
        looked = sandbox.execute(["python", "-P", "-c", LOOK], timeout_sec=20).output.splitlines()
        script = sandbox.execute("knots", timeout_sec=20)
    assert "No module named 'knots'" in empty.output and "/testbed/" not in empty.output
    version = repo.source.version
    assert looked[0] == f'["{version}", ""]'
    assert looked[1] == str(["distutils-precedence.pth", f"knots-{version}.dist-info", "knots.treadle.pth"])
    assert looked[2] == "/testbed/knots/text.py /testbed []"
    assert script.output == "hello-loom\n"


def test_image_does_not_carry_the_owner_of_its_building_site(client: Client, image: RepoImage) -> None:
    labels = client.api.inspect_image(image.ref)["Config"]["Labels"]
    assert labels["treadle.owner_pid"] == "" and labels["treadle.image"] == "repo"


def test_equal_recipes_share_an_image_and_a_lost_one_is_rebuilt(
    client: Client, lake: Lake, repo: Repo, image: RepoImage, base: BaseImage
) -> None:
    assert build_image(lake, client, repo, base, WHEELHOUSES) == image
    client.api.remove_image(image.ref, force=True)
    ensure_image(lake, client, repo, image, base, WHEELHOUSES)
    assert find_image(client, image.ref)


def test_an_image_that_cannot_be_rebuilt_says_what_to_do(
    client: Client, lake: Lake, repo: Repo, image: RepoImage, base: BaseImage
) -> None:
    lost = replace(image, ref="treadle-repo:lost", recipe_hash="another")
    with pytest.raises(UserError, match=r"treadle-repo:lost of knots .* remove .*stages/images and run again"):
        ensure_image(lake, client, repo, lost, base, WHEELHOUSES)


def test_hostile_build_leaves_nothing_in_the_image(client: Client, lake: Lake, base: BaseImage) -> None:
    code = (
        SOLVED["setup.py"]
        + b"""
import atexit, glob, socket, zipfile
marks = []
site = "/opt/venv/lib/python3.11/site-packages"
for place in ("/usr/bin/python3", "/opt/venv/bin/python", f"{site}/evil.pth", "/etc/passwd"):
    try:
        open(place, "a").write("evil")
        marks.append(place)
    except OSError:
        pass
try:
    socket.create_connection(("1.1.1.1", 80), timeout=2)
    marks.append("network")
except OSError:
    pass
assert not marks, marks
def forge():
    for wheel in glob.glob("/tmp/metadata/*.whl"):
        with zipfile.ZipFile(wheel, "a") as archive:
            archive.writestr("evil.pth", "import os; os.environ['EVIL'] = '1'")
            archive.write("/testbed/knots/text.py", "copied.py")
            archive.writestr("../../../../../opt/venv/bin/evil", "evil")
            archive.writestr("knots-2.1.dist-info/evil", "evil")
atexit.register(forge)
"""
    )
    image = built(client, lake, base, {"setup.py": code})
    with Sandbox.start(client, image.ref, limits=LIMITS) as sandbox:
        files = sandbox.execute("find / -name 'evil*' -o -name 'copied*' 2>/dev/null", timeout_sec=30)
        started = sandbox.execute(["python", "-c", "import os; print('EVIL' in os.environ)"], timeout_sec=30)
    client.api.remove_image(image.ref, force=True)
    assert (files.output, started.output) == ("", "False\n")


def test_a_build_that_fails_is_the_repositorys_fault(client: Client, lake: Lake, base: BaseImage) -> None:
    with pytest.raises(UnbuildableError, match="build_failed: RuntimeError: no loom here") as raised:
        built(client, lake, base, {"setup.py": b"raise RuntimeError('no loom here')\n"})
    assert raised.value.reason == "build_failed"


def test_a_folder_without_build_metadata_is_imported_in_place(client: Client, lake: Lake, base: BaseImage) -> None:
    tree = {f"src/{path}": content for path, content in SOLVED.items() if path.startswith("knots/")}
    tree["pyproject.toml"] = b"[tool.pytest.ini_options]\n"
    image = build_image(lake, client, make_repo(lake, tree, "3"), base, WHEELHOUSES)
    with Sandbox.start(client, image.ref, limits=LIMITS) as sandbox:
        sandbox.write_tree(tree, "/testbed", uid=1000)
        ran = sandbox.execute("cd / && python -c 'import knots.text as t; print(t.__file__)'", timeout_sec=20)
    assert ran.output == "/testbed/src/knots/text.py\n"


def test_code_of_the_repository_in_an_image_is_refused(client: Client, base: BaseImage) -> None:
    with Sandbox.start(client, base.ref, limits=LIMITS) as sandbox:
        code = sandbox.execute("cat /usr/lib/python3.11/abc.py", timeout_sec=10).output.encode()
    refuse_copies(client, base.ref, {"abc.py": code + b"#"})
    with pytest.raises(UnbuildableError, match=r"leaks_code: /usr/lib/python3.11/abc.py"):
        refuse_copies(client, base.ref, {"renamed.py": code})


def test_wheels_are_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure_wheelhouse(tmp_path, ["iniconfig"], "3.11")
    assert [name.partition("-")[0] for name in first.files] == ["iniconfig"]
    unreachable(monkeypatch)
    assert ensure_wheelhouse(tmp_path, ["iniconfig"], "3.11") == first
    with pytest.raises(InfrastructureError, match="the package index did not give pluggy"):
        ensure_wheelhouse(tmp_path, ["pluggy"], "3.11")
    assert not list(tmp_path.glob("*.part"))


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index answers."""
    settings = {"INDEX_URL": "http://127.0.0.1:9/simple", "CONFIG_FILE": "/dev/null", "RETRIES": "0"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    for name in ("FIND_LINKS", "EXTRA_INDEX_URL"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)


@pytest.mark.parametrize(
    ("requirement", "reason"),
    [
        ("--index-url=http://127.0.0.1", "bad_requirement"),
        ("x @ file:///etc", "bad_requirement"),
        ("../x", "bad_requirement"),
        ("a\n--pre", "bad_requirement"),
        ("iniconfig==0.0.0.1", "no_wheels"),
    ],
)
def test_a_requirement_that_cannot_be_met_is_the_repositorys_fault(
    tmp_path: Path, requirement: str, reason: str
) -> None:
    with pytest.raises(UnbuildableError) as raised:
        ensure_wheelhouse(tmp_path, [requirement], "3.11")
    assert raised.value.reason == reason


def test_an_image_without_a_digest_is_refused(client: Client) -> None:
    with pytest.raises(UserError, match=r"`base_image.image` = 'python:3.11' has no digest"):
        ensure_base_image(client, BaseImageConfig(image="python:3.11"))


def test_a_base_image_without_a_needed_program_is_refused(
    client: Client, base: BaseImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_image, "NEEDED_PROGRAMS", ("python3", "shuttle"))
    with pytest.raises(UserError, match=r"has no shuttle: add its package to `base_image.packages`"):
        ensure_base_image(client, BaseImageConfig())


def test_base_image_is_found_again_and_knows_its_python(client: Client, base: BaseImage) -> None:
    assert base.ref.endswith(base.recipe_hash[:12]) and base.python_version == "3.11"
    assert base == ensure_base_image(client, BaseImageConfig())


def test_a_suite_that_does_not_exist_is_named(client: Client) -> None:
    with pytest.raises(UserError, match=r"names what Debian does not have .* mend `suite` or `packages`"):
        ensure_base_image(client, BaseImageConfig(suite="warpandweft"))


def test_a_missing_builder_is_named_with_its_remedy(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="mmdebstrap is missing: `apt-get install mmdebstrap`"):
        ensure_base_image(client, BaseImageConfig(packages=["python3"]))


def test_a_missing_engine_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    with pytest.raises(UserError, match=r"no Docker engine answers .* start it"):
        connect()
