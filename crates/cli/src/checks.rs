//! What is found out about data before the first step, so that it does not show after hours.

use std::collections::BTreeSet;

use phalanx::data::{Batch, Dataset, HostTensor};

use crate::config::{
    Csv, Data, Examples, Images, Located, Position, Problem, Test, TrainConfig, Validation,
};
use crate::rows::{Rows, classes};

/// Rows that are looked at at once.
const ROWS: usize = 4096;

/// Checks labels, indices and the weights of classes; `check_batch` is the model's, which tells this number of `classes`. What is no mistake
/// but looks like one is returned as warnings.
pub(crate) fn check(
    config: &TrainConfig,
    rows: &Rows,
    classes: usize,
    check_batch: impl Fn(&Batch) -> phalanx::Result<()>,
) -> Result<Vec<String>, Problem> {
    match &config.data {
        Data::Csv(csv) => check_rows(config, csv, rows, check_batch),
        Data::Examples(examples) if examples.images.is_some() => {
            check_first(config, examples, rows, check_batch)?;
            // Which classes there are is not known, but that no example is of one that the model cannot tell.
            if classes > 1 {
                check_class_weights(config, &numbered(classes))?;
            }
            Ok(Vec::new())
        }
        Data::Examples(examples) => check_examples(config, examples, rows, check_batch),
        Data::Images(images) => {
            let count = rows.facts.classes.len();
            if images.settings.mix.is_none() {
                check_last_class(images, count, check_batch)?;
            }
            check_class_weights(config, &numbered(count))?;
            Ok(Vec::new())
        }
    }
}

fn numbered(classes: usize) -> BTreeSet<i64> {
    (0..classes as i64).collect()
}

/// Whether the model can be trained on the last of its classes, and so on all.
fn check_last_class(
    images: &Images,
    count: usize,
    check_batch: impl Fn(&Batch) -> phalanx::Result<()>,
) -> Result<(), Problem> {
    let last = HostTensor::new([1], &[i32::try_from(count).unwrap_or(i32::MAX) - 1]);
    let batch = Batch {
        x: Vec::new(),
        y: vec![last],
        weight: None,
        first: 0,
    };
    let Err(error) = check_batch(&batch) else {
        return Ok(());
    };
    let (at, why) = (images.folder.at, error.to_string());
    if !why.contains("the class ") {
        return Err(unfit_example(at, &why));
    }
    let folder = images.folder.value.display();
    let message = format!("{folder} has {count} classes, more than the model tells");
    let next = format!("give the last layer {count} units");
    Err(Problem::new(at, message, next))
}

/// Looks at the first batch of each part: to decode all images would take as long as an epoch.
fn check_first(
    config: &TrainConfig,
    examples: &Examples,
    rows: &Rows,
    check_batch: impl Fn(&Batch) -> phalanx::Result<()>,
) -> Result<(), Problem> {
    let mixes = examples
        .images
        .as_ref()
        .is_some_and(|images| images.mix.is_some());
    for (name, part) in parts(rows) {
        let first = part.batch(config.fit.batch_size).iter(0, 0).next();
        let checked = match first {
            Some(Ok(batch)) if !mixes => check_batch(&batch),
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(error),
            None => Ok(()),
        };
        checked
            .map_err(|error| unfit_example(examples.at, &format!("of the {name} rows: {error}")))?;
    }
    Ok(())
}

fn unfit_example(at: Position, why: &str) -> Problem {
    let (message, next) = why.rsplit_once("; ").unwrap_or((why, "correct the data"));
    Problem::new(at, message, next)
}

/// The parts of the data that are there.
fn parts(rows: &Rows) -> impl Iterator<Item = (&'static str, &Dataset)> {
    let parts = [
        ("training", Some(&rows.plain)),
        ("validation", rows.validation.as_ref()),
        ("test", rows.test.as_ref()),
    ];
    let parts = parts.into_iter();
    parts.filter_map(|(name, part)| part.map(|part| (name, part)))
}

/// Reads everything once, a batch at a time: what does not fit shows before the first step.
fn check_examples(
    config: &TrainConfig,
    examples: &Examples,
    rows: &Rows,
    check_batch: impl Fn(&Batch) -> phalanx::Result<()>,
) -> Result<Vec<String>, Problem> {
    let mut there = BTreeSet::new();
    for (name, part) in parts(rows) {
        let note = |batch: &Batch| {
            let classes = batch.y.first().and_then(HostTensor::values::<i32>);
            there.extend(classes.unwrap_or_default().into_iter().map(i64::from));
            check_batch(batch)
        };
        check_part(name, part, note).map_err(|why| unfit_example(examples.at, &why))?;
    }
    check_class_weights(config, &there)?;
    Ok(Vec::new())
}

fn check_rows(
    config: &TrainConfig,
    csv: &Csv,
    rows: &Rows,
    check_batch: impl Fn(&Batch) -> phalanx::Result<()>,
) -> Result<Vec<String>, Problem> {
    let wrong =
        |error: phalanx::Error| Problem::new(csv.label.at, error.to_string(), "correct the data");
    let outputs = csv.labels.value.iter().map(|output| Some(&*output.name));
    let outputs: Vec<Option<&str>> = match csv.labels.value.is_empty() {
        true => vec![None],
        false => outputs.collect(),
    };
    let of = |output| LabelClasses {
        output,
        seen: Vec::new(),
    };
    let mut labels: Vec<LabelClasses<'_>> = outputs.into_iter().map(of).collect();
    for (name, part) in parts(rows) {
        let classes = classes(part).map_err(wrong)?;
        for (label, classes) in labels.iter_mut().zip(classes) {
            label.seen.push((name, classes));
        }
    }
    for (name, part) in parts(rows) {
        check_part(name, part, &check_batch).map_err(|why| unfit(csv, &why, &labels))?;
    }
    check_class_weights(config, &labels[0].all())?;
    let warnings = labels.iter().flat_map(|label| warnings(config, csv, label));
    Ok(warnings.collect())
}

