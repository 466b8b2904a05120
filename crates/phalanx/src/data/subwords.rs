//! Texts as arrays of the numbers of their subwords, by a `tokenizer.json` of Hugging Face.

use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use phalanx_graph::HostTensor;
use tokenizers::{PaddingParams, PaddingStrategy, PostProcessor, Tokenizer, TruncationParams};

use super::text_vectorizer::check_size;
use crate::{Error, Result};

/// The most bytes of a tokenizer.
const MAX_JSON: u64 = 1 << 26;
/// Texts that are split together, on all cores.
const TOGETHER: usize = 4096;
/// Tokens that mean padding, where the file does not say which one does.
const PADDING: [&str; 4] = ["[PAD]", "<pad>", "<|pad|>", "<|padding|>"];

/// Gives texts as arrays of the numbers of their subwords, by a `tokenizer.json` as Hugging Face's `tokenizers` saves it: the same numbers as there, with
/// the tokens that the file puts around each text, such as `[CLS]` and `[SEP]`.
///
/// A longer text is cut and a shorter one padded to a length, as the file's `truncation` and `padding` say, else at the end and with the token `[PAD]`,
/// `<pad>`, `<|pad|>` or `<|padding|>`. `mask_zero` of an embedding masks padding whose number is 0.
///
/// ```
/// use phalanx::data::{HostTensor, SubwordTokenizer};
///
/// let json = r###"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": {"type": "Lowercase"},
///     "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
///     "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
///         "vocab": {"[PAD]": 0, "[UNK]": 1, "un": 2, "##believ": 3, "##able": 4, "film": 5}}}"###;
/// let tokenizer = SubwordTokenizer::from_json(json, 5)?;
/// let x = tokenizer.encode(["Unbelievable film", "a film"])?;
/// assert_eq!(x, HostTensor::new([2, 5], &[2i32, 3, 4, 5, 0, 1, 5, 0, 0, 0]));
/// assert_eq!(tokenizer.size(), 6);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone)]
pub struct SubwordTokenizer {
    tokenizer: Arc<Tokenizer>,
    json: Arc<str>,
    length: usize,
    size: usize,
    padding: i32,
}

impl SubwordTokenizer {
    /// The tokenizer of a file, for texts of this many numbers.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be read; [`Error::Data`] as [`from_json`](Self::from_json).
    pub fn open(path: impl AsRef<Path>, length: usize) -> Result<Self> {
        let path = path.as_ref();
        let io = |action| {
            move |source| Error::Io {
                path: path.to_owned(),
                action,
                source,
            }
        };
        let mut json = Vec::new();
        let file = File::open(path).map_err(io("open"))?;
        file.take(MAX_JSON + 1)
            .read_to_end(&mut json)
            .map_err(io("read"))?;
        let name = path.display().to_string();
        let json = String::from_utf8(json).map_err(|_| wrong(&name, "found no text in UTF-8"))?;
        Self::named(&name, json, length)
    }

    /// The tokenizer of the text of a file, for texts of this many numbers.
    ///
    /// # Errors
    /// [`Error::Data`] when the text is no tokenizer, or longer than 64 MiB; when it has no token for padding, or when the tokens that it puts
    /// around a text leave no room for another within `length`.
    pub fn from_json(json: impl Into<String>, length: usize) -> Result<Self> {
        Self::named("a tokenizer", json.into(), length)
    }

