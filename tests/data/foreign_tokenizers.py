"""Tokenizers as others publish them, made from one of ours."""

import json
from pathlib import Path
from typing import Any

LLAMA3_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_SPECIALS = {"bos": "<|begin_of_text|>", "eos": "<|end_of_text|>", "pad": "<|finetune_right_pad_id|>"}


def content(folder: Path) -> dict[str, Any]:
    """The parsed `tokenizer.json` of a folder."""
    parsed: dict[str, Any] = json.loads((folder / "tokenizer.json").read_bytes())
    return parsed


def llama3_content(ours: Path) -> dict[str, Any]:
    """The layout of Llama 3: its pattern, merges first, special tokens above them."""
    made = content(ours)
    specials = {token["content"] for token in made["added_tokens"]}
    vocabulary = [token for token, _ in sorted(made["model"]["vocab"].items(), key=lambda item: item[1]) if token not in specials]
    made["model"]["vocab"] = {token: index for index, token in enumerate(vocabulary)}
    made["model"]["ignore_merges"] = True
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    names = [*LLAMA3_SPECIALS.values(), "<|eot_id|>"]
    made["added_tokens"] = [{"id": len(vocabulary) + number, "content": name, **flags} for number, name in enumerate(names)]
    made["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": LLAMA3_PATTERN}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    return made


def llama3_like(ours: Path, folder: Path) -> Path:
    """A folder with such a tokenizer, as an artifact has it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(llama3_content(ours)))
    (folder / "tokenizer_info.json").write_text(json.dumps({"specials": LLAMA3_SPECIALS}))
    return folder
