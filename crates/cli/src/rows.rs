//! The rows that a `train.yaml` speaks of, read from their files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use phalanx::data::{
    ClassWeights, CsvColumn, CsvColumns, CsvOptions, Dataset, Header, HostTensor, LabelColumn,
    LabelKind, MissingValues, OneHotColumn, csv_header, csv_is_missing, csv_label_texts,
    csv_values, csv_width,
};
use phalanx::{Error, Result as Read};

use crate::bins;
use crate::categories;
use crate::config::{
    Column, Csv, Data, Label, LabelType, Located, Missing, Position, Problem, Problems,
    TrainConfig, Validation,
};
use crate::data_facts::{Facts, FileLayout, OneHotFact};
use crate::example_rows;
use crate::files::check_rereadable;
use crate::image_rows;
use crate::named_columns;
use crate::output_labels;
use crate::scaling::{Scaling, length};
use crate::split::{check_test, tested};
use crate::texts;
use crate::windows::{self, WindowFact};

/// What a model trains on, and what it is measured on.
#[derive(Debug)]
pub struct Rows {
    /// To train on, shuffled and weighted as the file says.
    pub train: Dataset,
    /// The same in their order, without the weights of classes.
    pub plain: Dataset,
    /// To evaluate after each epoch.
    pub validation: Option<Dataset>,
    /// To evaluate at the end.
    pub test: Option<Dataset>,
    /// What is known of them.
    pub facts: Facts,
    /// Rows left out because a value is missing.
    pub dropped: usize,
    /// What is to be said of what was left out.
    pub warnings: Vec<String>,
}

/// Reads all files that a configuration names.
///
/// # Errors
/// A file that cannot be read, files or rows that do not fit one another, or a split that leaves nothing, each at the line that
/// names it.
pub fn load(config: &TrainConfig) -> Result<Rows, Problems> {
    read(config, None, None)
}

/// As [`load`], as a training before has read them: with its columns, classes and scaling.
///
/// # Errors
/// As [`load`].
pub fn load_as(config: &TrainConfig, known: Option<&Facts>) -> Result<Rows, Problems> {
    read(config, known, None)
}

/// As [`load`], with what the beginning of the training has found for the scaling, if it goes on: the model knows no other numbers.
///
/// # Errors
/// As [`load`].
pub fn load_on(config: &TrainConfig, scaling: Option<&Scaling>) -> Result<Rows, Problems> {
    read(config, None, scaling)
}

fn read(
    config: &TrainConfig,
    known: Option<&Facts>,
    scaling: Option<&Scaling>,
) -> Result<Rows, Problems> {
    let read = match &config.data {
        Data::Images(images) => image_rows::read(config, images, known),
        Data::Csv(data) => read_csv(config, data, known, scaling),
        Data::Examples(data) => example_rows::read(config, data, known),
    };
    read.map_err(|problem| config.problems(vec![problem]))
}

fn read_csv(
    config: &TrainConfig,
    data: &Csv,
    known: Option<&Facts>,
    scaling: Option<&Scaling>,
) -> Result<Rows, Problem> {
    rereadable(&data.csv)?;
    let facts = match known {
        Some(known) => known.clone(),
        None => {
            named_columns::check(data, &options(data))?;
            facts(data).map_err(|(at, error)| unreadable(at, &error))?
        }
    };
    let mut files = Files {
        data,
        facts,
        is_trained: known.is_some(),
        columns: CsvColumns::default(),
    };
    let all = files.read(&data.csv)?;
    let all_rows = all.len();
    check_test(config, known, all_rows)?;
    let (rest, test) = tested(config, data, all, |csv| files.read(csv))?;
    let (train, validation) = held_out(config, rest, test.as_ref(), |csv| files.read(csv))?;
    let wrong = |error| unreadable(data.csv[0].at, &error);
    if known.is_none() {
        files.facts.examples = all_rows;
        files.facts.scaling = match scaling {
            Some(kept) => kept.clone(),
            None => Scaling::of(data, &train, &files.columns).map_err(wrong)?,
        };
        files.find_words(config, &train)?;
    }
    let Files {
        mut facts, columns, ..
    } = files;
    windows::check_gaps(data, columns.dropped())?;
    let of_texts = columns.texts();
    let scaled = |name: &str, rows: Option<Dataset>| {
        let made = rows.map(|rows| facts.prepared(&rows, of_texts));
        made.transpose().map_err(|error| unfit(data, name, &error))
    };
    let none = || Problem::new(data.csv[0].at, "no row is left to train on", "add rows");
    let plain = scaled("training", Some(train))?.ok_or_else(none)?;
    let validation = scaled("validation", validation)?;
    let test = scaled("test", test)?;
    if known.is_none() && scaling.is_none() {
        facts.scaling.bins = bins::found(config, &plain)?;
    }
    Ok(Rows {
        train: prepared(config, &plain)?,
        validation,
        test,
        plain,
        dropped: columns.dropped(),
        warnings: Vec::from_iter(named_columns::unnamed(data, &facts)),
        facts,
    })
}

