//! Columns of texts: the key `text` of CSV files.

use std::path::{Path, PathBuf};

use phalanx::config::{DefaultValue, Field, Kind};
use phalanx::data::{TextOptions, TextSplit, TextStandardize};
use phalanx_yaml::Node;

use super::inputs::{COLUMN, column, shown_column};
use super::paths;
use super::reader::{Reader, Section, list, text, whole};
use super::sections::{as_usize, located};
use super::{Column, Csv, CsvInput, Label, Located};

/// Most columns of texts.
const MAX_TEXTS: usize = 64;
/// Most buckets of lengths.
const MAX_BUCKETS: usize = 64;
/// What `vocabulary` is where it is left out.
const VOCABULARY: usize = 20_000;

/// `text` of CSV files.
pub(super) const OF_CSV: Field = Field::new(
    "text",
    Kind::Worded(
        "a mapping with the keys column, length, vocabulary, standardize, split, ngrams, tokenizer and buckets, or a list of such mappings",
        &Kind::Either(&[
            Kind::Section(TEXT),
            Kind::List(&Kind::Section(TEXT), 1, MAX_TEXTS),
        ]),
    ),
    DefaultValue::Words("no column is read as texts"),
    "a column of texts, such as reviews, which are given to the model as the numbers of their words, `length` for each example, as `embedding` takes them. Without `inputs` it is all that the model is given, and the columns beside it and the label are not read; else one of the inputs is this column alone. Its fields may be quoted, with line breaks and doubled quotes inside. Where `missing` is `drop`, rows with an empty text are left out, and where it is `mean` or a number, an empty text is padding alone",
)
.example("{column: review, length: 200}");

/// `buckets` of a text, and of another sequence.
pub(super) const BUCKETS: Field = Field::new(
    "buckets",
    Kind::Worded(
        "a list of rising whole numbers above 0, all below `length`",
        &Kind::List(&Kind::Whole(1, 1 << 16), 1, MAX_BUCKETS),
    ),
    DefaultValue::Words("every example is as long as `length`"),
    "lengths between: with `length: 200` and `[50, 100]`, batches are of examples of at most 50, of at most 100, or of more, and padded to 50, 100 or 200, so that short ones take less time. The model takes any length then, and its layers leave padding out, such as an `embedding` with `mask_zero`. One program is compiled for each bucket, or two, as the last batch of a bucket in an epoch may not be full; `batch_size` is of every bucket. One input alone can have it",
)
.example("[50, 100]");

/// `tokenizer` of a text.
const TOKENIZER: Field = Field::new(
    "tokenizer",
    Kind::Worded("a path", &Kind::Text),
    DefaultValue::Words("words are split and numbered as the other keys say"),
    "a `tokenizer.json` of Hugging Face, which splits texts into subwords and numbers them, in the place of `vocabulary`, `standardize`, `split` and `ngrams`. Its tokens around a text, such as `[CLS]`, count in `length`, and its padding is the one that it names, else `[PAD]` or `<pad>`. It is kept with the model, and the file is not read again to `predict`",
)
.example("tokenizer.json");

/// What has no meaning beside `tokenizer`.
const OF_WORDS: [&str; 4] = ["vocabulary", "standardize", "split", "ngrams"];

/// The keys of a column of texts.
pub(crate) const TEXT: &[Field] = &[
    Field::required(
        "column",
        Kind::Worded(
            "the name of a column, or its position from 0",
            &COLUMN,
        ),
        "the column of the texts, in UTF-8",
    )
    .example("review"),
    Field::required(
        "length",
        Kind::Whole(1, 1 << 16),
        "how many words an example has: of longer texts those at the end are left out, after shorter ones comes padding, which is 0",
    )
    .example("200"),
    Field::new(
        "vocabulary",
        Kind::Whole(3, 1_000_000),
        DefaultValue::Value("20000"),
        "the most numbers that words have, 0 for padding and 1 for unknown words among them: the most frequent words of the training rows, from 2 on. They are kept with the model. The `input_dim` of `embedding` is at least as large, or as large as the number that the line about the data gives",
    )
    .example("20000"),
    Field::new(
        "standardize",
        Kind::OneOf(&TextStandardize::NAMES),
        DefaultValue::Value("lower_and_strip_punctuation"),
        "what is changed in a text before it is split: letters are made small, punctuation is removed, both, or nothing. As in Keras' `TextVectorization`, this is about letters and signs of ASCII",
    )
    .example("lower"),
    Field::new(
        "split",
        Kind::OneOf(&TextSplit::NAMES),
        DefaultValue::Value("whitespace"),
        "what a word is: what stands between spaces, tabs and line ends, or each `character`",
    )
    .example("whitespace"),
    Field::new(
        "ngrams",
        Kind::Whole(1, 16),
        DefaultValue::Value("1"),
        "how many words in a row have a number together, at most: with 2, `not good` has the numbers of `not`, `good` and `not good`. All of one word come first, then all of two, and `length` counts them all",
    )
    .example("2"),
    TOKENIZER,
    BUCKETS,
];