    fn named(name: &str, json: String, length: usize) -> Result<Self> {
        if json.len() as u64 > MAX_JSON {
            return Err(wrong(name, &format!("found more than {MAX_JSON} bytes")));
        }
        let read = caught(|| Tokenizer::from_bytes(json.as_bytes()));
        let mut tokenizer =
            read.map_err(|reason| wrong(name, &format!("found no tokenizer ({reason})")))?;
        let added = tokenizer.get_post_processor();
        let added = added.map_or(0, |processor| processor.added_tokens(false));
        if length <= added {
            return Err(wrong(
                name,
                &format!(
                    "found {added} tokens around each text, which a length of {length} has no room for"
                ),
            ));
        }
        let padding = padding_of(&tokenizer, length).map_err(|message| wrong(name, &message))?;
        let number = padding.pad_id;
        tokenizer.with_padding(Some(padding));
        let truncation = TruncationParams {
            max_length: length,
            stride: 0,
            ..tokenizer.get_truncation().cloned().unwrap_or_default()
        };
        let cut = tokenizer.with_truncation(Some(truncation)).map(|_| ());
        cut.map_err(|error| wrong(name, &format!("found {error}")))?;
        let largest = tokenizer.get_vocab(true).into_values().max();
        let largest = largest.unwrap_or(number).max(number);
        let largest = usize::try_from(largest)
            .ok()
            .filter(|&it| it < i32::MAX as usize);
        let largest =
            largest.ok_or_else(|| wrong(name, "found numbers that i32 has no room for"))?;
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            json: json.into(),
            length,
            size: largest + 1,
            padding: number as i32,
        })
    }

    /// Texts as i32 `[texts, length]`.
    ///
    /// # Errors
    /// When that is more than 16 GiB, or a text cannot be split, such as one with a word that is unknown where the tokenizer has no token for these.
    pub fn encode<T: AsRef<str>>(&self, texts: impl IntoIterator<Item = T>) -> Result<HostTensor> {
        let texts: Vec<T> = texts.into_iter().collect();
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        let (rows, length) = (texts.len(), self.length);
        check_size(rows, length)?;
        let mut numbers: Vec<i32> = Vec::with_capacity(rows * length);
        for some in texts.chunks(TOGETHER) {
            let encoded = caught(|| self.tokenizer.encode_batch_fast(some.to_vec(), true));
            let encoded = encoded.map_err(|reason| {
                Error::User(format!(
                    "the tokenizer cannot split a text ({reason}); check that it has a token for unknown words"
                ))
            })?;
            for one in encoded {
                let ids = one.get_ids().iter().take(length);
                numbers.extend(ids.map(|&id| id.cast_signed()));
            }
        }
        match numbers.len() == rows * length {
            true => Ok(HostTensor::new([rows, length], &numbers)),
            false => Err(Error::Bug(
                "texts of other lengths than was asked for".into(),
            )),
        }
    }

    /// One more than the largest number of a token: the `input_dim` of an embedding.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// How many numbers a text has.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// The number that padding has.
    #[must_use]
    pub const fn padding(&self) -> i32 {
        self.padding
    }

    /// The text of the file.
    #[must_use]
    pub fn json(&self) -> &str {
        &self.json
    }
}

impl PartialEq for SubwordTokenizer {
    fn eq(&self, other: &Self) -> bool {
        self.length == other.length && self.json == other.json
    }
}

impl Eq for SubwordTokenizer {}

impl std::fmt::Debug for SubwordTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (size, length) = (self.size, self.length);
        write!(f, "SubwordTokenizer {{ size: {size}, length: {length} }}")
    }
}

/// How the file pads, else by the token that is called so.
fn padding_of(tokenizer: &Tokenizer, length: usize) -> std::result::Result<PaddingParams, String> {
    let strategy = PaddingStrategy::Fixed(length);
    if let Some(padding) = tokenizer.get_padding().cloned() {
        return Ok(PaddingParams {
            strategy,
            pad_to_multiple_of: None,
            ..padding
        });
    }
    let mut known = PADDING.iter();
    let found = known.find_map(|&token| Some((token, tokenizer.token_to_id(token)?)));
    let (token, pad_id) = found.ok_or_else(|| {
        format!(
            "found no token of padding, expected `padding` or one of {}",
            PADDING.join(", ")
        )
    })?;
    Ok(PaddingParams {
        strategy,
        pad_id,
        pad_token: token.to_owned(),
        ..PaddingParams::default()
    })
}

/// What the library makes; the message tells why it gave up, also where it panics.
fn caught<T>(make: impl FnOnce() -> tokenizers::Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(make)) {
        Ok(Ok(made)) => Ok(made),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("its reader panicked".to_owned()),
    }
}