/// What is wrong with a part of the rows.
fn unfit(data: &Csv, name: &str, error: &Error) -> Problem {
    match (&data.window, error) {
        (Some(window), Error::User(message)) => {
            let next = "change `window`, or the parts of the data";
            Problem::new(window.at, format!("the {name} rows: {message}"), next)
        }
        _ => unreadable(data.csv[0].at, error),
    }
}

/// What the first file says of all: the names of the columns, and the classes where labels are texts.
fn facts(data: &Csv) -> Result<Facts, (Position, Error)> {
    let first = &data.csv[0];
    let wrong = |error| (first.at, error);
    let options = options(data);
    let header = csv_header(&first.value, &options).map_err(wrong)?;
    let columns = csv_width(&first.value, &options).map_err(wrong)?;
    let label = match &data.label.value {
        Label::None => None,
        Label::Last => columns.checked_sub(1),
        Label::Index(index) => Some(*index),
        Label::Name(name) => header.iter().position(|other| other == name),
    };
    let mut facts = Facts {
        layout: Some(FileLayout {
            has_header: !header.is_empty(),
            columns,
            label,
        }),
        label: label.and_then(|label| header.get(label).cloned()),
        ..Facts::default()
    };
    facts.window = data.window.as_ref().map(WindowFact::from);
    facts.weight = named_columns::weight(data, &header, columns)?;
    let weight = facts.weight.as_ref().map(|fact| fact.index);
    let others = [label.filter(|_| !options.label_is_feature), weight];
    facts.columns = named_columns::of_features(data, &header, others);
    // A name that is there twice finds no column.
    let different: HashSet<&String> = facts.columns.iter().collect();
    if different.len() < facts.columns.len() {
        facts.columns.clear();
    }
    let options = match is_by_name(data) {
        true => with_named_label(options, &facts),
        false => options,
    };
    for column in &data.one_hot.value {
        let wrong = |error| (data.one_hot.at, error);
        facts
            .one_hot
            .push(one_hot(data, &header, column, &options).map_err(wrong)?);
    }
    facts.inputs =
        named_columns::inputs(data, &header, &facts).map_err(|error| (data.inputs.at, error))?;
    if data.label_type == LabelType::Class {
        facts.classes = classes_of(data, &options).map_err(wrong)?;
    }
    facts.labels = output_labels::found(data, &options).map_err(|error| (data.labels.at, error))?;
    Ok(facts)
}

/// The classes that the file names, else the texts of the labels; nothing where these are numbers.
fn classes_of(data: &Csv, options: &CsvOptions) -> Read<Vec<String>> {
    if !data.classes.value.is_empty() {
        return Ok(data.classes.value.clone());
    }
    let paths = data.csv.iter().map(|path| &path.value);
    Ok(csv_label_texts(paths, options)?.unwrap_or_default())
}

/// Whether columns may be in another order in later files, as they are chosen by name.
fn is_by_name(data: &Csv) -> bool {
    matches!(data.columns.first(), Some(Column::Name(_)))
}

/// With the label and the weights by the names that they have in the first file, if they have any.
fn with_named_label(mut options: CsvOptions, facts: &Facts) -> CsvOptions {
    if let Some(label) = &facts.label {
        options.label = LabelColumn::Name(label.clone());
    }
    if let Some(weight) = facts.weight.as_ref().filter(|fact| !fact.name.is_empty()) {
        options.weight = Some(CsvColumn::Name(weight.name.clone()));
    }
    options
}