/// The classes of a label in the parts of the data.
struct LabelClasses<'a> {
    /// The output that it is of, where outputs have names.
    output: Option<&'a str>,
    /// Of each part; nothing where labels are values.
    seen: Vec<(&'static str, Option<Vec<i32>>)>,
}

impl LabelClasses<'_> {
    fn all(&self) -> BTreeSet<i64> {
        let classes = self.seen.iter().filter_map(|(_, classes)| classes.as_ref());
        classes.flatten().map(|&class| i64::from(class)).collect()
    }

    /// The output, behind a class in a message.
    fn of_output(&self) -> String {
        self.output
            .map_or_else(String::new, |output| format!(" of `{output}`"))
    }
}

/// The first mistake in a part of the data, with what to do after a semicolon.
fn check_part(
    name: &str,
    part: &Dataset,
    mut check_batch: impl FnMut(&Batch) -> phalanx::Result<()>,
) -> Result<(), String> {
    for batch in part.batch(ROWS).iter(0, 0) {
        let checked = batch.and_then(|batch| check_batch(&batch));
        checked.map_err(|error| format!("of the {name} rows: {error}"))?;
    }
    Ok(())
}

/// A mistake in the values of rows, and what cures it.
fn unfit(csv: &Csv, why: &str, labels: &[LabelClasses<'_>]) -> Problem {
    let (message, next) = why.rsplit_once("; ").unwrap_or((why, "correct the data"));
    let mut next = next.to_owned();
    let is_label = message.contains("the class ") || message.contains("the target ");
    let begins = labels.iter().find(|label| label.all().first() == Some(&1));
    if let Some(label) = begins.filter(|_| is_label) {
        next = match label.output {
            None => format!(
                "the labels begin at 1, and classes at 0: {}",
                classes_from_one(&label.all())
            ),
            Some(_) => format!(
                "the labels{} begin at 1, and classes at 0: {OF_OUTPUTS}",
                label.of_output()
            ),
        };
    }
    Problem::new(csv.label.at, message, next)
}

/// What to do about labels of an output that begin at 1.
const OF_OUTPUTS: &str = "number them from 0, or write them as texts";

/// What to do about labels from 1 to the last of these.
fn classes_from_one(classes: &BTreeSet<i64>) -> String {
    let count = classes.last().copied().unwrap_or(1);
    let list: Vec<String> = (1..=count.min(20)).map(|class| class.to_string()).collect();
    let (list, more) = (list.join(", "), if count > 20 { ", .." } else { "" });
    format!("write `classes: [{list}{more}]` in data, which gives label 1 the class 0")
}

/// A weight for a class that is not there is a typing mistake.
fn check_class_weights(config: &TrainConfig, there: &BTreeSet<i64>) -> Result<(), Problem> {
    let Some(Located { value, at }) = &config.fit.class_weight else {
        return Ok(());
    };
    match value.iter().find(|(class, _)| !there.contains(class)) {
        None => Ok(()),
        Some((class, _)) => Err(Problem::new(
            *at,
            format!("`class_weight` weighs class {class}, and no example is of it"),
            format!("the classes are {}; correct or remove it", listed(there)),
        )),
    }
}

fn warnings(config: &TrainConfig, csv: &Csv, label: &LabelClasses<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    let Some(((_, Some(trained)), held)) = label.seen.split_first() else {
        return warnings;
    };
    let of = label.of_output();
    let there: BTreeSet<i64> = trained.iter().map(|&class| i64::from(class)).collect();
    if there.first() == Some(&1) {
        let next = match label.output {
            None => "write `classes: [1, 2, ..]` in data, which gives label 1 the class 0",
            Some(_) => OF_OUTPUTS,
        };
        warnings.push(format!(
            "no training row is of class 0{of}: where labels begin at 1, {next}"
        ));
    }
    for (name, classes) in held {
        let classes = classes.iter().flatten().map(|&class| i64::from(class));
        let unseen: BTreeSet<i64> = classes.filter(|class| !there.contains(class)).collect();
        if !unseen.is_empty() {
            warnings.push(format!(
                "no training row is of class {}{of}, which {name} rows are of{}",
                listed(&unseen),
                cure(config, csv, name)
            ));
        }
    }
    let is_sorted = there.len() > 1 && trained.is_sorted();
    if is_sorted && !config.fit.shuffle {
        warnings.push(format!(
            "the rows are sorted by class{of}, and `shuffle` is false: the model sees one class for long; write `shuffle: true` in fit"
        ));
    }
    warnings
}

/// What is done about rows that are held out from one end of sorted data.
fn cure(config: &TrainConfig, csv: &Csv, name: &str) -> &'static str {
    let test = csv.test.as_ref().map(|test| &test.value);
    let validation = config
        .fit
        .validation
        .as_ref()
        .map(|validation| &validation.value);
    match (name, test, validation) {
        ("test", Some(Test::First(_) | Test::Last(_)), _) => {
            ": the file is probably sorted; write `test: {split: 0.2}` in data, which takes rows of each class"
        }
        ("validation", _, Some(Validation::Split(_))) => {
            ": the file is probably sorted, and the validation has its last rows; shuffle the file"
        }
        _ => "",
    }
}

/// The first of some classes.
fn listed(classes: &BTreeSet<i64>) -> String {
    const MOST: usize = 10;
    let shown: Vec<String> = classes.iter().take(MOST).map(ToString::to_string).collect();
    let more = if classes.len() > MOST { ", .." } else { "" };
    format!("{}{more}", shown.join(", "))
}