/// A column of texts that `data` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvText {
    /// The column.
    pub column: Located<Column>,
    /// How its texts become numbers.
    pub options: TextOptions,
    /// What splits and numbers texts in the place of all options but the length.
    pub tokenizer: Option<Located<PathBuf>>,
    /// The lengths of batches below the longest, which `options` has; empty where all batches have it.
    pub buckets: Located<Vec<usize>>,
}

/// Whether lengths of batches rise and stay below the longest.
pub(super) fn rising(buckets: &[usize], length: usize) -> bool {
    buckets.windows(2).all(|two| two[0] < two[1])
        && buckets.last().is_none_or(|last| *last < length)
}

pub(super) fn is_label(label: &Label, column: &Column) -> bool {
    match (label, column) {
        (Label::Index(label), Column::Index(column)) => label == column,
        (Label::Name(label), Column::Name(column)) => label == column,
        _ => false,
    }
}

impl Csv {
    /// The input whose lengths decide which examples are in a batch together, and the lengths that batches have.
    pub(super) fn length_buckets(&self) -> Option<(usize, Vec<usize>)> {
        let text = self
            .text
            .iter()
            .find(|text| !text.buckets.value.is_empty())?;
        let column = &text.column.value;
        let mut inputs = self.inputs.value.iter();
        let input =
            inputs.position(|input| input.is_index && input.columns.first() == Some(column));
        let lengths = text.buckets.value.iter().chain([&text.options.length]);
        Some((input.unwrap_or(0), lengths.copied().collect()))
    }

    /// The place among the columns of texts of the one that an input is.
    pub(crate) fn text_of(&self, input: &CsvInput) -> Option<usize> {
        let mut texts = self.text.iter();
        let found = texts.position(|text| input.columns.first() == Some(&text.column.value));
        found.filter(|_| input.is_index)
    }
}

impl Reader {
    /// The key `text` of CSV files.
    pub(super) fn csv_texts(&mut self, section: &Section<'_>, folder: &Path) -> Vec<CsvText> {
        let nodes = self.one_or_list(section, OF_CSV.name, MAX_TEXTS);
        let texts = nodes.iter().filter_map(|node| self.csv_text(node, folder));
        texts.collect()
    }

    fn csv_text(&mut self, node: &Node, folder: &Path) -> Option<CsvText> {
        let section = self.section(node, OF_CSV.name, TEXT)?;
        let number = |node: &Node| whole(node).map(as_usize);
        let column = self.value(&section, "column", located(column));
        let length = self.value(&section, "length", number);
        let vocabulary = self.value(&section, "vocabulary", number);
        let standardize = self.value(&section, "standardize", |node| {
            TextStandardize::from_name(text(node)?)
        });
        let split = self.value(&section, "split", |node| TextSplit::from_name(text(node)?));
        let ngrams = self.value(&section, "ngrams", number);
        let path = located(|node: &Node| paths::path(node, folder));
        let tokenizer = self.value(&section, TOKENIZER.name, path);
        let of_words = OF_WORDS.iter().filter(|_| tokenizer.is_some());
        for (key, _) in of_words.filter_map(|name| section.entry(name)) {
            let message = format!(
                "`tokenizer` splits the texts, and `{}` is there too",
                key.name
            );
            self.problem(key.at, message, "keep one of them");
        }
        let buckets = self.buckets(&section);
        Some(CsvText {
            tokenizer,
            buckets: buckets.unwrap_or_else(|| Located {
                value: Vec::new(),
                at: section.at,
            }),
            column: column?,
            options: TextOptions {
                vocabulary: Some(vocabulary.unwrap_or(VOCABULARY)),
                standardize: standardize.unwrap_or_default(),
                split: split.unwrap_or_default(),
                ngrams: ngrams.unwrap_or(1),
                ..TextOptions::new(length?)
            },
        })
    }