/// The values of a one-hot column in all files.
fn one_hot(
    data: &Csv,
    header: &[String],
    column: &Column,
    options: &CsvOptions,
) -> Read<OneHotFact> {
    let paths = data.csv.iter().map(|path| &path.value);
    let values = match column {
        Column::Index(index) if is_by_name(data) && *index < header.len() => {
            csv_values(paths, options, &CsvColumn::Name(header[*index].clone()))?
        }
        column => csv_values(paths, options, &csv_column(column))?,
    };
    let index = match column {
        Column::Index(index) => *index,
        Column::Name(name) => {
            let found = header.iter().position(|other| other == name);
            found.ok_or_else(|| Error::Bug(format!("values of no column {name:?}")))?
        }
    };
    Ok(OneHotFact {
        index,
        name: header.get(index).cloned().unwrap_or_default(),
        values,
    })
}

/// What is left to train on, and what is validated on.
pub(crate) fn held_out(
    config: &TrainConfig,
    rest: Dataset,
    test: Option<&Dataset>,
    read: impl FnOnce(&[Located<PathBuf>]) -> Result<Dataset, Problem>,
) -> Result<(Dataset, Option<Dataset>), Problem> {
    let Some(Located { value, at }) = &config.fit.validation else {
        return Ok((rest, None));
    };
    Ok(match value {
        Validation::Test => (rest, test.cloned()),
        Validation::Csv(csv) => (rest, Some(read(csv)?)),
        Validation::Split(fraction) => {
            let parts = rest.validation_split(*fraction);
            let (train, validation) = parts
                .map_err(|error| Problem::new(*at, error.to_string(), "change the fraction"))?;
            (train, Some(validation))
        }
    })
}

/// The rows of a file as the model takes them, and how many were left out because a value is missing.
pub(crate) fn read_prepared(
    path: &Path,
    options: &CsvOptions,
    facts: &Facts,
) -> Read<(Dataset, usize)> {
    let mut columns = CsvColumns::default();
    let rows = Dataset::from_csv_with(path, options, &mut columns)?;
    windows::check_gaps_of(path, facts, columns.dropped())?;
    let rows = facts.prepared(&rows, columns.texts())?;
    Ok((rows, columns.dropped()))
}

/// The rows of a file with labels, and how many were left out because a value is missing.
///
/// # Errors
/// A file that cannot be read, or whose rows do not fit the model.
pub fn labelled(data: &Csv, facts: &Facts, path: &Path) -> Read<(Dataset, usize)> {
    read_prepared(path, &as_trained(data, facts, path)?, facts)
}

/// How a file is read for a model that was trained: by the names of its columns, where both have them.
pub(crate) fn as_trained(data: &Csv, facts: &Facts, path: &Path) -> Read<CsvOptions> {
    let options = by_positions(data, facts, path);
    let has_header = !csv_header(path, &options)?.is_empty();
    Ok(match has_header && !facts.columns.is_empty() {
        true => by_names(options, facts),
        false => options,
    })
}

/// How a file is read for a model that was trained, by the positions that its columns have in the files of the training.
pub(crate) fn by_positions(data: &Csv, facts: &Facts, path: &Path) -> CsvOptions {
    CsvOptions {
        header: header(data, facts, path),
        features: facts.dims.clone(),
        classes: facts.classes.clone(),
        labels: output_labels::options(&facts.labels),
        one_hot: one_hot_columns(facts, |fact| CsvColumn::Index(fact.index)),
        ..options(data)
    }
}

/// The same by the names of its columns.
pub(crate) fn by_names(mut options: CsvOptions, facts: &Facts) -> CsvOptions {
    let names = facts.columns.iter().cloned();
    options.columns = names.map(CsvColumn::Name).collect();
    options.one_hot = one_hot_columns(facts, |fact| CsvColumn::Name(fact.name.clone()));
    let texts = facts.texts.iter();
    options.texts = texts
        .map(|fact| CsvColumn::Name(fact.name.clone()))
        .collect();
    let categories = facts.categories.iter();
    options.categories = categories
        .map(|fact| CsvColumn::Name(fact.name.clone()))
        .collect();
    let indices = facts.inputs.iter();
    let indices =
        indices.filter(|fact| fact.width.is_none() && fact.text.or(fact.category).is_none());
    let indices = indices.flat_map(|fact| fact.columns.iter().cloned());
    options.indices = indices.map(CsvColumn::Name).collect();
    with_named_label(options, facts)
}

