"""200 fixed strings whose ids identify a tokenizer's behaviour: blanks, digits, code, scripts, emoji, special text."""

_BLANKS = [" " * n for n in (1, 2, 3, 4, 7, 8, 16, 31)] + ["\t" * n for n in (1, 2, 4)] + ["\n" * n for n in (1, 2, 3, 8)]
_MIXED_BLANKS = ["\n    x", "\n\t\ty", " \n", "\n ", "a  b", "a   b", "a \tb", " leading", "trailing ", "a\u00a0b", "a\u2003b", "a\u200bb"]
_DIGITS = ["0", "7", "10", "123", "1234", "12345", "1234567890", "3.14159", "1e-9", "0x1F", "1,000,000", "-42", "½", "²", "٣", "１２"]
_PROSE = [
    "The quick brown fox jumps over the lazy dog.",
    "It's, we're, they've, I'll, he'd, don't!",
    "IT'S, WE'RE, DON'T",
    "“Curly quotes” and ‘single’ ones – dashes — too…",
    "e-mail: someone@example.org, see https://example.org/a?b=c#d",
    "naïve façade, Ångström, Straße, İstanbul, œuvre",
    "cafe\u0301 against café",
    "A sentence.  Two spaces.\n\nA new paragraph.",
]
_CODE = [
    "def f(x: int) -> int:\n    return x + 1\n",
    "for (int i = 0; i < n; ++i) { a[i] = b[i]; }",
    '<div class="a">&amp; &lt;b&gt;</div>',
    '{"key": [1, 2.5, null, true], "nested": {"a": "b"}}',
    "SELECT * FROM t WHERE a >= 1 AND b != 'x';",
    "#include <stdio.h>\n\n/* comment */",
    "x = lambda *a, **k: (a, k)  # noqa",
    "\\alpha_{i}^{2} + \\frac{1}{2}",
    "if __name__ == '__main__':",
    "a<-b|>c::d->e=>f",
]
_SCRIPTS = [
    "你好，世界。",
    "我能吞下玻璃而不伤身体。",
    "こんにちは、カタカナと漢字。",
    "안녕하세요 세계",
    "Привет, мир!",
    "Γειά σου Κόσμε",
    "שלום עולם",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "გამარჯობა",
    "Xin chào thế giới",
]
_SYMBOLS = [
    "🙂",
    "👩‍👩‍👧‍👦",
    "🇩🇪",
    "👍🏽",
    "∑∫√∞≠≤",
    "←↑→↓",
    "█▓▒░",
    "€£¥₿",
    "\u202eabc",
    "\ufeffx",
    "\u0000",
    "\u007f",
    "\ufffd",
    "\U0010ffff",
]
_SPECIAL = [
    "<|bos|>",
    "<|eos|>",
    "<|pad|>",
    "a<|eos|>b",
    " <|eos|>",
    "<|endoftext|>",
    "<s>",
    "</s>",
    "[INST]",
    "<|EOS|>",
    "<|eos|",
    "<|eos|><|bos|>",
]
_RUNS = [char * n for char in "a=-#0" for n in (2, 5, 17, 64)] + ["ab" * 40, "xyz " * 20, "ACGT" * 16, "0123456789" * 6]
# fmt: off
_WORDS = [
    "a", "I", "the", "of", "and", "import", "return", "self", "class", "None", "True", "False", "error", "value", "string",
    "number", "function", "module", "object", "list", "dict", "internationalization", "antidisestablishmentarianism",
    "Supercalifragilisticexpialidocious", "camelCaseName", "snake_case_name", "CONSTANT_NAME", "PascalCase", "kebab-case",
    "dotted.name.here", "path/to/file", "C++", "C#", ".NET", "3D", "2x", "x86_64", "utf-8", "UTF8", "v1.2.3", "$HOME", "%s",
    "{}", "[]", "()", "!=", "==", "===", "<=", ">=", "&&", "||", "->", "=>", "::", "...", "!?", "@decorator", "#hashtag",
    "~tilde", "^caret", "`tick`", "'q'", "\"q\"", "\\n", "\\x00", "/**/", "//", "<!--", "-->", "&nbsp;", "don't", "well-known",
    "o'clock", "'tis", "n't", "100%", "1st",
]
# fmt: on

_ALL = ["", *_BLANKS, *_MIXED_BLANKS, *_DIGITS, *_PROSE, *_CODE, *_SCRIPTS, *_SYMBOLS, *_SPECIAL, *_RUNS, *_WORDS]
PROBES: tuple[str, ...] = tuple(dict.fromkeys(_ALL))[:200]
