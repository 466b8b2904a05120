//! Columns of texts: the words of the training rows, which are kept with the model, and rows as their numbers.

use std::path::PathBuf;

use phalanx::data::{
    Batches, CsvColumns, Dataset, Example, HostTensor, LengthBuckets, SubwordTokenizer,
    TextOptions, TextSplit, TextStandardize, TextVectorizer, Vocabulary,
};
use phalanx::{Error, Result as Read};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::{Column, Csv, CsvText, Located, Problem, Source, TrainConfig};
use crate::data_facts::Facts;
use crate::scaling::length;

/// A column of texts, and the numbers of its words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "KeptText", into = "KeptText")]
pub struct TextFact {
    /// Its position in the files.
    pub index: usize,
    /// Its name; empty without a header.
    pub name: String,
    /// What has numbers, and how texts become them.
    pub vectorizer: TextNumbers,
    /// Whether the model takes texts of any length.
    pub any_length: bool,
}

/// What gives texts their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextNumbers {
    /// Words of the training rows.
    Words(TextVectorizer),
    /// The subwords of a tokenizer.
    Subwords(SubwordTokenizer),
}

impl TextNumbers {
    /// The words that have numbers; nothing of a tokenizer.
    #[must_use]
    pub const fn vocabulary(&self) -> Option<&Vocabulary<String>> {
        match self {
            Self::Words(words) => Some(words.vocabulary()),
            Self::Subwords(_) => None,
        }
    }

    fn encode(&self, texts: Vec<&String>) -> Read<HostTensor> {
        match self {
            Self::Words(words) => words.encode(texts),
            Self::Subwords(tokenizer) => tokenizer.encode(texts),
        }
    }

    /// What tells them from other words in their order, or from another tokenizer.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Words(words) => words.vocabulary().keys().join(", "),
            Self::Subwords(tokenizer) => {
                let digest = Sha256::digest(tokenizer.json());
                let start: String = digest
                    .iter()
                    .take(4)
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                format!(
                    "a tokenizer of {} tokens (sha256 {start}..)",
                    tokenizer.size()
                )
            }
        }
    }
}

/// As it is kept with a model.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptText {
    index: usize,
    name: String,
    length: usize,
    vocabulary: Option<usize>,
    standardize: String,
    split: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ngrams: Option<usize>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    any_length: bool,
    words: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokenizer: Option<String>,
}

impl From<TextFact> for KeptText {
    fn from(fact: TextFact) -> Self {
        let (options, words, tokenizer) = match fact.vectorizer {
            TextNumbers::Words(words) => {
                (*words.options(), words.vocabulary().keys().to_vec(), None)
            }
            TextNumbers::Subwords(tokenizer) => (
                TextOptions::new(tokenizer.length()),
                Vec::new(),
                Some(tokenizer.json().to_owned()),
            ),
        };
        Self {
            index: fact.index,
            name: fact.name,
            length: options.length,
            vocabulary: options.vocabulary,
            standardize: options.standardize.name().to_owned(),
            split: options.split.name().to_owned(),
            ngrams: (options.ngrams > 1).then_some(options.ngrams),
            any_length: fact.any_length,
            words,
            tokenizer,
        }
    }
}

impl TryFrom<KeptText> for TextFact {
    type Error = String;

    fn try_from(kept: KeptText) -> Result<Self, String> {
        let unknown = |key: &str, name: &str| {
            format!("`{key}` of a text is {name:?}, which this program does not know")
        };
        let standardize = TextStandardize::from_name(&kept.standardize);
        let split = TextSplit::from_name(&kept.split);
        let options = TextOptions {
            length: kept.length,
            vocabulary: kept.vocabulary,
            standardize: standardize.ok_or_else(|| unknown("standardize", &kept.standardize))?,
            split: split.ok_or_else(|| unknown("split", &kept.split))?,
            ngrams: kept.ngrams.unwrap_or(1),
        };
        let vectorizer = match kept.tokenizer {
            None => TextVectorizer::new(kept.words, options).map(TextNumbers::Words),
            Some(json) => SubwordTokenizer::from_json(json, kept.length).map(TextNumbers::Subwords),
        };
        Ok(Self {
            index: kept.index,
            name: kept.name,
            vectorizer: vectorizer.map_err(|error| error.to_string())?,
            any_length: kept.any_length,
        })
    }
}

impl TextFact {
    /// The column as people call it.
    pub(crate) fn shown(&self) -> String {
        match self.name.is_empty() {
            true => format!("column {}", self.index),
            false => self.name.clone(),
        }
    }