/// Whether a file has a header: where all of its columns may hold texts, it has one if the files of the training have. Numbers alone are none:
/// where they named the columns of the training, its file says that there is a header.
fn header(data: &Csv, facts: &Facts, path: &Path) -> Header {
    let of_file = options(data).header;
    if of_file != Header::Auto {
        return of_file;
    }
    let with_header = CsvOptions {
        header: Header::Yes,
        ..options(data)
    };
    // What cannot be read is an error where the rows are.
    let first_line = csv_header(path, &with_header).unwrap_or_default();
    let is_value = |field: &String| csv_is_missing(field) || field.parse::<f64>().is_ok();
    if !first_line.is_empty() && first_line.iter().all(is_value) {
        return Header::No;
    }
    let Some(layout) = facts.layout else {
        return of_file;
    };
    let used = match data.columns.len() {
        0 => {
            let labels = output_labels::columns(data).len().max(1);
            (layout.columns).saturating_sub(labels + usize::from(facts.weight.is_some()))
        }
        some => some,
    };
    match (
        used == facts.one_hot.len() + facts.texts.len() + facts.categories.len(),
        layout.has_header,
    ) {
        (false, _) => Header::Auto,
        (true, true) => Header::Yes,
        (true, false) => Header::No,
    }
}

/// Reads files that have the same columns.
struct Files<'a> {
    data: &'a Csv,
    facts: Facts,
    /// Whether the facts come from a training.
    is_trained: bool,
    columns: CsvColumns,
}

impl Files<'_> {
    /// The rows of files one after the other, as they stand there.
    fn read(&mut self, csv: &[Located<PathBuf>]) -> Result<Dataset, Problem> {
        rereadable(csv)?;
        let mut all: Option<Dataset> = None;
        for path in csv {
            let wrong = |error| unreadable(path.at, &error);
            let next = self.one(&path.value).map_err(wrong)?;
            let dims = next.get(0, 0).map_err(wrong)?.x[0].dims().to_vec();
            if self.facts.dims.is_empty() {
                self.facts.dims.clone_from(&dims);
            }
            if self.facts.dims != dims {
                let message = format!(
                    "{} has examples of dims {dims:?}, the files before it of {:?}",
                    path.value.display(),
                    self.facts.dims
                );
                let next = "use files with the same columns";
                return Err(Problem::new(path.at, message, next));
            }
            all = Some(match all {
                None => next,
                Some(before) => before.concatenate(&next).map_err(wrong)?,
            });
        }
        let none = || {
            let next = "name a file under `csv`";
            Problem::new(Position::START, "no file is named", next)
        };
        let all = all.ok_or_else(none)?;
        match csv.len() {
            1 => Ok(all),
            _ => gathered(&all).map_err(|error| unreadable(csv[0].at, &error)),
        }
    }

    /// Finds the words of texts and the names of categories in the rows to train on.
    fn find_words(&mut self, config: &TrainConfig, train: &Dataset) -> Result<(), Problem> {
        let first = &self.data.csv[0];
        let header = csv_header(&first.value, &options(self.data));
        let header = header.map_err(|error| unreadable(first.at, &error))?;
        self.facts.texts = texts::of_training(self.data, &header, train, &self.columns)?;
        self.facts.categories = categories::of_training(self.data, &header, train, &self.columns)?;
        self.facts.check_embeddings(config)
    }

    /// How a file of a training is read: where columns are chosen by name they may be in another order than in the first file, and so may the
    /// label and columns of names.
    fn as_first(&self, path: &Path) -> Read<CsvOptions> {
        let facts = &self.facts;
        let mut read = CsvOptions {
            classes: facts.classes.clone(),
            labels: output_labels::options(&facts.labels),
            one_hot: one_hot_columns(facts, |fact| CsvColumn::Index(fact.index)),
            ..options(self.data)
        };
        if is_by_name(self.data) && !csv_header(path, &read)?.is_empty() {
            read.one_hot = one_hot_columns(facts, |fact| CsvColumn::Name(fact.name.clone()));
            read = with_named_label(read, facts);
        }
        Ok(read)
    }

    fn one(&mut self, path: &Path) -> Read<Dataset> {
        let options = match self.is_trained {
            true => as_trained(self.data, &self.facts, path)?,
            false => self.as_first(path)?,
        };
        Dataset::from_csv_with(path, &options, &mut self.columns)
    }
}

/// Refuses pipes, each at the line that names it.
fn rereadable(files: &[Located<PathBuf>]) -> Result<(), Problem> {
    files.iter().try_for_each(|file| {
        check_rereadable(&file.value).map_err(|error| unreadable(file.at, &error))
    })
}

