"""Data that already lies somewhere: its manifest makes it an artifact without moving it."""

from marin_core.artifact.objects import open_objects
from marin_core.artifact.record import File, manifest_digest
from marin_core.errors import DataError
from marin_core.report import Reporter


def adopted_files(url: str, expected_digest: str | None, reporter: Reporter) -> tuple[File, ...]:
    """Size, checksum and stamp of every file below a URL, each read once as a stream.

    Args:
        expected_digest: manifest digest (or its beginning) that the data must have; None accepts what is there.

    Raises:
        DataError: there is nothing, a file went away meanwhile, or the digest is another.
    """
    source = open_objects(url)
    states = source.files("")
    if not states:
        raise DataError(f"there are no files below {url}", advice="Correct the URL, or log in with an account that may list it.")
    files = []
    for number, (path, state) in enumerate(sorted(states.items())):
        checksum = source.sha256(path)
        if checksum is None:
            raise DataError(f"{url}/{path} went away while it was read", advice="Adopt data that nobody changes.")
        files.append(File(path=path, size=state.size, sha256=checksum, stamp=state.stamp))
        reporter.progress(number + 1, len(states), "files")
    digest = manifest_digest(tuple(files))
    if expected_digest is not None and not digest.startswith(expected_digest):
        raise DataError(
            f"the data at {url} has the digest {digest}, not {expected_digest}",
            advice="Find out who changed it; adopt it under a new version if the change is meant.",
        )
    return tuple(files)