    /// What has a number.
    pub(crate) const fn unit(&self) -> &'static str {
        match &self.vectorizer {
            TextNumbers::Subwords(_) => SUBWORDS,
            TextNumbers::Words(words) => match words.options().split {
                TextSplit::Whitespace => "words",
                TextSplit::Character => "characters",
            },
        }
    }

    /// The numbers that its words have.
    pub(crate) fn size(&self) -> usize {
        match &self.vectorizer {
            TextNumbers::Words(words) => words.vocabulary().size(),
            TextNumbers::Subwords(tokenizer) => tokenizer.size(),
        }
    }

    /// How many numbers an example has.
    pub(crate) const fn length(&self) -> usize {
        match &self.vectorizer {
            TextNumbers::Words(words) => words.options().length,
            TextNumbers::Subwords(tokenizer) => tokenizer.length(),
        }
    }
}

/// The columns of texts, with the words of these rows, those to train on; `columns` has the texts of all.
///
/// # Errors
/// Texts without a word, at the line that names the column.
pub(crate) fn of_training(
    data: &Csv,
    header: &[String],
    train: &Dataset,
    columns: &CsvColumns,
) -> Result<Vec<TextFact>, Problem> {
    let mut facts = Vec::new();
    for (place, text) in data.text.iter().enumerate() {
        let index = position(header, &text.column.value);
        let vectorizer = match &text.tokenizer {
            Some(tokenizer) => tokenizer_of(text, tokenizer)?,
            None => words_of(text, || in_rows(train, place, columns.texts()))?,
        };
        facts.push(TextFact {
            index,
            name: header.get(index).cloned().unwrap_or_default(),
            vectorizer,
            any_length: !text.buckets.value.is_empty(),
        });
    }
    Ok(facts)
}

/// The words of the training rows.
fn words_of<'t>(
    text: &CsvText,
    texts: impl FnOnce() -> Read<Vec<&'t String>>,
) -> Result<TextNumbers, Problem> {
    let words = texts().and_then(|texts| {
        let vectorizer = TextVectorizer::adapt(texts, text.options);
        vectorizer.map_err(|error| match error {
            Error::User(message) => Error::User(format!("the training rows: {message}")),
            other => other,
        })
    });
    words.map(TextNumbers::Words).map_err(|error| {
        let next = "correct the column, or what `text` says of it";
        Problem::new(text.column.at, error.to_string(), next)
    })
}

/// The tokenizer of a text, at this path.
fn tokenizer_of(
    text: &CsvText,
    Located { value: path, at }: &Located<PathBuf>,
) -> Result<TextNumbers, Problem> {
    let tokenizer = SubwordTokenizer::open(path, text.options.length).map_err(|error| {
        let next = "correct the path, the file or `length`; a relative path starts at the folder of this file";
        Problem::new(*at, error.to_string(), next)
    })?;
    if tokenizer.padding() != 0 && !text.buckets.value.is_empty() {
        let message = format!(
            "`buckets` takes 0 for padding, and the tokenizer pads with {}",
            tokenizer.padding()
        );
        let next = "remove `buckets`, or give its padding the number 0";
        return Err(Problem::new(text.buckets.at, message, next));
    }
    Ok(TextNumbers::Subwords(tokenizer))
}

/// Rows in batches of similar lengths of a text or another sequence, whose end of zeros is padding, in an order drawn by `seed`, if there is one; nothing where all batches have one length.
///
/// # Errors
/// When a row cannot be read.
pub(crate) fn by_length(
    config: &TrainConfig,
    rows: &Dataset,
    seed: Option<u64>,
) -> Read<Option<Batches>> {
    let Some((input, lengths)) = config.length_buckets() else {
        return Ok(None);
    };
    let boundaries: Vec<usize> = lengths.iter().map(|length| length + 1).collect();
    let sizes = vec![config.fit.batch_size; boundaries.len() + 1];
    let buckets = LengthBuckets::new(boundaries, sizes)?
        .pad_to_boundary()
        .sequences([input]);
    let buckets = match seed {
        Some(seed) => buckets.shuffle(seed),
        None => buckets,
    };
    let cut = rows.map(move |mut example| {
        let words = example.x.get_mut(input);
        let words = words.ok_or_else(|| Error::Bug("a row without its text".into()))?;
        let length = words.values::<i32>().unwrap_or_default();
        let length = length.iter().rposition(|&word| word != 0);
        *words = words.slice_rows(0, length.map_or(0, |last| last + 1));
        Ok(example)
    });
    let length = move |example: &Example| example.x[input].rows();
    cut.bucket_by_sequence_length(length, &buckets).map(Some)
}

/// The position of a column in files with this header, which has it.
pub(crate) fn position(header: &[String], column: &Column) -> usize {
    match column {
        Column::Index(index) => *index,
        Column::Name(name) => {
            let found = header.iter().position(|other| other == name);
            found.unwrap_or_default()
        }
    }
}

/// The texts of rows in a column of texts or, behind all of these, of categories.
pub(crate) fn in_rows<'t>(
    rows: &Dataset,
    place: usize,
    texts: &'t [Vec<String>],
) -> Read<Vec<&'t String>> {
    let batch = rows.batch(length(rows)).get(0, 0)?;
    let first = batch.x.len().saturating_sub(texts.len());
    of_places(&batch.x[first..], place, texts)
}