fn unreadable(at: Position, error: &Error) -> Problem {
    let next = match error {
        Error::Io { .. } => "correct the path; a relative one starts at the folder of this file",
        _ => "correct the file, or what `data` says of it",
    };
    Problem::new(at, error.to_string(), next)
}

fn one_hot_columns(facts: &Facts, column: impl Fn(&OneHotFact) -> CsvColumn) -> Vec<OneHotColumn> {
    let one_hot = facts.one_hot.iter().map(|fact| OneHotColumn {
        column: column(fact),
        values: fact.values.clone(),
    });
    one_hot.collect()
}

fn csv_column(column: &Column) -> CsvColumn {
    match column {
        Column::Index(index) => CsvColumn::Index(*index),
        Column::Name(name) => CsvColumn::Name(name.clone()),
    }
}

/// As the training file says; the values of one-hot columns are not known yet.
fn options(data: &Csv) -> CsvOptions {
    let one_hot = data.one_hot.value.iter().map(|column| OneHotColumn {
        column: csv_column(column),
        values: Vec::new(),
    });
    let texts = data.text.iter();
    let texts = texts.map(|text| csv_column(&text.column.value));
    let indices = data.inputs.value.iter();
    let categories = data.category.iter();
    let categories = categories.map(|category| csv_column(&category.column.value));
    let indices = indices.filter(|input| data.is_plain_index(input));
    let indices = indices.flat_map(|input| input.columns.iter().map(csv_column));
    CsvOptions {
        header: match data.header {
            None if data.labels.value.is_empty() => Header::Auto,
            // Labels of outputs are columns by their names.
            None | Some(true) => Header::Yes,
            Some(false) => Header::No,
        },
        label: label_column(&data.label.value),
        kind: label_kind(data.label_type),
        weight: data.weight.as_ref().map(|weight| csv_column(&weight.value)),
        columns: data.columns.iter().map(csv_column).collect(),
        label_is_feature: data.window.is_some(),
        one_hot: one_hot.collect(),
        indices: indices.collect(),
        texts: texts.collect(),
        categories: categories.collect(),
        skip_rows: data.skip_rows,
        missing: match data.missing {
            Missing::Fail => MissingValues::Fail,
            Missing::Drop => MissingValues::Drop,
            Missing::Mean | Missing::Number(_) => MissingValues::Keep,
        },
        features: data.features.value.clone(),
        delimiter: data.delimiter,
        decimal: data.decimal,
        // It is the user's own file, and memory the limit.
        max_bytes: u64::MAX,
        ..CsvOptions::default()
    }
}

pub(crate) fn label_column(label: &Label) -> LabelColumn {
    match label {
        Label::None => LabelColumn::None,
        Label::Last => LabelColumn::Last,
        Label::Index(index) => LabelColumn::Index(*index),
        Label::Name(name) => LabelColumn::Name(name.clone()),
    }
}

pub(crate) const fn label_kind(label: LabelType) -> LabelKind {
    match label {
        LabelType::Class => LabelKind::Class,
        LabelType::Value => LabelKind::Value,
    }
}

/// The rows in one array.
fn gathered(dataset: &Dataset) -> Read<Dataset> {
    Dataset::from_batch(dataset.batch(length(dataset)).get(0, 0)?)
}

/// The classes of rows in memory by each label, in their order; nothing where labels are values.
pub(crate) fn classes(rows: &Dataset) -> Read<Vec<Option<Vec<i32>>>> {
    let batch = rows.batch(length(rows)).get(0, 0)?;
    Ok(batch.y.iter().map(HostTensor::values::<i32>).collect())
}

/// Weighted and shuffled as the file says.
pub(crate) fn prepared(config: &TrainConfig, train: &Dataset) -> Result<Dataset, Problem> {
    let mut train = train.clone();
    if let Some(Located { value, at }) = &config.fit.class_weight {
        let weights = ClassWeights::new(value.iter().copied());
        train =
            train
                .class_weights(weights.map_err(|error| {
                    Problem::new(*at, error.to_string(), "correct the weights")
                })?);
    }
    // Batches by length shuffle themselves.
    Ok(
        match config.fit.shuffle && config.length_buckets().is_none() {
            true => train.shuffle(config.fit.seed),
            false => train,
        },
    )
}
