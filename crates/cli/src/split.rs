//! Rows held out at random, of each class the same share.

use std::collections::BTreeMap;
use std::path::PathBuf;

use phalanx::data::{Batch, Dataset, HostTensor, is_file_pattern};
use phalanx::{Error, Result as Read};

use crate::config::{
    Csv, Data, ExampleFiles, ExampleTest, ImageTest, Located, Position, Problem, Test, TrainConfig,
    Validation,
};
use crate::data_facts::Facts;
use crate::rows::classes;
use crate::scaling::length;

/// What is left of the rows of CSV files, and what is tested on: a part of them, or files of its own.
pub(crate) fn tested(
    config: &TrainConfig,
    data: &Csv,
    all: Dataset,
    read: impl FnOnce(&[Located<PathBuf>]) -> Result<Dataset, Problem>,
) -> Result<(Dataset, Option<Dataset>), Problem> {
    let Some(Located { value, at }) = &data.test else {
        return Ok((all, None));
    };
    let (test, rest) = match value {
        Test::Csv(csv) => (read(csv)?, all),
        Test::First(count) => split(&all, *count, *count, *at)?,
        Test::Last(count) => {
            let count = (*count).min(length(&all));
            let (rest, test) = split(&all, length(&all) - count, count, *at)?;
            (test, rest)
        }
        Test::Split(fraction) => {
            let parts = stratified(&all, *fraction, config.fit.seed);
            let (rest, test) = parts
                .map_err(|error| Problem::new(*at, error.to_string(), "change the fraction"))?;
            (test, rest)
        }
    };
    Ok((rest, Some(test)))
}

/// The first `at_row` rows and the others; neither may be empty. `count` is the number that the user wrote.
fn split(
    all: &Dataset,
    at_row: usize,
    count: usize,
    at: Position,
) -> Result<(Dataset, Dataset), Problem> {
    let rows = length(all);
    if at_row == 0 || at_row >= rows {
        let message = format!("{count} or more test rows of {rows} leave none to train on");
        return Err(Problem::new(
            at,
            message,
            format!("choose a number below {rows}"),
        ));
    }
    all.split_at(at_row)
        .map_err(|error| Problem::new(at, error.to_string(), "change the number of rows"))
}

/// Refuses a test on a part of other examples than a training held it out of, since it may have learnt them.
pub(crate) fn check_test(
    config: &TrainConfig,
    known: Option<&Facts>,
    now: Option<usize>,
) -> Result<(), Problem> {
    check_number(&config.data, known, now, |moved| test_part(config, moved))
}

/// The same of a training that goes on, and of its validation: drawn by the seed of images, else the last examples, which are new where
/// examples came to the one file that they are of, and were trained on where some of them went.
pub(crate) fn check_parts(
    config: &TrainConfig,
    before: &Facts,
    now: Option<usize>,
) -> Result<(), Problem> {
    check_number(&config.data, Some(before), now, |moved| {
        let validation = config.fit.validation.as_ref();
        let part = validation.filter(|part| matches!(part.value, Validation::Split(_)));
        let part = part.filter(|_| moved || matches!(config.data, Data::Images(_)));
        test_part(config, moved).or_else(|| part.map(|part| part.at))
    })
}

fn check_number(
    data: &Data,
    known: Option<&Facts>,
    now: Option<usize>,
    part: impl Fn(bool) -> Option<Position>,
) -> Result<(), Problem> {
    let then = known.and_then(|known| known.examples);
    let Some((then, now)) = then.zip(now).filter(|(then, now)| then != now) else {
        return Ok(());
    };
    let may_be_moved = now < then || is_of_several_files(data);
    let Some(at) = part(may_be_moved) else {
        return Ok(());
    };
    let message = format!(
        "this is a part of {now} examples, and the training held it out of {then}: the model may have learnt some that are in it now"
    );
    let next = "bring the data back to what they were, name data of their own, or train again";
    Err(Problem::new(at, message, next))
}

/// Whether examples that came to the data may stand before others.
fn is_of_several_files(data: &Data) -> bool {
    match data {
        Data::Csv(csv) => {
            let mut files = csv.csv.iter().map(|file| file.value.to_string_lossy());
            csv.csv.len() > 1 || files.any(|file| is_file_pattern(&file))
        }
        Data::Images(_) => true,
        Data::Examples(examples) => match &examples.files {
            ExampleFiles::Idx { .. } | ExampleFiles::Npz { .. } | ExampleFiles::Npy { .. } => false,
            ExampleFiles::Tfds { .. } => true,
            ExampleFiles::Cifar { pattern, .. }
            | ExampleFiles::TfRecord { pattern }
            | ExampleFiles::WebDataset { pattern }
            | ExampleFiles::Parquet { pattern } => is_file_pattern(pattern),
        },
    }
}

