"""texts.json: vocabularies of texts, and texts as numbers, by TextVectorization."""

from golden import array, keras, np, write

WRITTEN = [
    "The film was great, GREAT fun -- don't miss it!",
    "a dull, dull film; it's not fun",
    "Über-schön: ÉCOLE école Ⅷ ǅ İstanbul ıI ẞß Σίσυφος ΣΑΣ",
    "naïve café „quoted“ … ¿qué? ¡sí! 100% well-known e.g. a/b C++ snake_case x^2 `tick` ~ {a|b} [c] \\d <e> \"f\" #g @h $i &j *k",
    "tabs\tand\nlines\r\nand\x0bvertical\x0cfeeds  between   words ",
    "no\u00a0break thin\u2009space ideographic\u3000space \u0085next \u2028line zero\u200bwidth \u1680ogham",
    "separators\x1cof\x1dfiles\x1eand\x1funits and \x01 control \x7f characters",
    "日本語のテキスト 中文，标点。 한국어 ไทย العربية עברית हिन्दी",
    "👍👍🏽 👨‍👩‍👧 e\u0301 é \U0001f600 \ufb01 \ufeffmark \ufffd",
    "!!! ... ?",
    "",
    " ",
    "[UNK] unk UNK <pad> 0 1 00 1.5 -3",
    "a b a b c c z z y",
]
LETTERS = [*"abcABCz019 .,'-!?\t\n\r\x0b\x0c\x1c\u00a0\u2003éÉßİıΣσςЖж中👍\u0301\u200d_[]`~^$|\\\""]


def drawn(seed, count):
    """Texts of random letters."""
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(LETTERS, rng.integers(0, 40))) for _ in range(count)]


def record(name, texts, others, **config):
    """Adapted to `texts`, and given these and the others."""
    layer = keras.layers.TextVectorization(**config)
    layer.adapt(texts)
    asked = texts + others
    return {
        "name": name,
        "config": config,
        "texts": texts,
        "others": others,
        "vocabulary": layer.get_vocabulary(include_special_tokens=False),
        "size": layer.vocabulary_size(),
        "encoded": array(np.asarray(layer(asked))),
    }


def records():
    """Every standardization with every split, and the limits."""
    for standardize in ["lower_and_strip_punctuation", "lower", "strip_punctuation", None]:
        for split in ["whitespace", "character"]:
            config = {"standardize": standardize, "split": split, "output_sequence_length": 12}
            yield record(f"{standardize}/{split}/written", WRITTEN, ["a GREAT, new film", "👍 é"], **config)
            seed = len(str(standardize)) + len(split)
            yield record(f"{standardize}/{split}/drawn", drawn(seed, 12), drawn(seed + 100, 4), **config)
    for max_tokens in [3, 5, 9, 1000]:
        yield record(f"max_tokens/{max_tokens}", WRITTEN, [], max_tokens=max_tokens, output_sequence_length=4)
    for length in [1, 30]:
        yield record(f"length/{length}", WRITTEN, [], output_sequence_length=length)
    for ngrams, config in [(2, {}), (3, {"max_tokens": 20}), (2, {"split": "character"}), (5, {"standardize": None})]:
        name = "/".join(["ngrams", str(ngrams), *map(str, config.values())])
        yield record(name, WRITTEN, drawn(7, 6), ngrams=ngrams, output_sequence_length=40, **config)
    often = [word for word in "b B a é z aa 中 Z [UNK]".split() for _ in range(2)]
    yield record("ties", often, [], standardize=None, output_sequence_length=1)


if __name__ == "__main__":
    write("texts", list(records()))