fn wrong(name: &str, found: &str) -> Error {
    Error::Data {
        source_name: name.to_owned(),
        place: "tokenizer".to_owned(),
        message: format!(
            "{found}; give a tokenizer.json as `save` of Hugging Face's tokenizers writes it, with a token [PAD] for padding"
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn golden(name: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tokenizers");
        format!("{folder}/{name}")
    }

    #[test]
    fn numbers_are_those_of_hugging_faces_tokenizers() {
        let expected = std::fs::read_to_string(golden("ids.json")).unwrap();
        let expected: Value = serde_json::from_str(&expected).unwrap();
        let texts: Vec<String> = serde_json::from_value(expected["texts"].clone()).unwrap();
        let rows = expected["rows"].as_array().unwrap();
        assert_eq!((texts.len(), rows.len()), (10, 6));
        for row in rows {
            let (file, length) = (
                row["file"].as_str().unwrap(),
                row["length"].as_u64().unwrap(),
            );
            let tokenizer = SubwordTokenizer::open(golden(file), length as usize).unwrap();
            assert_eq!(
                (tokenizer.size() as u64, tokenizer.padding()),
                (row["size"].as_u64().unwrap(), 0)
            );
            let ids: Vec<Vec<i32>> = serde_json::from_value(row["ids"].clone()).unwrap();
            let found = tokenizer.encode(&texts).unwrap();
            assert_eq!(
                found,
                HostTensor::new([10, length as usize], &ids.concat()),
                "{file} {length}"
            );
            // What was kept is read again.
            let again = SubwordTokenizer::from_json(tokenizer.json(), length as usize).unwrap();
            assert!(again == tokenizer && again.encode(&texts).unwrap() == found);
        }
    }

    /// With other settings of cutting and padding, which the file may have.
    #[test]
    fn the_file_says_how_texts_are_cut_and_padded() {
        let json = std::fs::read_to_string(golden("bpe.json")).unwrap();
        let mut json: Value = serde_json::from_str(&json).unwrap();
        json["truncation"] = serde_json::json!({"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 2});
        json["padding"] = serde_json::json!({"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 8, "pad_id": 7, "pad_type_id": 0, "pad_token": "<unk>"});
        let tokenizer = SubwordTokenizer::from_json(json.to_string(), 4).unwrap();
        // `great` is [270, 259] in ids.json; the last tokens of the first text are those of `dogs.`.
        let whole = SubwordTokenizer::open(golden("bpe.json"), 40).unwrap();
        let first = whole
            .encode(["great great great"])
            .unwrap()
            .values::<i32>()
            .unwrap();
        let used = first.iter().position(|&id| id == 0).unwrap();
        let expected = [&[7, 7, 270, 259][..], &first[used - 4..used]].concat();
        let found = tokenizer.encode(["great", "great great great"]).unwrap();
        assert_eq!(found, HostTensor::new([2, 4], &expected));
    }

    #[test]
    fn what_is_no_tokenizer_is_refused() {
        let json = std::fs::read_to_string(golden("wordpiece.json")).unwrap();
        let without = json.replace("[PAD]", "[NIL]");
        let cases = [
            (
                SubwordTokenizer::from_json("{}", 4),
                "a tokenizer: tokenizer: found no tokenizer (",
            ),
            (
                SubwordTokenizer::from_json("", 4),
                "found no tokenizer (EOF",
            ),
            (
                SubwordTokenizer::from_json(without, 4),
                "found no token of padding, expected `padding` or one of [PAD], <pad>",
            ),
            (
                SubwordTokenizer::from_json(json.as_str(), 2),
                "found 2 tokens around each text, which a length of 2 has no room for",
            ),
            (
                SubwordTokenizer::open(golden("ids.json"), 4),
                "ids.json: tokenizer: found no tokenizer (",
            ),
        ];
        for (read, expected) in cases {
            let error = read.unwrap_err().to_string();
            assert!(
                error.contains(expected) && error.contains("; give a tokenizer.json"),
                "{error}"
            );
        }
        let none = SubwordTokenizer::open(golden("none.json"), 4);
        assert!(
            matches!(none, Err(Error::Io { action: "open", .. })),
            "{none:?}"
        );
        for end in (0..json.len()).step_by(41) {
            assert!(
                SubwordTokenizer::from_json(json[..end].to_owned(), 4).is_err(),
                "{end}"
            );
        }
    }
}
