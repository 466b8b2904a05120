//! Windows of a time series (Keras' `timeseries_dataset_from_array`).

use phalanx_graph::{AlignedBytes, HostTensor, Shape};

use super::{Dataset, Example, Source};
use crate::{Error, Result};

/// Which windows of a time series are examples, for [`Dataset::from_time_series`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWindows {
    /// Steps of a window.
    pub length: usize,
    /// Rows between the begins of two windows.
    pub stride: usize,
    /// Rows between two steps of a window.
    pub sampling_rate: usize,
    /// The first row of the series that is used; `None` for 0.
    pub start: Option<usize>,
    /// The row that the used ones end before; `None` for all.
    pub end: Option<usize>,
}

impl TimeWindows {
    /// Windows of this many rows that follow one another, from every row on.
    #[must_use]
    pub const fn new(length: usize) -> Self {
        Self {
            length,
            stride: 1,
            sampling_rate: 1,
            start: None,
            end: None,
        }
    }

    /// Rows from the first step of a window to its last.
    #[must_use]
    pub const fn reach(&self) -> usize {
        self.length
            .saturating_sub(1)
            .saturating_mul(self.sampling_rate)
    }

    /// The number of windows of a series of `rows` rows, with targets for the first `targets` of them.
    fn count(&self, rows: usize, targets: Option<usize>) -> Result<usize> {
        let (start, end) = (self.start.unwrap_or(0), self.end.unwrap_or(rows));
        if self.length == 0 || self.stride == 0 || self.sampling_rate == 0 {
            return Err(Error::User(format!(
                "windows have the length {}, the stride {} and the sampling rate {}; expected numbers from 1 on",
                self.length, self.stride, self.sampling_rate
            )));
        }
        if start >= end || end > rows {
            return Err(Error::User(format!(
                "windows are of the rows from {start} to {end} of a series of {rows}; expected a start before the end, and an end of at most {rows}"
            )));
        }
        let begins = (end - start).saturating_sub(self.reach());
        let begins = targets.map_or(begins, |count| begins.min(count.saturating_sub(start)));
        if begins == 0 {
            let what = match targets {
                Some(targets) => format!(", of {targets} targets"),
                None => String::new(),
            };
            return Err(Error::User(format!(
                "no window of {} steps, {} rows in all, fits into the {} rows of the series{what}; use shorter windows or more rows",
                self.length,
                self.reach().saturating_add(1),
                end - start
            )));
        }
        Ok(begins.div_ceil(self.stride))
    }
}

/// Windows, made when they are asked for: rows of the series are in memory once.
struct TimeSeries {
    data: HostTensor,
    targets: Option<HostTensor>,
    windows: TimeWindows,
    count: usize,
}

impl Dataset {
    /// Windows of a time series, `[rows, ..]` with the oldest row first: example `i` has `length` rows from row `start + i * stride` on,
    /// each `sampling_rate` after the other, and as output the row of `targets` at the place of the window's first row (Keras'
    /// `timeseries_dataset_from_array`). To forecast the next row give it the targets from row `reach() + 1` on.
    ///
    /// Windows without a target are left out. Unlike in Keras one that fits no window is an error, and `end` may be the number of rows.
    ///
    /// ```
    /// use phalanx::data::{Dataset, HostTensor, TimeWindows};
    ///
    /// let series = HostTensor::new([6], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0]);
    /// let windows = TimeWindows::new(3);
    /// let next = series.slice_rows(windows.reach() + 1, 6);
    /// let data = Dataset::from_time_series(&series, Some(&next), windows)?;
    /// let last = data.get(0, 2)?;
    /// assert_eq!((last.x[0].f32s(), last.y[0].f32s()), (vec![2.0, 3.0, 4.0], vec![5.0]));
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// When a number of the windows is 0, their rows are none of the series, or no window fits.
    pub fn from_time_series(
        data: &HostTensor,
        targets: Option<&HostTensor>,
        windows: TimeWindows,
    ) -> Result<Self> {
        for (name, tensor) in [("the series", Some(data)), ("the targets", targets)] {
            if let Some(tensor) = tensor.filter(|tensor| tensor.dims().is_empty()) {
                return Err(Error::User(format!(
                    "{name} are the scalar {}, expected an array with a row for each time",
                    tensor.shape()
                )));
            }
        }
        let count = windows.count(data.rows(), targets.map(HostTensor::rows))?;
        Ok(Self::from_source(TimeSeries {
            data: data.clone(),
            targets: targets.cloned(),
            windows,
            count,
        }))
    }
}

impl TimeSeries {
    /// The first row of a window.
    fn first(&self, i: usize) -> usize {
        self.windows.start.unwrap_or(0) + i * self.windows.stride
    }

    fn window(&self, first: usize) -> HostTensor {
        let TimeWindows {
            length,
            sampling_rate,
            ..
        } = self.windows;
        let row = self.data.row_bytes();
        let dims = [&[length], &self.data.dims()[1..]].concat();
        let mut bytes = AlignedBytes::zeroed(row * length);
        for (k, step) in bytes
            .as_mut_slice()
            .chunks_exact_mut(row.max(1))
            .enumerate()
        {
            let from = (first + k * sampling_rate) * row;
            step.copy_from_slice(&self.data.bytes()[from..from + row]);
        }
        HostTensor::from_aligned(Shape::new(self.data.dtype(), dims), bytes)
    }
}

