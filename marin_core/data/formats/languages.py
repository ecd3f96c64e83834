"""The programming language of a file, by its name or its first line."""

import re
from pathlib import PurePosixPath

_EXTENSIONS = {
    "ada": "ada adb ads",
    "agda": "agda",
    "assembly": "s asm nasm",
    "awk": "awk",
    "batchfile": "bat cmd",
    "bluespec": "bsv",
    "c": "c h",
    "c++": "cc cpp cxx c++ hh hpp hxx h++ inl ipp tpp",
    "c#": "cs csx",
    "clojure": "clj cljs cljc edn",
    "cmake": "cmake",
    "coffeescript": "coffee",
    "common_lisp": "lisp lsp cl asd",
    "css": "css",
    "cuda": "cu cuh",
    "cython": "pyx pxd",
    "d": "d",
    "dart": "dart",
    "elixir": "ex exs",
    "elm": "elm",
    "emacs_lisp": "el",
    "erlang": "erl hrl",
    "f#": "fs fsi fsx",
    "fortran": "f f77 f90 f95 f03 f08 for",
    "glsl": "glsl vert frag geom comp",
    "go": "go",
    "graphql": "graphql gql",
    "groovy": "groovy gradle",
    "haskell": "hs lhs",
    "hcl": "tf hcl",
    "html": "html htm xhtml",
    "idris": "idr",
    "java": "java",
    "javascript": "js mjs cjs jsx",
    "json": "json",
    "julia": "jl",
    "kotlin": "kt kts",
    "latex": "tex sty cls bib",
    "lean": "lean",
    "less": "less",
    "lua": "lua",
    "makefile": "mk mak",
    "markdown": "md markdown",
    "mathematica": "wl wls",
    "matlab": "m",
    "mlir": "mlir",
    "nim": "nim",
    "nix": "nix",
    "objective-c": "mm",
    "ocaml": "ml mli",
    "perl": "pl pm t",
    "php": "php phtml",
    "powershell": "ps1 psm1 psd1",
    "prolog": "pro prolog",
    "protobuf": "proto",
    "python": "py pyi pyw",
    "r": "r",
    "racket": "rkt",
    "restructuredtext": "rst rest",
    "ruby": "rb rake gemspec",
    "rust": "rs",
    "sass": "sass scss",
    "scala": "scala sc",
    "scheme": "scm ss sld",
    "shell": "sh bash zsh ksh fish",
    "solidity": "sol",
    "sql": "sql",
    "standard_ml": "sml sig",
    "starlark": "bzl star",
    "swift": "swift",
    "systemverilog": "sv svh",
    "tcl": "tcl",
    "toml": "toml",
    "typescript": "ts mts cts tsx",
    "verilog": "v vh",
    "vhdl": "vhd vhdl",
    "visual_basic": "vb vbs bas",
    "vue": "vue",
    "webassembly": "wat wast",
    "xml": "xml xsd xsl xslt",
    "yacc": "y yy",
    "yaml": "yaml yml",
    "zig": "zig",
}
_BY_EXTENSION = {extension: language for language, extensions in _EXTENSIONS.items() for extension in extensions.split()}
_BY_NAME = {
    "makefile": "makefile",
    "gnumakefile": "makefile",
    "dockerfile": "dockerfile",
    "cmakelists.txt": "cmake",
    "rakefile": "ruby",
    "gemfile": "ruby",
    "build": "starlark",
    "build.bazel": "starlark",
    "workspace": "starlark",
    "sconstruct": "python",
    "meson.build": "meson",
}
_BY_INTERPRETER = {
    "awk": "awk",
    "bash": "shell",
    "dash": "shell",
    "fish": "shell",
    "ksh": "shell",
    "sh": "shell",
    "zsh": "shell",
    "gawk": "awk",
    "julia": "julia",
    "lua": "lua",
    "make": "makefile",
    "node": "javascript",
    "deno": "typescript",
    "perl": "perl",
    "php": "php",
    "pypy": "python",
    "python": "python",
    "Rscript": "r",
    "ruby": "ruby",
    "tclsh": "tcl",
}
_SHEBANG = re.compile(rb"#!\s*(?:\S*/)?env\s+(?:-\S+\s+)*([^\s/]+)|#!\s*(?:\S*/)?([^\s/]+)")


def language_of(name: str, head: bytes) -> str | None:
    """Language of a file: by its name, its extension, or the interpreter in its first line; None if none is known.

    Args:
        name: path in its tree.
        head: its first bytes.
    """
    path = PurePosixPath(name)
    if known := _BY_NAME.get(path.name.lower()):
        return known
    if known := _BY_EXTENSION.get(path.suffix[1:].lower()):
        return known
    match = _SHEBANG.match(head[:200]) if not path.suffix else None
    if match is None:
        return None
    interpreter = (match[1] or match[2]).decode(errors="replace")
    return _BY_INTERPRETER.get(interpreter.rstrip("0123456789."))
