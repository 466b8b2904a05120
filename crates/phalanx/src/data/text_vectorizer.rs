//! Texts as arrays of the numbers of their words.

use std::borrow::Cow;
use std::collections::HashMap;

use phalanx_graph::HostTensor;

use super::Vocabulary;
use super::vocabulary::most_frequent;
use crate::{Error, Result};

/// The most bytes of the numbers of some texts.
const MAX_BYTES: usize = 1 << 34;
/// What Keras calls the unknown: a word of a text that is written so is unknown too.
const UNKNOWN_WORD: &str = "[UNK]";

/// How texts become words, and how many of these have a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// Numbers of an example: of a longer text the words at its end are left out, after a shorter one comes padding.
    pub length: usize,
    /// The most numbers that there are, padding and the unknown among them (Keras' `max_tokens`); `None` for no limit.
    pub vocabulary: Option<usize>,
    /// What is changed in a text before it is split.
    pub standardize: TextStandardize,
    /// What a word is.
    pub split: TextSplit,
    /// The most words in a row that have a number together (Keras' `ngrams` as a number), with spaces between them: with 2, `not good` has the
    /// numbers of `not`, `good` and `not good`. 1 for none; all of one word come first, then all of two.
    pub ngrams: usize,
}

impl TextOptions {
    /// Keras' defaults: lower case without punctuation, split at whitespace, numbers for all words; texts of this length.
    #[must_use]
    pub const fn new(length: usize) -> Self {
        Self {
            length,
            vocabulary: None,
            standardize: TextStandardize::LowerAndStripPunctuation,
            split: TextSplit::Whitespace,
            ngrams: 1,
        }
    }

    fn check(&self) -> Result<()> {
        if self.length == 0 {
            return Err(Error::user(
                "texts of length 0 have no words; choose a length of 1 or more",
            ));
        }
        if self.ngrams == 0 {
            return Err(Error::user(
                "0 words in a row are no word; choose `ngrams` of 1 or more",
            ));
        }
        match self.vocabulary {
            Some(most @ ..3) => Err(Error::User(format!(
                "a vocabulary of {most} has no word, for 0 is padding and 1 the unknown; choose 3 or more"
            ))),
            _ => Ok(()),
        }
    }

    /// The text as it is split.
    fn standardized<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let is_kept = |letter: &char| !letter.is_ascii_punctuation();
        match self.standardize {
            TextStandardize::None => text.into(),
            TextStandardize::Lower => text.to_ascii_lowercase().into(),
            TextStandardize::StripPunctuation => text.chars().filter(is_kept).collect(),
            TextStandardize::LowerAndStripPunctuation => {
                let kept = text.chars().filter(is_kept);
                kept.map(|letter| letter.to_ascii_lowercase()).collect()
            }
        }
    }

    /// What of a standardized text may have numbers, in its order.
    fn words<'t>(&self, text: &'t str) -> Box<dyn Iterator<Item = Cow<'t, str>> + 't> {
        if self.ngrams == 1 {
            return Box::new(self.single_words(text).map(Cow::Borrowed));
        }
        let words: Vec<&str> = self.single_words(text).collect();
        let widths = 1..=self.ngrams.min(words.len());
        let rows = widths.flat_map(|width| words.windows(width));
        let rows: Vec<Cow<'t, str>> = rows.map(|row| row.join(" ").into()).collect();
        Box::new(rows.into_iter())
    }

    /// The words of a standardized text, in their order.
    fn single_words<'t>(&self, text: &'t str) -> Box<dyn Iterator<Item = &'t str> + 't> {
        match self.split {
            TextSplit::Whitespace => Box::new(text.split(is_space).filter(|word| !word.is_empty())),
            TextSplit::Character => {
                let letters = text.char_indices();
                Box::new(letters.map(|(at, letter)| &text[at..at + letter.len_utf8()]))
            }
        }
    }
}

/// What `isspace` of C calls so; Rust's ASCII whitespace lacks the vertical tab, and Unicode's spaces separate no words.
const fn is_space(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

/// What is changed in a text before it is split into words: Keras' `standardize`.
///
/// As in Keras, lower case and punctuation are about ASCII alone: `É` stays, and so do `„` and `…`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextStandardize {
    /// Letters become small, and punctuation is removed; what stood before and after it is one word.
    #[default]
    LowerAndStripPunctuation,
    /// Letters become small.
    Lower,
    /// Punctuation is removed.
    StripPunctuation,
    /// Nothing.
    None,
}

impl TextStandardize {
    /// The names in training files.
    pub const NAMES: [&'static str; 4] = [
        "lower_and_strip_punctuation",
        "lower",
        "strip_punctuation",
        "none",
    ];
    const ALL: [Self; 4] = [
        Self::LowerAndStripPunctuation,
        Self::Lower,
        Self::StripPunctuation,
        Self::None,
    ];

    /// The one of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let place = Self::NAMES.iter().position(|known| *known == name)?;
        Some(Self::ALL[place])
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// What of a text is a word: Keras' `split`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextSplit {
    /// What stands between spaces, tabs and line ends of ASCII.
    #[default]
    Whitespace,
    /// Each code point of Unicode, spaces too.
    Character,
}