/// The line of a test on a part of the examples which has others where their number is another, or only where the last ones of then may not be
/// the last ones that were there.
fn test_part(config: &TrainConfig, moved: bool) -> Option<Position> {
    fn at<T>(test: Option<&Located<T>>, is_part: impl Fn(&T) -> bool) -> Option<Position> {
        test.filter(|test| is_part(&test.value)).map(|test| test.at)
    }
    match &config.data {
        Data::Csv(csv) => at(csv.test.as_ref(), |test| match test {
            Test::Split(_) => true,
            Test::Last(_) => moved,
            Test::First(_) | Test::Csv(_) => false,
        }),
        Data::Images(images) => at(images.test.as_ref(), |test| {
            matches!(test, ImageTest::Split(_))
        }),
        Data::Examples(examples) => at(examples.test.as_ref(), |test| {
            // The last ones, which are new where examples came to them.
            matches!(test, ExampleTest::Split(_)) && moved
        }),
    }
}

/// The rows to train on and those that are held out, both in the order of `all`: `fraction` of them, drawn by the seed; where
/// labels are classes, of each class as near to its share as whole rows allow, which may be none of a class with few rows.
///
/// # Errors
/// When a part would be empty, or a row cannot be read.
pub(crate) fn stratified(all: &Dataset, fraction: f64, seed: u64) -> Read<(Dataset, Dataset)> {
    let rows = length(all);
    let held = (rows as f64 * fraction).round() as usize;
    if held == 0 || held >= rows {
        return Err(Error::User(format!(
            "a split of {fraction} of {rows} rows leaves a part empty; choose a fraction that leaves a row on each side"
        )));
    }
    let mut groups: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    let first = classes(all)?.into_iter().next().flatten();
    let classes = first.unwrap_or_else(|| vec![0; rows]);
    for row in drawn(rows, seed)? {
        groups.entry(classes[row]).or_default().push(row);
    }
    let mut is_held = vec![false; rows];
    for (group, count) in groups.values().zip(shares(&groups, fraction, held)) {
        group[..count].iter().for_each(|&row| is_held[row] = true);
    }
    let part = |wanted: bool| {
        let chosen: Vec<usize> = (0..rows).filter(|&row| is_held[row] == wanted).collect();
        chosen_rows(all, &chosen)
    };
    Ok((part(false)?, part(true)?))
}

/// How many rows of each class are held out, `held` in all: the whole parts of their shares, and one more for those with the
/// largest remainders.
fn shares(groups: &BTreeMap<i32, Vec<usize>>, fraction: f64, held: usize) -> Vec<usize> {
    let exact: Vec<f64> = groups
        .values()
        .map(|group| group.len() as f64 * fraction)
        .collect();
    let mut counts: Vec<usize> = exact.iter().map(|share| *share as usize).collect();
    let mut order: Vec<usize> = (0..exact.len()).collect();
    order.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let more = held.saturating_sub(counts.iter().sum());
    for &group in order.iter().take(more) {
        counts[group] += 1;
    }
    counts
}

/// All rows in an order drawn by the seed.
fn drawn(rows: usize, seed: u64) -> Read<Vec<usize>> {
    let numbers: Vec<i64> = (0..rows as i64).collect();
    let numbers = Dataset::from_arrays(vec![HostTensor::new([rows], &numbers)], Vec::new())?;
    let order = numbers.shuffle(seed).batch(rows).get(0, 0)?;
    let order = order.x[0].values::<i64>().unwrap_or_default();
    Ok(order.into_iter().map(|row| row as usize).collect())
}

/// These rows in one array.
fn chosen_rows(all: &Dataset, rows: &[usize]) -> Read<Dataset> {
    let batch = all.batch(length(all)).get(0, 0)?;
    let pick = |tensor: &HostTensor| {
        let size = tensor.row_bytes();
        let picked: Vec<u8> = rows
            .iter()
            .flat_map(|&row| &tensor.bytes()[row * size..(row + 1) * size])
            .copied()
            .collect();
        let mut shape = tensor.shape().clone();
        shape.dims[0] = rows.len();
        HostTensor::from_bytes(shape, &picked)
            .ok_or_else(|| Error::Bug("rows of another size than their shape".into()))
    };
    let tensors = |list: &[HostTensor]| list.iter().map(pick).collect::<Read<Vec<_>>>();
    Dataset::from_batch(Batch {
        x: tensors(&batch.x)?,
        y: tensors(&batch.y)?,
        weight: batch.weight.as_ref().map(pick).transpose()?,
        first: 0,
    })
}
