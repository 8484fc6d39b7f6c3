"""Repo -> image with everything its tests need and nothing of its code.

base image   --wheels, nothing foreign runs-------->  environment image, shared by repos with equal requirements
environment  --the repo's own build, locked down--->  metadata, taken out as data and rebuilt on this side
environment + metadata ---------------------------->  repo image, then searched for files of the repo
"""

import fcntl
import hashlib
import io
import json
import logging
import lzma
import re
import tomllib
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.containers.base_image import BUILDER_UID, VENV, BaseImage, find_image, forget_owner
from pipeline.containers.engine import Client, engine_faults
from pipeline.containers.sandbox import AGENT_UID, TESTBED, Sandbox, SandboxLimits
from pipeline.containers.wheelhouse import UnbuildableError, Wheelhouse, ensure_wheelhouse
from pipeline.errors import InfrastructureError, UserError
from pipeline.store import Lake
from pipeline.trees import Tree, unpack_tree
from pipeline.types import Repo, RepoImage, content_id, with_id

log = logging.getLogger(__name__)

LIMITS = SandboxLimits(memory_mb=3072, cpus=2.0, file_size_mb=512, tmp_mb=512)
WHEELS_MB = 1024
STEP_TIMEOUT_SEC = 600
ALWAYS = ("pip", "setuptools", "wheel", "pytest", "pytest-timeout")
BACKEND_EXTRAS = {"hatchling": "editables", "pdm": "editables"}
"""Build backend -> what it asks for at run time to describe a package in place."""
METADATA_FILES = ("setup.py", "setup.cfg", "pyproject.toml", "PKG-INFO", "MANIFEST.in")
MOUNT_POINTS = (f"{TESTBED}/", "/wheelhouse/", "/tmp/", "/agent/", "/sbin/docker-init/", "/run/", "/dev/")
PARENTS = ("/opt", "/sbin", "/usr", "/usr/sbin", "/usr/sbin/docker-init")
MIN_LEAK_BYTES = 100
"""Smaller files of a repository are equal to others by chance."""
MAX_METADATA_BYTES = 2_000_000
BROKEN_ZIP = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(OSError, ValueError, EOFError, NotImplementedError, RuntimeError),
)
"""What reading a hostile zip file may raise."""
PYTHON = f"{VENV}/bin/python"
PIP = f"{PYTHON} -m pip --disable-pip-version-check --no-cache-dir --quiet"
WHEELS = "--no-index --find-links /wheelhouse"
INSTALL_ENVIRONMENT = f"python3 -m venv {VENV} && {PIP} install {WHEELS} --upgrade -r /wheelhouse/requirements.txt"
INSTALL_METADATA = f"{PIP} install {WHEELS} --no-deps --force-reinstall /wheelhouse/*.whl"

BUILD_METADATA = """
import importlib, os, sys, tomllib
system = {}
if os.path.exists("pyproject.toml"):
    with open("pyproject.toml", "rb") as file:
        system = tomllib.load(file).get("build-system", {})
sys.path[:0] = system.get("backend-path", [])
module, _, names = system.get("build-backend", "setuptools.build_meta:__legacy__").partition(":")
backend = importlib.import_module(module)
for name in filter(None, names.split(".")):
    backend = getattr(backend, name)
os.makedirs("/tmp/metadata")
backend.build_editable("/tmp/metadata", {"editable_mode": "compat"}, None)
"""
"""Run in the repo's tree by the environment's Python, as any build front end would for an installation in place."""

FIND_COPIES = """
import hashlib, json, os, sys
wanted = json.load(open(sys.argv[1]))
found = []
for folder, names, files in os.walk("/"):
    if folder == "/":
        names[:] = [name for name in names if name not in ("proc", "sys", "dev", "tmp")]
    for name in files:
        path = os.path.join(folder, name)
        if os.path.islink(path) or str(os.path.getsize(path)) not in wanted or not os.access(path, os.R_OK):
            continue
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        if digest in wanted[str(os.path.getsize(path))]:
            found.append(path)
print(json.dumps(sorted(found)))
"""
STEPS = [INSTALL_ENVIRONMENT, INSTALL_METADATA, BUILD_METADATA, list(METADATA_FILES), 1]
"""Everything that decides an image beside base, wheels and the repo; the number counts changes in this module."""


class Recipe(NamedTuple):
    """What an image is made from."""

    tree: Tree
    requirements: list[str]
    wheelhouse: Wheelhouse
    version: str
    environment_ref: str
    ref: str
    hash: str