impl TextSplit {
    /// The names in training files.
    pub const NAMES: [&'static str; 2] = ["whitespace", "character"];
    const ALL: [Self; 2] = [Self::Whitespace, Self::Character];

    /// The one of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let place = Self::NAMES.iter().position(|known| *known == name)?;
        Some(Self::ALL[place])
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Gives texts as arrays of the numbers of their words, as `embedding` takes them: 0 is padding, which `mask_zero` masks, 1 a word
/// that is not in the vocabulary, others count from 2.
///
/// Keras' `TextVectorization` with `output_mode="int"` and an `output_sequence_length`: the same words get the same numbers.
///
/// ```
/// use phalanx::data::{Dataset, HostTensor, TextOptions, TextVectorizer};
///
/// let reviews = ["Great, great film!", "A dull film."];
/// let texts = TextVectorizer::adapt(reviews, TextOptions::new(4))?;
/// assert_eq!(texts.vocabulary().keys(), ["great", "film", "dull", "a"]);
/// let x = texts.encode(["A great pie"])?;
/// assert_eq!(x, HostTensor::new([1, 4], &[5i32, 2, 1, 0]));
/// let dataset = Dataset::from_arrays(texts.encode(reviews)?, HostTensor::new([2], &[1i32, 0]))?;
/// # assert_eq!(dataset.len(), Some(2));
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextVectorizer {
    options: TextOptions,
    vocabulary: Vocabulary<String>,
}

impl TextVectorizer {
    /// With the words of some texts, those to train on: the most frequent first, equally frequent ones in the reverse order of the
    /// alphabet (of their bytes), as Keras has them.
    ///
    /// # Errors
    /// When the options have no room for a word, or the texts have none.
    pub fn adapt<T: AsRef<str>>(
        texts: impl IntoIterator<Item = T>,
        options: TextOptions,
    ) -> Result<Self> {
        options.check()?;
        let (mut counts, mut seen) = (HashMap::<String, u64>::new(), 0usize);
        for text in texts {
            seen += 1;
            for word in options.words(&options.standardized(text.as_ref())) {
                if let Some(count) = counts.get_mut(&*word) {
                    *count += 1;
                } else {
                    counts.insert(word.into_owned(), 1);
                }
            }
        }
        counts.remove(UNKNOWN_WORD);
        if counts.is_empty() {
            return Err(Error::User(format!(
                "none of {seen} texts has a word; check that these are the right texts, or keep punctuation"
            )));
        }
        // The vocabulary has two numbers of its own.
        let room = options.vocabulary.unwrap_or(i32::MAX as usize) - 2;
        Self::new(most_frequent(counts).into_iter().take(room), options)
    }

    /// With these words, in the order of their numbers, as a [`vocabulary`](Self::vocabulary) that was kept has them.
    ///
    /// # Errors
    /// When the options have no room for a word, or a word is empty, there twice, or one too many.
    pub fn new(words: impl IntoIterator<Item = String>, options: TextOptions) -> Result<Self> {
        options.check()?;
        let vocabulary = Vocabulary::new(words)?;
        let (size, most) = (vocabulary.size(), options.vocabulary.unwrap_or(usize::MAX));
        if size > most {
            return Err(Error::User(format!(
                "a vocabulary of {size} numbers is more than the {most} of the options; leave words out, or raise the limit"
            )));
        }
        let of_none = |word: &&String| word.is_empty() || *word == UNKNOWN_WORD;
        if let Some(word) = vocabulary.keys().iter().find(of_none) {
            return Err(Error::User(format!(
                "the vocabulary has the word {word:?}, which stands for no word of a text; leave it out"
            )));
        }
        Ok(Self {
            options,
            vocabulary,
        })
    }

    /// Texts as i32 `[texts, length]`.
    ///
    /// # Errors
    /// When that is more than 16 GiB.
    pub fn encode<T: AsRef<str>>(&self, texts: impl IntoIterator<Item = T>) -> Result<HostTensor> {
        let length = self.options.length;
        let (mut numbers, mut rows) = (Vec::new(), 0usize);
        for text in texts {
            rows += 1;
            check_size(rows, length)?;
            let text = self.options.standardized(text.as_ref());
            let words = self.options.words(&text).take(length);
            numbers.extend(words.map(|word| self.vocabulary.index(&*word)));
            numbers.resize(rows * length, Vocabulary::<String>::PADDING);
        }
        Ok(HostTensor::new([rows, length], &numbers))
    }

    /// The words and their numbers. Its [`size`](Vocabulary::size) is the `input_dim` of an embedding.
    #[must_use]
    pub const fn vocabulary(&self) -> &Vocabulary<String> {
        &self.vocabulary
    }

    /// How texts become words.
    #[must_use]
    pub const fn options(&self) -> &TextOptions {
        &self.options
    }
}

/// Refuses texts of more numbers than fit in the most bytes.
pub(super) fn check_size(rows: usize, length: usize) -> Result<()> {
    if rows.saturating_mul(length) <= MAX_BYTES / size_of::<i32>() {
        return Ok(());
    }
    Err(Error::User(format!(
        "{rows} texts of length {length} are more than 16 GiB; choose a smaller length, or fewer texts"
    )))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;

    use super::*;

    fn strings(value: &Value) -> Vec<String> {
        serde_json::from_value(value.clone()).unwrap()
    }

    /// The arguments of Keras' constructor.
    fn of_keras(config: &Value) -> TextOptions {
        let number = |key: &str| {
            let number = config.get(key)?.as_u64()?;
            usize::try_from(number).ok()
        };
        let standardize = match config.get("standardize") {
            None => TextStandardize::default(),
            Some(Value::Null) => TextStandardize::None,
            Some(name) => TextStandardize::from_name(name.as_str().unwrap()).unwrap(),
        };
        let split = config.get("split").and_then(Value::as_str);
        TextOptions {
            vocabulary: number("max_tokens"),
            standardize,
            split: split.map_or(TextSplit::default(), |name| {
                TextSplit::from_name(name).unwrap()
            }),
            ngrams: number("ngrams").unwrap_or(1),
            ..TextOptions::new(number("output_sequence_length").unwrap())
        }
    }

    #[test]
    fn words_and_numbers_are_those_of_keras() {
        let file = "../../tests/golden/keras/texts.json";
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let golden: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let records = golden["records"].as_array().unwrap();
        assert!(records.len() > 20, "{}", records.len());
        for record in records {
            let name = &record["name"];
            let (texts, others) = (strings(&record["texts"]), strings(&record["others"]));
            let made = TextVectorizer::adapt(&texts, of_keras(&record["config"])).unwrap();
            let words = strings(&record["vocabulary"]);
            assert_eq!(made.vocabulary().keys(), words, "{name}");
            assert_eq!(record["size"], made.vocabulary().size(), "{name}");
            let encoded = made.encode(texts.iter().chain(&others)).unwrap();
            let numbers: Vec<i32> =
                serde_json::from_value(record["encoded"]["data"].clone()).unwrap();
            assert_eq!(encoded.values(), Some(numbers), "{name}");
            let dims = record["encoded"]["shape"].as_array().unwrap();
            assert_eq!(
                encoded.dims(),
                [texts.len() + others.len(), made.options().length]
            );
            assert_eq!(dims[1], made.options().length, "{name}");
            let again = TextVectorizer::new(words, *made.options()).unwrap();
            assert_eq!(again, made, "{name}");
        }
    }

    #[test]
    fn what_leaves_no_word_is_refused() {
        let options = TextOptions::new(2);
        let refused = |texts: &[&str], options| {
            let error = TextVectorizer::adapt(texts, options).unwrap_err();
            error.to_string()
        };
        let none = refused(&["", " ?! "], options);
        assert!(
            none.starts_with("none of 2 texts has a word; check"),
            "{none}"
        );
        assert!(refused(&[], options).starts_with("none of 0 texts"));
        let kept = TextOptions {
            standardize: TextStandardize::None,
            ..options
        };
        assert!(refused(&["[UNK]"], kept).starts_with("none of 1 texts"));
        assert!(refused(&["a"], TextOptions::new(0)).contains("length 0"));
        let of_none = TextOptions {
            ngrams: 0,
            ..options
        };
        assert!(refused(&["a"], of_none).contains("0 words in a row"));
        let of = |vocabulary| TextOptions {
            vocabulary: Some(vocabulary),
            ..options
        };
        for vocabulary in 0..3 {
            let message = refused(&["a"], of(vocabulary));
            let expected = format!("a vocabulary of {vocabulary} has no word");
            assert!(message.starts_with(&expected), "{message}");
        }
        assert!(TextVectorizer::adapt(["a b"], of(3)).is_ok());
        let made = |words: &[&str], options| {
            let words = words.iter().map(ToString::to_string);
            TextVectorizer::new(words, options).unwrap_err().to_string()
        };
        assert!(made(&["a", "b", "a"], options).contains("2 different ones"));
        assert!(made(&["a", "b"], of(3)).contains("of 4 numbers is more than the 3"));
        for word in ["", "[UNK]"] {
            assert!(made(&["a", word], options).contains(&format!("the word {word:?}")));
        }
    }

    #[test]
    fn too_many_numbers_are_refused_before_they_take_memory() {
        let options = TextOptions::new(MAX_BYTES / 4 + 1);
        let made = TextVectorizer::adapt(["a"], options).unwrap();
        let error = made.encode(["a"]).unwrap_err().to_string();
        assert!(error.contains("are more than 16 GiB"), "{error}");
    }

    #[test]
    fn names_are_those_of_training_files() {
        for name in TextStandardize::NAMES {
            assert_eq!(
                TextStandardize::from_name(name).map(TextStandardize::name),
                Some(name)
            );
        }
        for name in TextSplit::NAMES {
            assert_eq!(TextSplit::from_name(name).map(TextSplit::name), Some(name));
        }
        assert_eq!(
            (TextSplit::from_name("x"), TextStandardize::from_name("")),
            (None, None)
        );
    }
}
