//! Rows of a time series as windows, with what comes after each.

use std::path::Path;

use phalanx::data::{Dataset, HostTensor, TimeWindows};
use phalanx::{Error, Result as Read};
use serde::{Deserialize, Serialize};

use crate::config::{Csv, CsvWindow, Problem};
use crate::data_facts::Facts;
use crate::scaling::length;

/// The windows that a model was trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowFact {
    /// Rows of a window.
    pub sequence_length: usize,
    /// Rows from the begin of one to the begin of the next.
    pub sequence_stride: usize,
    /// Rows from one step to the next.
    pub sampling_rate: usize,
    /// Rows from the last row of a window to its first label.
    pub ahead: usize,
    /// The number of labels.
    pub horizon: usize,
}

impl From<&CsvWindow> for WindowFact {
    fn from(window: &CsvWindow) -> Self {
        Self {
            sequence_length: window.windows.length,
            sequence_stride: window.windows.stride,
            sampling_rate: window.windows.sampling_rate,
            ahead: window.ahead,
            horizon: window.horizon,
        }
    }
}

impl WindowFact {
    /// Rows in their order as windows, with their labels where rows have some. To forecast, where they have none, all windows count,
    /// whatever their stride.
    ///
    /// # Errors
    /// When no window fits, or a row cannot be read.
    pub(crate) fn apply(&self, rows: &Dataset) -> Read<Dataset> {
        let batch = rows.batch(length(rows)).get(0, 0)?;
        let [x] = &batch.x[..] else {
            return Err(Error::Bug(format!("a series of {} arrays", batch.x.len())));
        };
        let windows = TimeWindows {
            stride: self.sequence_stride,
            sampling_rate: self.sampling_rate,
            ..TimeWindows::new(self.sequence_length)
        };
        let Some(y) = batch.y.first() else {
            let all = TimeWindows {
                stride: 1,
                ..windows
            };
            return Dataset::from_time_series(x, None, all);
        };
        let first = windows.reach().saturating_add(self.ahead);
        let last = self.horizon.saturating_sub(1);
        let count = y.rows().saturating_sub(first).saturating_sub(last);
        if count == 0 {
            return Err(Error::User(format!(
                "a window and its labels reach over {} rows, and there are {}; use shorter windows or more rows",
                first.saturating_add(last).saturating_add(1),
                y.rows()
            )));
        }
        let labels = match self.horizon {
            1 => y.slice_rows(first, first + count),
            horizon => {
                let values = y.f32s();
                let labels = values[first..].windows(horizon).flatten().copied();
                HostTensor::new([count, horizon], &labels.collect::<Vec<f32>>())
            }
        };
        Dataset::from_time_series(x, Some(&labels), windows)
    }
}

/// What to do about rows without a label.
const FILL_IN: &str = "fill in their labels in the file";

fn gaps(dropped: usize) -> String {
    format!(
        "{dropped} rows of the series have no label and are left out, so that later ones would follow earlier ones too soon"
    )
}

/// Refuses a file of a series with rows that have no label, which are left out, where a trained model takes it.
pub(crate) fn check_gaps_of(path: &Path, facts: &Facts, dropped: usize) -> Read<()> {
    match facts.window {
        Some(_) if dropped > 0 => Err(Error::User(format!(
            "{}: {}; {FILL_IN}",
            path.display(),
            gaps(dropped)
        ))),
        _ => Ok(()),
    }
}

/// Refuses rows of a series that have no label, which are left out.
pub(crate) fn check_gaps(data: &Csv, dropped: usize) -> Result<(), Problem> {
    match &data.window {
        Some(window) if dropped > 0 => Err(Problem::new(window.at, gaps(dropped), FILL_IN)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> Dataset {
        let x: Vec<f32> = (0..2 * count).map(|value| value as f32).collect();
        let y: Vec<f32> = (0..count).map(|row| 100.0 + row as f32).collect();
        let y = HostTensor::new([count], &y);
        Dataset::from_arrays(HostTensor::new([count, 2], &x), y).unwrap()
    }

    /// The first row of each window, and its labels.
    fn made(fact: WindowFact, rows: &Dataset) -> Vec<(f32, Vec<f32>)> {
        let windows = fact.apply(rows).unwrap();
        let of = |i| {
            let example = windows.get(0, i).unwrap();
            assert_eq!(example.x[0].dims(), [fact.sequence_length, 2]);
            let labels = example.y.iter().flat_map(HostTensor::f32s).collect();
            (example.x[0].f32s()[0] / 2.0, labels)
        };
        (0..windows.len().unwrap()).map(of).collect()
    }

    #[test]
    fn labels_come_as_far_behind_their_window_as_asked_for() {
        let fact = WindowFact {
            sequence_length: 3,
            sequence_stride: 1,
            sampling_rate: 1,
            ahead: 1,
            horizon: 1,
        };
        let next = made(fact, &rows(6));
        let expected = [(0.0, vec![103.0]), (1.0, vec![104.0]), (2.0, vec![105.0])];
        assert_eq!(next, expected);
        // As `targets = data[sampling_rate * (sequence_length + ahead - 1):]` in Keras, hours of rows.
        let hours = WindowFact {
            sampling_rate: 2,
            sequence_stride: 3,
            ahead: 4,
            ..fact
        };
        assert_eq!(
            made(hours, &rows(15)),
            [(0.0, vec![108.0]), (3.0, vec![111.0]), (6.0, vec![114.0])]
        );
        let own = made(WindowFact { ahead: 0, ..fact }, &rows(4));
        assert_eq!(own, [(0.0, vec![102.0]), (1.0, vec![103.0])]);
        let many = made(WindowFact { horizon: 2, ..fact }, &rows(6));
        assert_eq!(many, [(0.0, vec![103.0, 104.0]), (1.0, vec![104.0, 105.0])]);
        let error = fact.apply(&rows(3)).unwrap_err().to_string();
        assert!(
            error.contains("reach over 4 rows, and there are 3"),
            "{error}"
        );
        let batch = rows(7).batch(7).get(0, 0).unwrap();
        let unlabelled = Dataset::from_arrays(batch.x, Vec::new()).unwrap();
        let firsts = made(hours, &unlabelled).into_iter().map(|(first, _)| first);
        assert_eq!(firsts.collect::<Vec<f32>>(), [0.0, 1.0, 2.0]);
    }
}
