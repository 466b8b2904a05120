//! Columns that name something: the key `category` of CSV files.

use phalanx::config::{DefaultValue, Field, Kind};
use phalanx_yaml::{Node, Value};

use super::inputs::{COLUMN, column, shown_column};
use super::reader::{Reader, Section, list, whole};
use super::sections::{as_usize, located};
use super::{Column, Csv, CsvInput, Located};

/// Most columns of categories.
const MAX_CATEGORIES: usize = 1024;

/// `category` of CSV files.
pub(super) const OF_CSV: Field = Field::new(
    "category",
    Kind::Worded(
        "a mapping with the keys column, vocabulary, min_count and hash, or a list of such mappings",
        &Kind::Either(&[
            Kind::Section(CATEGORY),
            Kind::List(&Kind::Section(CATEGORY), 1, MAX_CATEGORIES),
        ]),
    ),
    DefaultValue::Words("no column is read as names of things"),
    "a column of texts or numbers that name something, such as users or cities, which are given to the model as one number for each example, as `embedding` takes it. One of the `inputs` is this column alone. Spaces around a name are none of it, `7` and `7.0` are two names, and what is missing has the number 0 where it is filled",
)
.example("{column: user, vocabulary: 10000}");

/// The keys of a column of categories.
pub(crate) const CATEGORY: &[Field] = &[
    Field::required(
        "column",
        Kind::Worded("the name of a column, or its position from 0", &COLUMN),
        "the column of the names",
    )
    .example("user"),
    Field::new(
        "vocabulary",
        Kind::Whole(3, 1 << 24),
        DefaultValue::Words("no limit"),
        "the most numbers that names have, 0 for a missing one and 1 for unknown ones among them: the most frequent names of the training rows, from 2 on. They are kept with the model. The `input_dim` of `embedding` is at least as large, or as large as the number that the line about the data gives",
    )
    .example("10000"),
    Field::new(
        "min_count",
        Kind::Whole(1, i32::MAX as i64),
        DefaultValue::Value("1"),
        "how often a name is in the training rows at least; rarer ones are unknown",
    )
    .example("5"),
    Field::new(
        "hash",
        Kind::Whole(2, i32::MAX as i64),
        DefaultValue::Words("names have numbers of their own"),
        "in place of a vocabulary, the number of bins into which a hash puts all names, known or not: 0 is the bin of a missing one, and names have those from 1 on, several of them the same. As Keras' `Hashing` has it",
    )
    .example("1000"),
];

/// A column of categories that `data` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvCategory {
    /// The column.
    pub column: Located<Column>,
    /// The most numbers, if there is a limit.
    pub vocabulary: Option<usize>,
    /// How often a name must be there.
    pub min_count: u64,
    /// How many bins there are, where names are hashed.
    pub hash: Option<u32>,
}

impl Csv {
    /// The place among the columns of categories of the one that an input is.
    pub(crate) fn category_of(&self, input: &CsvInput) -> Option<usize> {
        let mut categories = self.category.iter();
        let found = categories.position(|own| input.columns.first() == Some(&own.column.value));
        found.filter(|_| input.is_index)
    }

    /// Whether an input is one column of numbers that the file has as they are.
    pub(crate) fn is_plain_index(&self, input: &CsvInput) -> bool {
        input.is_index && self.text_of(input).is_none() && self.category_of(input).is_none()
    }
}

impl Reader {
    /// The key `category` of CSV files.
    pub(super) fn csv_categories(&mut self, section: &Section<'_>) -> Vec<CsvCategory> {
        let nodes = self.one_or_list(section, OF_CSV.name, MAX_CATEGORIES);
        let categories = nodes.iter().filter_map(|node| self.csv_category(node));
        categories.collect()
    }

    fn csv_category(&mut self, node: &Node) -> Option<CsvCategory> {
        let section = self.section(node, OF_CSV.name, CATEGORY)?;
        let number = |node: &Node| whole(node).map(as_usize);
        let column = self.value(&section, "column", located(column));
        let vocabulary = self.value(&section, "vocabulary", number);
        let min_count = self.value(&section, "min_count", number);
        let hash = self.value(&section, "hash", number);
        for of_names in ["vocabulary", "min_count"] {
            if let (Some((key, _)), true) = (section.entry(of_names), hash.is_some()) {
                let message = format!(
                    "`hash` numbers names without a vocabulary, and `{of_names}` is about one"
                );
                self.problem(key.at, message, "keep one of them");
            }
        }
        Some(CsvCategory {
            hash: hash.and_then(|bins| u32::try_from(bins).ok()),
            column: column?,
            vocabulary,
            min_count: min_count.unwrap_or(1) as u64,
        })
    }

    /// A mapping, or a list of at most this many, under a key; nothing where it is left out, or something else.
    pub(super) fn one_or_list<'n>(
        &mut self,
        section: &Section<'n>,
        key: &str,
        most: usize,
    ) -> &'n [Node] {
        let Some(node) = section.node(key) else {
            return &[];
        };
        let nodes = list(node).unwrap_or(std::slice::from_ref(node));
        let is_list = list(node).is_some();
        let are_maps = nodes.iter().all(|node| matches!(node.value, Value::Map(_)));
        if (is_list && !are_maps) || !(1..=most).contains(&nodes.len()) {
            self.unexpected(section, key, node);
            return &[];
        }
        nodes
    }

    /// What `category` of CSV files does not go with.
    pub(super) fn check_categories(&mut self, csv: &Csv) {
        let columns: Vec<_> = csv.category.iter().map(|own| &own.column).collect();
        self.check_own_columns(csv, (OF_CSV.name, "a category", "categories"), &columns);
        for Located { value: column, at } in columns {
            let shown = shown_column(column);
            if csv.text.iter().any(|text| text.column.value == *column) {
                let message = format!("the column {shown} is a text, and `category` numbers it");
                self.problem(*at, message, "leave it out of one of them");
            }
            if csv.inputs.value.is_empty() {
                let message = format!(
                    "the category {shown} is an input of its own, and there are no `inputs`"
                );
                let next = format!(
                    "write `inputs: {{NAME: {shown}, ..}}`, and in layers which of them they take"
                );
                self.problem(*at, message, next);
            }
        }
    }
}