def build_image(lake: Lake, client: Client, repo: Repo, base: BaseImage, wheelhouses: Path) -> RepoImage:
    """Repo -> its image, built unless the engine already has one of the same recipe.

    Raises: UnbuildableError when the repository is at fault, InfrastructureError when index or engine fail.
    """
    recipe = plan(unpack_tree(lake.get_blob(repo.tree)), repo, base, wheelhouses)
    if not find_image(client, recipe.ref):
        log.info("repo image state=building repo=%s version=%s ref=%s", repo.name, repo.source.version, recipe.ref)
        with _locked(wheelhouses / f"{recipe.environment_ref.partition(':')[2]}.lock"):
            if not find_image(client, recipe.environment_ref):
                _build_environment(client, recipe, base)
            if not find_image(client, recipe.ref):
                _build_repo_image(client, recipe)
    with engine_faults(f"inspect {recipe.ref}"):
        state = client.api.inspect_image(recipe.ref)
    return with_id(
        RepoImage(
            repo_id=repo.id,
            ref=recipe.ref,
            digest=state["Id"],
            recipe_hash=recipe.hash,
            wheelhouse_hash=recipe.wheelhouse.hash,
            size_bytes=state["Size"],
        )
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One builder at a time for all images on one environment; the lock goes with its holder."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ensure_image(lake: Lake, client: Client, repo: Repo, image: RepoImage, base: BaseImage, wheelhouses: Path) -> None:
    """Recorded image -> it is there, rebuilt if the engine lost it.

    Raises: UserError when what it was built from is gone, so that only another image could be built.
    """
    if find_image(client, image.ref):
        return
    rebuilt = build_image(lake, client, repo, base, wheelhouses)
    if rebuilt.recipe_hash != image.recipe_hash:
        raise UserError(
            f"image {image.ref} of {repo.name} cannot be built again, base or wheels have changed: remove "
            f"{lake.root / 'stages' / 'images'} and run again, which makes new images and new tasks"
        )


def plan(tree: Tree, repo: Repo, base: BaseImage, wheelhouses: Path) -> Recipe:
    """Repo and its tree -> recipe; wheels are downloaded if they are not there yet."""
    requirements = requirements_of(tree, repo)
    wheelhouse = ensure_wheelhouse(wheelhouses, requirements, base.python_version)
    version = repo.source.version if re.fullmatch(r"\d[\w.+!-]*", repo.source.version) else "0"
    environment_hash = content_id([base.recipe_hash, wheelhouse.hash, requirements, STEPS])
    described = {path: hashlib.sha256(tree[path]).hexdigest() for path in METADATA_FILES if path in tree}
    recipe_hash = content_id([environment_hash, described, version, _import_paths(tree)])
    return Recipe(
        tree=tree,
        requirements=requirements,
        wheelhouse=wheelhouse,
        version=version,
        environment_ref=f"treadle-environment:{environment_hash[:16]}",
        ref=f"treadle-repo:{recipe_hash[:16]}",
        hash=recipe_hash,
    )


def requirements_of(tree: Tree, repo: Repo) -> list[str]:
    """Repo -> what to install: tools for tests, what the repo asks for itself, statically, and its build backend."""
    described = _pyproject(tree)
    build = described.get("build-system", {}).get("requires", [])
    backend = str(described.get("build-system", {}).get("build-backend", "")).split(".")[0]
    dependencies = described.get("project", {}).get("dependencies", [])
    headers = tree.get("PKG-INFO", b"").decode("utf-8", "replace").partition("\n\n")[0]
    dependencies += [
        found for found in re.findall(r"^Requires-Dist: *(.+)$", headers, re.MULTILINE) if "extra ==" not in found
    ]
    wanted = {*ALWAYS, *repo.python_requires, *_texts(build), *_texts(dependencies)}
    if backend in BACKEND_EXTRAS:
        wanted.add(BACKEND_EXTRAS[backend])
    return sorted(text.strip() for text in wanted if _name(text) != _name(repo.source.name))


def _pyproject(tree: Tree) -> dict[str, Any]:
    try:
        return tomllib.loads(tree.get("pyproject.toml", b"").decode("utf-8", "replace"))
    except tomllib.TOMLDecodeError as error:
        raise UnbuildableError("bad_pyproject", str(error)) from None


def _texts(values: Any) -> Iterable[str]:
    return (value for value in values if isinstance(value, str)) if isinstance(values, list) else ()


def _name(requirement: str) -> str:
    """Requirement -> normal form of the name it asks for."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]).lower()


def _import_paths(tree: Tree) -> list[str]:
    """Tree -> folders from which its packages can be imported in place."""
    has_src = any(re.fullmatch(r"src/([^/]+\.py|[^/]+/__init__\.py)", path) for path in tree)
    return [f"{TESTBED}/src", TESTBED] if has_src else [TESTBED]


def _is_described(tree: Tree) -> bool:
    """Whether the repo says how to build it."""
    return "setup.py" in tree or bool({"project", "build-system"} & _pyproject(tree).keys())


def _build_environment(client: Client, recipe: Recipe, base: BaseImage) -> None:
    wheels = {name: (recipe.wheelhouse.path / name).read_bytes() for name in recipe.wheelhouse.files}
    wheels["requirements.txt"] = "\n".join(recipe.requirements).encode()
    with _installer(client, base.ref) as sandbox:
        sandbox.write_tree(wheels, "/wheelhouse", uid=BUILDER_UID)
        _install(sandbox, INSTALL_ENVIRONMENT)
        _commit(client, sandbox, recipe.environment_ref, "environment")


def _build_repo_image(client: Client, recipe: Recipe) -> None:
    wheel = _build_wheel(client, recipe)
    with _installer(client, recipe.environment_ref) as sandbox:
        sandbox.write_tree({wheel.name: wheel.content}, "/wheelhouse", uid=BUILDER_UID)
        _install(sandbox, INSTALL_METADATA)
        image_id = _commit(client, sandbox, "", "repo")
    try:
        refuse_copies(client, image_id, recipe.tree)
        repository, tag = recipe.ref.split(":")
        with engine_faults(f"tag {recipe.ref}"):
            client.api.tag(image_id, repository, tag)
    except BaseException:
        with engine_faults("remove an image"):
            client.api.remove_image(image_id)
        raise


class Wheel(NamedTuple):
    """A file to install."""

    name: str
    content: bytes


def _build_wheel(client: Client, recipe: Recipe) -> Wheel:
    """Repo -> wheel with its metadata and its import paths alone; its own build code runs locked down."""
    if not _is_described(recipe.tree):
        return _repack({}, _import_paths(recipe.tree))
    environment = {
        "SETUPTOOLS_SCM_PRETEND_VERSION": recipe.version,
        "PDM_BUILD_SCM_VERSION": recipe.version,
        "VIRTUAL_ENV": VENV,
        "PATH": f"{VENV}/bin:/usr/bin:/bin",
    }
    with Sandbox.start(client, recipe.environment_ref, limits=LIMITS) as sandbox:
        sandbox.write_tree(recipe.tree, TESTBED, uid=AGENT_UID)
        result = sandbox.execute([PYTHON, "-c", BUILD_METADATA], timeout_sec=STEP_TIMEOUT_SEC, environment=environment)
        if result.exit_code:
            raise UnbuildableError("build_failed", _last_error(result.output))
        built = sandbox.read_tree("/tmp/metadata", max_bytes=2 * MAX_METADATA_BYTES)
    names = [name for name in built if name.endswith(".whl")]
    if len(names) != 1:
        raise UnbuildableError("build_failed", f"the build made {len(names)} wheels")
    return _repack(_read_wheel(built[names[0]]), _import_paths(recipe.tree))


def _read_wheel(content: bytes) -> Tree:
    """Hostile wheel -> its text files.

    Raises: UnbuildableError when it is broken or unreasonably large.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > MAX_METADATA_BYTES or len(members) > 1000:
                raise UnbuildableError("build_failed", "the metadata is unreasonably large")
            return {member.filename: archive.read(member)[:MAX_METADATA_BYTES] for member in members}
    except BROKEN_ZIP as error:
        raise UnbuildableError("build_failed", f"the metadata cannot be read ({error})") from None


def _repack(built: Tree, fallback_paths: list[str]) -> Wheel:
    """Files of a wheel -> wheel of name, version, entry points and import paths: no code, no prose.

    The long description is cut (it may tell what a release mends), start-up code in .pth files is refused.
    """
    lines = [line.strip() for path, text in built.items() if path.endswith(".pth") for line in _lines(text)]
    inside = [line for line in lines if line == TESTBED or line.startswith(f"{TESTBED}/")]
    paths = inside if lines and inside == lines else fallback_paths
    headers = next((_lines(text) for path, text in built.items() if path.endswith(".dist-info/METADATA")), [])
    headers = headers[: headers.index("")] if "" in headers else headers
    fields = {key: value for key, _, value in (line.partition(": ") for line in headers)}
    name, version = _name(fields.get("Name", "")) or "treadle-testbed", fields.get("Version", "0")
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    if not re.fullmatch(r"[a-z0-9_.]+-[\w.!+]+\.dist-info", folder):
        raise UnbuildableError("build_failed", f"name {name!r} or version {version!r} is none")
    kept = {
        path.rpartition("/")[2]: text
        for path, text in built.items()
        if path.endswith((".dist-info/entry_points.txt", ".dist-info/top_level.txt"))
    }
    single = ("Metadata-Version", "Name", "Version", "Requires-Python", "Requires-Dist", "Provides-Extra")
    described = [line for line in headers if line.partition(":")[0] in single] or [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
    ]
    files = {f"{folder}/{path}": text for path, text in kept.items()} | {
        f"{name}.treadle.pth": ("\n".join(paths) + "\n").encode(),
        f"{folder}/METADATA": ("\n".join(described) + "\n").encode(),
        f"{folder}/WHEEL": b"Wheel-Version: 1.0\nGenerator: treadle\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{folder}/RECORD"] = "".join(f"{path},,\n" for path in [*sorted(files), f"{folder}/RECORD"]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(files):
            archive.writestr(zipfile.ZipInfo(path), files[path])
    return Wheel(f"{name.replace('-', '_')}-{version}-py3-none-any.whl", buffer.getvalue())


def _lines(text: bytes) -> list[str]:
    return text.decode("utf-8", "replace").splitlines()


@contextmanager
def _installer(client: Client, ref: str) -> Iterator[Sandbox]:
    """Image -> sandbox with a writable root, in which pip installs wheels and no build code runs."""
    folders = {"/wheelhouse": f"rw,noexec,nosuid,nodev,size={WHEELS_MB}m,uid={BUILDER_UID},gid={BUILDER_UID},mode=755"}
    with Sandbox.start(client, ref, limits=LIMITS, is_root_writable=True, folders=folders) as sandbox:
        yield sandbox


def _install(sandbox: Sandbox, command: str) -> None:
    """Runs pip. Wheels that do not fit together are the repository's fault, slowness is the machine's."""
    result = sandbox.execute(
        command, timeout_sec=STEP_TIMEOUT_SEC, user="builder", workdir="/", environment={"HOME": "/tmp"}
    )
    if result.is_timeout:
        raise InfrastructureError(f"installing wheels did not end within {STEP_TIMEOUT_SEC} s")
    if result.exit_code:
        raise UnbuildableError("install_failed", _last_error(result.output))


def _commit(client: Client, sandbox: Sandbox, ref: str, kind: str) -> str:
    """Sandbox -> image id; its processes end first, so that nothing changes while it is saved."""
    changes = [
        f"ENV PATH={VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin VIRTUAL_ENV={VENV}",
        f"WORKDIR {TESTBED}",
        "USER agent",
        'CMD ["bash"]',
        forget_owner(),
        f"LABEL treadle.image={kind}",
    ]
    repository, _, tag = ref.partition(":")
    with engine_faults(f"save an image of kind {kind}"):
        client.api.kill(sandbox.container_id)
        client.api.wait(sandbox.container_id)
        foreign = [
            change["Path"]
            for change in client.api.diff(sandbox.container_id) or []
            if not (change["Path"] + "/").startswith((f"{VENV}/", *MOUNT_POINTS)) and change["Path"] not in PARENTS
        ]
        if foreign:
            raise UnbuildableError("writes_outside", f"installing changed {foreign[0]}")
        saved = client.api.commit(sandbox.container_id, repository or None, tag or None, changes=changes)
    return str(saved["Id"])


def refuse_copies(client: Client, image_id: str, tree: Tree) -> None:
    """Image and tree -> nothing, if no Python file of the tree is in the image.

    Installed wheels may hold equal files (they vendor the same code): those are only reported.
    Raises: UnbuildableError when the repository's own code is in the image.
    """
    wanted: dict[int, list[str]] = {}
    for path, content in tree.items():
        if path.endswith(".py") and len(content) > MIN_LEAK_BYTES:
            wanted.setdefault(len(content), []).append(hashlib.sha256(content).hexdigest())
    with Sandbox.start(client, image_id, limits=LIMITS) as sandbox:
        sandbox.write_tree({"wanted.json": json.dumps(wanted).encode()}, "/tmp/search", uid=AGENT_UID)
        command = ["/usr/bin/python3", "-I", "-c", FIND_COPIES, "/tmp/search/wanted.json"]
        result = sandbox.execute(command, timeout_sec=STEP_TIMEOUT_SEC)
    if result.exit_code:
        raise InfrastructureError(f"image {image_id[:19]} could not be searched: {_last_error(result.output)}")
    for path in json.loads(result.output):
        if not re.match(rf"{VENV}/lib/[^/]+/site-packages/", path):
            raise UnbuildableError("leaks_code", f"{path} in the image is a file of the repository")
        log.warning("vendored copy image=%s path=%s", image_id[:19], path)


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"(ERROR|error|[\w.]*(Error|Exception))\b", line)]
    return (telling or lines or ["no output"])[-1][:300]