fn of_places<'t>(
    places: &[HostTensor],
    column: usize,
    texts: &'t [Vec<String>],
) -> Read<Vec<&'t String>> {
    let absent = || Error::Bug("a row without its text".into());
    let (places, texts) = (places.get(column), texts.get(column));
    let places = places
        .and_then(HostTensor::values::<i32>)
        .ok_or_else(absent)?;
    let texts = texts.ok_or_else(absent)?;
    let of = |place: i32| texts.get(usize::try_from(place).ok()?);
    places
        .into_iter()
        .map(|place| of(place).ok_or_else(absent))
        .collect()
}

impl Facts {
    /// The last arrays of rows, which say where their texts and categories are, as the numbers of the words and the categories.
    pub(crate) fn encoded(
        &self,
        places: &[HostTensor],
        texts: &[Vec<String>],
    ) -> Read<Vec<HostTensor>> {
        let each = self.texts.iter().enumerate();
        let encoded =
            each.map(|(column, fact)| fact.vectorizer.encode(of_places(places, column, texts)?));
        let behind = self.categories.iter().zip(self.texts.len()..);
        let categories =
            behind.map(|(fact, column)| fact.encode(&of_places(places, column, texts)?));
        encoded.chain(categories).collect()
    }

    /// Whether the tables of embeddings have a row for each number of the words that they are given, and vectors of categories a place.
    ///
    /// # Errors
    /// One that is too small, at its line, with the number to write.
    pub(crate) fn check_embeddings(&self, config: &TrainConfig) -> Result<(), Problem> {
        let sources = match config.is_stack() {
            true => vec![vec![Source::Input(0)]],
            // What is wrong with them is said where the model is built.
            false => config.sources().unwrap_or_default(),
        };
        for (layer, sources) in config.layers().iter().zip(sources) {
            let [Source::Input(input)] = sources[..] else {
                continue;
            };
            let setting = match &*layer.name {
                "embedding" | "reversible_embedding" => "input_dim",
                "category_encoding" => "num_tokens",
                _ => continue,
            };
            let rows = layer.settings.get(setting);
            let rows = rows.and_then(serde_json::Value::as_u64);
            let (Some(rows), Some(numbered)) = (rows, self.numbered(input)) else {
                continue;
            };
            if rows < numbered.size as u64 {
                return Err(layer.problem(&numbered.too_few(setting, rows)));
            }
        }
        Ok(())
    }

    /// What has the numbers that an input of the model is, if it is words or categories.
    fn numbered(&self, input: usize) -> Option<Numbered> {
        let input = self.inputs.get(input);
        if let Some(category) = input.and_then(|input| self.categories.get(input.category?)) {
            return Some(Numbered {
                key: "category",
                unit: "names",
                zero: "missing ones",
                shown: category.shown(),
                size: category.size(),
                is_hashed: category.hash.is_some(),
            });
        }
        let text = match input {
            None => self.texts.first(),
            Some(input) => self.texts.get(input.text?),
        }?;
        Some(Numbered {
            key: "text",
            unit: text.unit(),
            zero: "padding",
            shown: text.shown(),
            size: text.size(),
            is_hashed: false,
        })
    }
}

/// What a tokenizer makes of texts.
const SUBWORDS: &str = "subwords";

/// What has numbers in a column.
struct Numbered {
    /// The key that says so.
    key: &'static str,
    unit: &'static str,
    /// What 0 stands for.
    zero: &'static str,
    shown: String,
    size: usize,
    is_hashed: bool,
}

impl Numbered {
    /// What is wrong with a layer whose `setting` is too small.
    fn too_few(&self, setting: &str, rows: u64) -> String {
        let Self {
            key,
            unit,
            zero,
            shown,
            size,
            is_hashed,
        } = self;
        if *is_hashed {
            return format!(
                "`{setting}` is {rows}, and `hash: {size}` in `{key}` gives the {unit} of {shown} the numbers 0 to {}; write `{setting}: {size}`, or a smaller `hash`",
                size - 1
            );
        }
        if *unit == SUBWORDS {
            return format!(
                "`{setting}` is {rows}, and the {unit} of {shown} have the numbers 0 to {}, as the tokenizer gives them; write `{setting}: {size}`",
                size - 1
            );
        }
        // A vocabulary is no smaller than this.
        let or = match rows {
            ..3 => String::new(),
            _ => format!(", or `vocabulary: {rows}` in `{key}`"),
        };
        format!(
            "`{setting}` is {rows}, and the {unit} of {shown} have the numbers 0 to {}: {} {unit}, 0 for {zero} and 1 for unknown ones; write `{setting}: {size}`{or}",
            size - 1,
            size - 2
        )
    }
}