impl Source for TimeSeries {
    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, i: usize) -> Result<Example> {
        if i >= self.count {
            return Err(Error::User(format!(
                "window {i} asked of {}; ask for an index below it",
                self.count
            )));
        }
        let first = self.first(i);
        let target = |targets: &HostTensor| {
            let dims = targets.dims()[1..].to_vec();
            targets.slice_rows(first, first + 1).reshape(dims)
        };
        Ok(Example {
            x: vec![self.window(first)],
            y: self.targets.iter().filter_map(target).collect(),
            weight: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Rows 2 r and 2 r + 1 of a series of two features, or one number each.
    fn series(rows: usize, is_flat: bool) -> HostTensor {
        let values: Vec<f32> = (0..2 * rows).map(|value| value as f32).collect();
        match is_flat {
            true => HostTensor::new([rows], &values[..rows]),
            false => HostTensor::new([rows, 2], &values),
        }
    }

    #[test]
    fn windows_are_those_of_keras() {
        let golden = include_str!("../../../../tests/golden/keras/windows.json");
        let golden: Value = serde_json::from_str(golden).unwrap();
        let records = golden["records"].as_array().unwrap();
        assert_eq!(records.len(), 10);
        for case in records {
            let number = |key: &str| case[key].as_u64().map(|number| number as usize);
            let windows = TimeWindows {
                length: number("sequence_length").unwrap(),
                stride: number("sequence_stride").unwrap(),
                sampling_rate: number("sampling_rate").unwrap(),
                start: number("start_index"),
                end: number("end_index"),
            };
            let data = series(number("rows").unwrap(), case["flat"].as_bool().unwrap());
            let targets = number("targets").map(|count| {
                let values: Vec<i32> = (0..count as i32).map(|value| 1000 + value).collect();
                HostTensor::new([count], &values)
            });
            let made = Dataset::from_time_series(&data, targets.as_ref(), windows).unwrap();
            let expected = case["windows"].as_array().unwrap();
            assert_eq!(made.len(), Some(expected.len()), "{case}");
            for (i, expected) in expected.iter().enumerate() {
                let example = made.get(0, i).unwrap();
                let flat = |value: &Value| -> Vec<f64> {
                    let mut numbers = Vec::new();
                    flatten(value, &mut numbers);
                    numbers
                };
                assert_eq!(example.x[0].to_f64(), flat(&expected["x"]), "{i} of {case}");
                let y = example.y.iter().flat_map(HostTensor::to_f64);
                assert_eq!(
                    y.collect::<Vec<f64>>(),
                    flat(&expected["y"]),
                    "{i} of {case}"
                );
            }
        }
    }

    fn flatten(value: &Value, numbers: &mut Vec<f64>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| flatten(item, numbers)),
            value => numbers.extend(value.as_f64()),
        }
    }

    #[test]
    fn windows_are_shuffled_divided_and_read_again() {
        let windows = TimeWindows {
            stride: 2,
            ..TimeWindows::new(3)
        };
        let data = Dataset::from_time_series(&series(21, false), None, windows).unwrap();
        assert_eq!(data.get(0, 9).unwrap().x[0].dims(), [3, 2]);
        let batches = data.shuffle(1).batch(4);
        let firsts = |batches: &super::super::Batches, start: usize| {
            let of = |batch: Result<super::super::Batch>| batch.unwrap().x[0].f32s()[0] as i32 / 4;
            batches.iter(1, start).map(of).collect::<Vec<i32>>()
        };
        assert_eq!(firsts(&batches, 1), firsts(&batches, 0)[1..]);
        let rows = batches.iter(1, 0).map(|batch| batch.unwrap().rows());
        assert_eq!(rows.sum::<usize>(), 10);
        let (first, _) = data.split_at(4).unwrap();
        assert_eq!(first.len(), Some(4));
    }

    #[test]
    fn what_makes_no_windows_is_refused() {
        let data = series(10, true);
        let zero = [
            TimeWindows::new(0),
            TimeWindows {
                stride: 0,
                ..TimeWindows::new(2)
            },
            TimeWindows {
                sampling_rate: 0,
                ..TimeWindows::new(2)
            },
        ];
        let of = |start, end| TimeWindows {
            start: Some(start),
            end: Some(end),
            ..TimeWindows::new(2)
        };
        let huge = TimeWindows {
            sampling_rate: usize::MAX,
            ..TimeWindows::new(usize::MAX)
        };
        let none = HostTensor::new([0], &[0.0f32; 0]);
        let refused = zero.map(|windows| (windows, None, "expected numbers from 1 on"));
        let refused = refused.into_iter().chain([
            (of(5, 5), None, "a start before the end"),
            (of(0, 11), None, "an end of at most 10"),
            (
                of(8, 9),
                None,
                "no window of 2 steps, 2 rows in all, fits into the 1 rows",
            ),
            (TimeWindows::new(11), None, "no window of 11 steps"),
            (huge, None, "no window of"),
            (TimeWindows::new(2), Some(&none), "of 0 targets"),
        ]);
        for (windows, targets, expected) in refused {
            let error = Dataset::from_time_series(&data, targets, windows).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let scalar = HostTensor::scalar(1.0f32);
        assert!(Dataset::from_time_series(&scalar, None, TimeWindows::new(1)).is_err());
        let some = Dataset::from_time_series(&data, None, TimeWindows::new(2)).unwrap();
        assert!(some.get(0, 9).is_err());
    }
}
