//! Rows held out at random, of each class the same share.

use std::collections::BTreeMap;

use phalanx::data::{Batch, Dataset, HostTensor};
use phalanx::{Error, Result as Read};

use crate::rows::classes;
use crate::scaling::length;

/// The rows to train on and those that are held out, both in the order of `all`: `fraction` of them, drawn by the seed; where
/// labels are classes, of each class as near to its share as whole rows allow, so that both parts have all classes that have two
/// rows.
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
    let classes = classes(all)?.unwrap_or_else(|| vec![0; rows]);
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
