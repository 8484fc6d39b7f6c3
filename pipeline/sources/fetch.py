"""SourceConfig -> Repo records, one per release, with their trees as blobs in the lake."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pipeline.errors import UserError
from pipeline.sources.config import SourceConfig
from pipeline.sources.metadata import Metadata, read_metadata
from pipeline.sources.registry import download_sdist
from pipeline.sources.renamed import rename_package
from pipeline.store import Lake, Outcome
from pipeline.trees import Tree, pack_tree, read_folder, unpack_tree, without_root
from pipeline.types import Repo, Source, with_id


def fetch(lake: Lake, config: SourceConfig, downloads: Path) -> Outcome:
    """Source -> its Repo; of a release pair first the Repo of `version`, which names the previous, then the previous.

    Raises: UserError for an unknown or broken source; InfrastructureError when the registry does not answer.
    """
    if config.is_planted != bool(config.renamed_to):
        raise UserError(f"sources: {config.name}: `is_planted` and `renamed_to` go together: set both or neither")
    if config.kind == "local":
        return Outcome("ok", records=(_fetch_local(lake, config),))
    repos = [_fetch_release(lake, config, config.version, downloads)]
    if config.previous_version:
        repos.append(_fetch_release(lake, config, config.previous_version, downloads))
    return Outcome("ok", records=tuple(repos))


def pair_releases(repos: Iterable[Repo]) -> list[tuple[Repo, Repo | None]]:
    """Repos -> each that is not itself another's previous release, beside its previous release or None."""
    ordered = list(repos)
    by_release = {(repo.name, repo.source.version): repo for repo in ordered}
    previous = {(repo.name, repo.previous_version) for repo in ordered if repo.previous_version}
    return [
        (repo, by_release.get((repo.name, repo.previous_version)))
        for repo in ordered
        if (repo.name, repo.source.version) not in previous
    ]


def _fetch_release(lake: Lake, config: SourceConfig, version: str, downloads: Path) -> Repo:
    archive = download_sdist(config.name, version, downloads)
    data = archive.read_bytes()
    try:
        tree = without_root(unpack_tree(data))
    except UserError as error:
        raise UserError(f"{archive}: {error}") from None
    metadata = read_metadata(tree)
    name, kind = config.name, "sdist"
    if config.is_planted:
        tree = rename_package(tree, config.name, config.renamed_to)
        name, kind, metadata = config.renamed_to, "planted", Metadata(metadata.licence, "")
    source = Source(
        kind=kind,
        name=name,
        version=version,
        sha256=hashlib.sha256(data).hexdigest(),
        licence=metadata.licence,
        url=_url(metadata, config),
    )
    previous = config.previous_version if version == config.version else ""
    return _store(lake, config, source, tree, previous)


def _fetch_local(lake: Lake, config: SourceConfig) -> Repo:
    folder = Path(config.path)
    if not config.path or not folder.is_dir():
        raise UserError(f"sources: {config.name}: `path` = {config.path!r} is not a folder: name an existing one")
    tree = read_folder(folder)
    if not tree:
        raise UserError(f"sources: {config.name}: `path` = {config.path!r} holds no files: name the repository's root")
    metadata = read_metadata(tree)
    source = Source(
        kind="local",
        name=config.name,
        version=config.version,
        sha256=hashlib.sha256(pack_tree(tree)).hexdigest(),
        licence=metadata.licence,
        url=_url(metadata, config),
    )
    return _store(lake, config, source, tree, "")


def _url(metadata: Metadata, config: SourceConfig) -> str:
    """The stated repository page; `upstream` where the metadata names no repository on a forge."""
    is_repository = metadata.url.count("/") >= 4
    return metadata.url if is_repository or not config.upstream else config.upstream


def _store(lake: Lake, config: SourceConfig, source: Source, tree: Tree, previous_version: str) -> Repo:
    return with_id(
        Repo(
            source=source,
            name=source.name,
            tree=lake.put_blob(pack_tree(tree)),
            num_files=len(tree),
            num_bytes=sum(map(len, tree.values())),
            python_requires=config.requires,
            test_command=config.test_command,
            previous_version=previous_version,
        )
    )