    /// What `text` of CSV files does not go with.
    pub(super) fn check_texts(&mut self, csv: &Csv) {
        let columns: Vec<_> = csv.text.iter().map(|text| &text.column).collect();
        self.check_own_columns(csv, (OF_CSV.name, "a text", "texts"), &columns);
        if csv.inputs.value.is_empty() && !csv.text.is_empty() {
            self.check_only_text(csv);
        }
        self.check_buckets(csv);
    }

    /// The lengths of batches, if they are by length.
    pub(super) fn buckets(&mut self, section: &Section<'_>) -> Option<Located<Vec<usize>>> {
        self.value(section, BUCKETS.name, |node| {
            let lengths = list(node)?.iter().map(|node| whole(node).map(as_usize));
            let value = lengths.collect::<Option<Vec<usize>>>()?;
            Some(Located { value, at: node.at })
        })
    }

    fn check_buckets(&mut self, csv: &Csv) {
        let bucketed = csv
            .text
            .iter()
            .filter(|text| !text.buckets.value.is_empty());
        for (
            place,
            CsvText {
                buckets, options, ..
            },
        ) in bucketed.enumerate()
        {
            if place > 0 {
                let message = "`buckets` is in two texts, and batches are by the length of one";
                self.problem(buckets.at, message, "remove it from one of them");
            }
            self.check_rising(buckets, options.length);
        }
    }

    /// What columns that are inputs of their own do not go with; they are under this key, `one` and `many` of them.
    pub(super) fn check_own_columns(
        &mut self,
        csv: &Csv,
        (key, one, many): (&str, &str, &str),
        columns: &[&Located<Column>],
    ) {
        for (place, Located { value: column, at }) in columns.iter().enumerate() {
            let shown = shown_column(column);
            let mut before = columns[..place].iter();
            if before.any(|before| before.value == *column) {
                let message = format!("`{key}` has the column {shown} twice");
                self.problem(*at, message, "remove one of them");
                continue;
            }
            if is_label(&csv.label.value, column) {
                let message =
                    format!("the column {shown} is the label, and `{key}` gives it to the model");
                self.problem(*at, message, "name another column in one of them");
            }
            if csv.one_hot.value.contains(column) {
                let message =
                    format!("the column {shown} is {one}, and `one_hot` makes features of it");
                self.problem(csv.one_hot.at, message, "leave it out of one of them");
            }
            let mut inputs = csv.inputs.value.iter();
            let is_input =
                inputs.any(|input| input.is_index && input.columns.first() == Some(column));
            if !csv.inputs.value.is_empty() && !is_input {
                let message = format!("no input is the column {shown} of {many} alone");
                let next = format!(
                    "write `inputs: {{NAME: {shown}, ..}}`, with the column as it is written here"
                );
                self.problem(*at, message, next);
            }
        }
    }

    /// Without names of inputs there is one, of which a text is all.
    fn check_only_text(&mut self, csv: &Csv) {
        let columns = csv.text.iter().map(|text| &text.column.value);
        let named: Vec<String> = columns.map(shown_column).collect();
        if let [_, second, ..] = &csv.text[..] {
            let message = format!(
                "`text` has the columns {}, and without `inputs` a model has one input",
                named.join(", ")
            );
            let next = "write `inputs: {NAME: COLUMN, ..}`, and in layers which of them they take";
            self.problem(second.column.at, message, next);
        }
        let about_numbers = [
            ("one_hot", !csv.one_hot.value.is_empty()),
            ("features", !csv.features.value.is_empty()),
            ("standardize", csv.standardize),
            ("divide_by", csv.divide_by != 1.0),
        ];
        for (key, _) in about_numbers.iter().filter(|(_, is_there)| *is_there) {
            let message = format!(
                "the model is given the texts of {} alone, and `{key}` is about other columns",
                named[0]
            );
            let next = format!(
                "remove `{key}`, or name the inputs: `inputs: {{words: {}, numbers: [..]}}`",
                named[0]
            );
            self.problem(csv.text[0].column.at, message, next);
        }
        let columns = csv.text.iter().map(|text| &text.column.value);
        if !csv.columns.iter().eq(columns) {
            let message = format!(
                "the model is given the texts of {} alone, and `columns` names others",
                named[0]
            );
            let next = format!(
                "remove `columns`, or name the inputs in its place: `inputs: {{words: {}, numbers: [..]}}`",
                named[0]
            );
            self.problem(csv.text[0].column.at, message, next);
        }
    }
}
