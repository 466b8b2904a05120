//! What is done to the features of rows: missing values filled, divided, standardized. Found on the training rows, done to all
//! others in the same way, and kept with the model.

use phalanx::data::{Batch, CsvColumns, Dataset, HostTensor};
use phalanx::{DType, Error, Result as Read};
use serde::{Deserialize, Serialize};

use crate::bins::LayerBins;
use crate::config::{Csv, Missing};

/// What features become, in this order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaling {
    /// What takes the place of a missing value, for each feature; nothing where none may be missing.
    #[serde(default)]
    pub fill: Option<Vec<f32>>,
    /// What features are divided by.
    pub divide_by: f64,
    /// The mean and the standard deviation of each feature, which become 0 and 1.
    #[serde(default)]
    pub standard: Option<(Vec<f32>, Vec<f32>)>,
    /// The bins of layers that ask for some of these numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bins: Vec<LayerBins>,
}

impl Scaling {
    /// As `data` asks for it, with the means and deviations of these rows of files with these columns.
    ///
    /// # Errors
    /// When a row cannot be read, or a column that is to be filled with its mean has no value.
    pub fn of(data: &Csv, rows: &Dataset, columns: &CsvColumns) -> Read<Self> {
        let mut scaling = Self {
            fill: None,
            divide_by: data.divide_by,
            standard: None,
            bins: Vec::new(),
        };
        if data.missing == Missing::Fail && !data.standardize {
            return Ok(scaling);
        }
        // Indices are no numbers.
        let Some(numbers) = numbers(rows)? else {
            return Ok(scaling);
        };
        if let Missing::Number(number) = data.missing {
            scaling.fill = Some(vec![number as f32; row_width(&numbers)]);
        }
        if data.missing == Missing::Mean {
            check_means(&numbers, columns)?;
            scaling.fill = Some(moments(&numbers).0);
        }
        if data.standardize {
            let (mut mean, mut deviation) = moments(&scaling.apply_to(&numbers));
            let one_hot = columns.one_hot();
            let stays = (0..mean.len()).filter(|&feature| one_hot.get(feature) == Some(&true));
            for feature in stays {
                (mean[feature], deviation[feature]) = (0.0, 1.0);
            }
            let deviation = deviation.into_iter();
            // A feature that is the same in all rows becomes 0.
            let deviation = deviation.map(|d| if d > 0.0 { d } else { 1.0 }).collect();
            scaling.standard = Some((mean, deviation));
        }
        Ok(scaling)
    }

    /// The rows with their features changed, in one array: once here, not in every epoch.
    ///
    /// # Errors
    /// When a row cannot be read.
    pub fn apply(&self, rows: &Dataset) -> Read<Dataset> {
        if self.fill.is_none() && self.divide_by == 1.0 && self.standard.is_none() {
            return Ok(rows.clone());
        }
        let batch = rows.batch(length(rows)).get(0, 0)?;
        let x = batch.x.iter().map(|x| match x.dtype() {
            DType::F32 => self.apply_to(x),
            _ => x.clone(),
        });
        let x = x.collect();
        Dataset::from_batch(Batch { x, ..batch })
    }

    fn apply_to(&self, x: &HostTensor) -> HostTensor {
        let mut values = x.f32s();
        let width = row_width(x);
        for row in values.chunks_exact_mut(width) {
            for (feature, value) in row.iter_mut().enumerate() {
                if let Some(fill) = self.fill.as_ref().filter(|_| value.is_nan()) {
                    *value = fill.get(feature).copied().unwrap_or(f32::NAN);
                }
                *value /= self.divide_by as f32;
                if let Some((mean, deviation)) = &self.standard {
                    let at = |list: &[f32]| list.get(feature).copied().unwrap_or(f32::NAN);
                    *value = (*value - at(mean)) / at(deviation);
                }
            }
        }
        HostTensor::new(x.dims(), &values)
    }
}

/// Refuses a column without a value to average.
fn check_means(x: &HostTensor, columns: &CsvColumns) -> Read<()> {
    let (values, width) = (x.f32s(), row_width(x));
    let is_empty = |&feature: &usize| {
        let mut of_feature = values.iter().skip(feature).step_by(width);
        of_feature.all(|value| value.is_nan())
    };
    let Some(feature) = (0..width).find(is_empty) else {
        return Ok(());
    };
    let column = columns.of_features().get(feature);
    let column = column.map_or_else(|| format!("of feature {feature}"), Clone::clone);
    Err(Error::User(format!(
        "column {column} has no value in the training rows whose mean could be filled in; name the `columns` without it, or fill in a number: `missing: 0`"
    )))
}

/// The mean and the standard deviation of each feature, of the values that are not missing; 0 where all are.
fn moments(x: &HostTensor) -> (Vec<f32>, Vec<f32>) {
    let (values, width) = (x.f32s(), row_width(x));
    let mut sums = vec![(0u64, 0.0f64); width];
    let each = |visit: &mut dyn FnMut(usize, f64)| {
        for row in values.chunks_exact(width) {
            for (feature, value) in row.iter().enumerate().filter(|(_, v)| !v.is_nan()) {
                visit(feature, f64::from(*value));
            }
        }
    };
    each(&mut |feature, value| {
        sums[feature].0 += 1;
        sums[feature].1 += value;
    });
    let means: Vec<f64> = sums
        .iter()
        .map(|&(count, sum)| sum / (count as f64).max(1.0))
        .collect();
    // A second pass: the difference of two large sums would lose the deviation of features far from 0.
    let mut squares = vec![0.0f64; width];
    each(&mut |feature, value| squares[feature] += (value - means[feature]).powi(2));
    let deviation = |(square, (count, _)): (f64, &(u64, f64))| {
        (square / (*count as f64).max(1.0)).sqrt() as f32
    };
    let deviations = squares.into_iter().zip(&sums).map(deviation).collect();
    (
        means.into_iter().map(|mean| mean as f32).collect(),
        deviations,
    )
}

/// The numbers of rows, which come first, if there are any.
fn numbers(rows: &Dataset) -> Read<Option<HostTensor>> {
    let batch = rows.batch(length(rows)).get(0, 0)?;
    let first = batch.x.into_iter().next();
    Ok(first.filter(|x| x.dtype() == DType::F32))
}

fn row_width(x: &HostTensor) -> usize {
    x.dims().iter().skip(1).product::<usize>().max(1)
}

/// Rows of a file have an end.
pub(crate) fn length(rows: &Dataset) -> usize {
    rows.len().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_far_from_zero_keep_their_deviation() {
        let x = HostTensor::new(
            [4, 2],
            &[1e6, 1.0, 1e6 + 1.0, f32::NAN, 1e6, 3.0, 1e6 + 1.0, 5.0],
        );
        let (mean, deviation) = moments(&x);
        assert_eq!(mean, [1_000_000.5, 3.0]);
        assert_eq!(deviation[0], 0.5);
        assert!((deviation[1] - (8.0f32 / 3.0).sqrt()).abs() < 1e-6);
    }
}
