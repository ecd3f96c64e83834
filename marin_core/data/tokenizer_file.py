"""A tokenizer that somebody else trained, taken from a raw source: checked, identified by what it says, and kept as found."""

import shutil
from pathlib import Path

from marin_core.artifact.record import file_sha256
from marin_core.data.config import TokenizerFile
from marin_core.data.files import percent_encoded, write_json
from marin_core.data.tokenizer import INFO_FILE, LIBRARY, TOKENIZER_FILE, Tokenizer, tokenizer_checks, usable_tokenizer
from marin_core.data.units import Unit, read_units
from marin_core.errors import ConfigError, DataError
from marin_core.report import Report, Reporter, Scalar


def adopt_tokenizer(config: TokenizerFile, raw: Path, output: Path, reporter: Reporter) -> Report:
    """Copy a source's `tokenizer.json` and write `tokenizer_info.json` beside it.

    Args:
        raw: folder of the raw source artifact.

    Raises:
        ConfigError: if the source has no such file, the tokenizer says something else than `digest`, or it can't be used
            (`usable_tokenizer`).
        DataError: if the file is damaged.
    """
    unit = _unit(config, raw)
    path = raw / unit.path
    if not path.is_file() or file_sha256(path) != unit.sha256:
        raise DataError(f"unit {unit.path!r} is missing or differs from units.json", advice="Rebuild the raw source artifact.")
    tokenizer = usable_tokenizer(path, config.specials)
    if config.digest is not None and tokenizer.digest != config.digest:
        raise ConfigError(
            f"the tokenizer in {config.file!r} has digest {tokenizer.digest}, the experiment expects {config.digest}",
            advice="If the change is meant, write the new digest into the experiment, under a new version.",
        )
    output.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, output / TOKENIZER_FILE)
    write_json(output / INFO_FILE, {"specials": config.specials.model_dump(), "library": LIBRARY})
    reporter.log(f"{config.file}: {tokenizer.vocab_size} ids, digest {tokenizer.digest}")
    return Report(
        metrics={"vocab_size": tokenizer.vocab_size, "splittable": tokenizer.splittable, "license": unit.license},
        tables={"added_tokens": _added_tokens(tokenizer)},
        checks=tokenizer_checks(tokenizer),
        content_digest=tokenizer.digest,
    )


def _unit(config: TokenizerFile, raw: Path) -> Unit:
    units = read_units(raw).units
    wanted = percent_encoded(config.file)
    found = [unit for unit in units if wanted in (unit.origin, Path(unit.path).name)]
    if len(found) != 1:
        names = ", ".join(sorted(unit.origin or Path(unit.path).name for unit in units)[:8])
        raise ConfigError(
            f"field 'file' is {config.file!r}, of which the source has {len(found)}; it has {names}",
            advice="Give the path of the tokenizer's file in the source.",
        )
    return found[0]


def _added_tokens(tokenizer: Tokenizer) -> list[dict[str, Scalar]]:
    """The first hundred tokens beside the model's vocabulary; those that aren't special are found in text."""
    return [
        {"id": token["id"], "token": token["content"], "special": bool(token.get("special"))}
        for token in (tokenizer.content.get("added_tokens") or ())[:100]
    ]
