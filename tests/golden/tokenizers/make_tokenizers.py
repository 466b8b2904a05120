"""Trains small tokenizers with Hugging Face's tokenizers, and writes what they make of texts: what `SubwordTokenizer` is tested on.

    pip install tokenizers==0.23.3
    python make_tokenizers.py

bpe.json: byte-level BPE, as GPT-2's, with a token of padding; wordpiece.json: WordPiece, as BERT's, with [CLS] and [SEP] around each text.
ids.json: for each file and length the numbers of the texts, cut and padded to the length.
"""

import json
import pathlib

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).parent
CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "A film that is great, great and greater than the greatest.",
    "Un café très élégant à Málaga, naïve façade; jalapeño!",
    "it's 1999, we're 25 and they'll pay 3.50 for 12345 tickets",
    "unbelievable, unbelievably unbelieving believers believe",
    "日本語のテキスト と 中文 文本",
    "tokens tokenizer tokenised tokenization",
] * 5
TEXTS = [
    "The quickest foxes jumped over lazier dogs.",
    "great",
    "",
    "   two  spaces\tand\nlines  ",
    "CAFÉ à la façade, naïvely — “quoted” … e\u0301",
    "we'll've 31415 don'ts, 1,000.5%",
    "日本語 中文 文字化け",
    "emoji 🦊🐶 and \u200b zero width, \u00a0 and \x07 control",
    "unbelievablenesses of believing " * 4,
    "<pad> [PAD] [CLS] <unk> are tokens",
]


def bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=["<pad>", "<unk>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer, "<pad>"


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special))
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    return tokenizer, "[PAD]"


rows = []
for name, (tokenizer, pad) in {"bpe": bpe(), "wordpiece": wordpiece()}.items():
    tokenizer.save(str(FOLDER / f"{name}.json"))
    for length in (4, 12, 40):
        read = Tokenizer.from_file(str(FOLDER / f"{name}.json"))
        read.enable_truncation(max_length=length)
        read.enable_padding(length=length, pad_id=read.token_to_id(pad), pad_token=pad)
        ids = [encoding.ids for encoding in read.encode_batch(TEXTS)]
        rows.append({"file": f"{name}.json", "length": length, "size": read.get_vocab_size(), "ids": ids})
lines = ",\n".join(json.dumps(row) for row in rows)
texts = json.dumps(TEXTS)
(FOLDER / "ids.json").write_text(f'{{"texts": {texts},\n"rows": [\n{lines}\n]}}\n')
