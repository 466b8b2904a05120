//! Time series: the key `window` of CSV files.

use phalanx::config::{DefaultValue, Field, Kind};
use phalanx::data::TimeWindows;
use phalanx_yaml::Node;

use super::reader::{Reader, Section, whole};
use super::sections::as_usize;
use super::{Csv, LabelType, Located, Missing, Position, Test};

/// Most rows of a window, and between windows or steps.
const MAX_STEPS: i64 = 1 << 24;

/// `window` of CSV files.
pub(super) const OF_CSV: Field = Field::new(
    "window",
    Kind::Worded(
        "a mapping with the keys sequence_length, sequence_stride, sampling_rate, ahead and horizon",
        &Kind::Section(WINDOW),
    ),
    DefaultValue::Words("each row is an example"),
    "says that rows are the times of a series, the oldest first, and that an example is a window of them, `[sequence_length, features]`, as layers of sequences take it; its label is what `label` is in the rows after it. So series are forecast, as with Keras' `timeseries_dataset_from_array`. The column of the label is a feature too, unless `columns` leaves it out. The rows of all files follow one another; `test` and `validation` hold out rows first, so that no window has rows of two parts. `predict` forecasts from every window of a file, the last of which ends with its last row. It does not go with `text`, `category`, `inputs`, `features`, `weight`, `missing: drop` and `test: {split: ..}`",
)
.example("{sequence_length: 24}");

/// The keys of a window.
pub(crate) const WINDOW: &[Field] = &[
    Field::required(
        "sequence_length",
        Kind::Whole(1, MAX_STEPS),
        "how many rows an example has",
    )
    .example("24"),
    Field::new(
        "sequence_stride",
        Kind::Whole(1, MAX_STEPS),
        DefaultValue::Value("1"),
        "rows from the begin of a window to the begin of the next",
    )
    .example("1"),
    Field::new(
        "sampling_rate",
        Kind::Whole(1, MAX_STEPS),
        DefaultValue::Value("1"),
        "rows from one step of a window to the next: with 6, of rows every ten minutes one an hour",
    )
    .example("6"),
    Field::new(
        "ahead",
        Kind::Whole(0, MAX_STEPS),
        DefaultValue::Value("1"),
        "rows from the last row of a window to the row of its label: 1 for the next one, 0 for the last row itself, such as the class of what was just seen",
    )
    .example("1"),
    Field::new(
        "horizon",
        Kind::Whole(1, 1 << 16),
        DefaultValue::Value("1"),
        "how many rows are forecast: with 24 an example has 24 labels, of the row that `ahead` says and those after it, and the last layer as many units",
    )
    .example("24"),
];

/// The windows that `data` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CsvWindow {
    /// Where it asks for them.
    pub at: Position,
    /// The rows of a window, and those between windows.
    pub windows: TimeWindows,
    /// Rows from the last row of a window to its first label.
    pub ahead: usize,
    /// The number of labels.
    pub horizon: usize,
}

impl Reader {
    /// The key `window` of CSV files.
    pub(super) fn csv_window(&mut self, section: &Section<'_>) -> Option<CsvWindow> {
        let node = section.node(OF_CSV.name)?;
        let section = self.section(node, OF_CSV.name, WINDOW)?;
        let number = |node: &Node| whole(node).map(as_usize);
        let length = self.value(&section, "sequence_length", number);
        let stride = self.value(&section, "sequence_stride", number);
        let sampling_rate = self.value(&section, "sampling_rate", number);
        let ahead = self.value(&section, "ahead", number);
        let horizon = self.value(&section, "horizon", number);
        Some(CsvWindow {
            at: node.at,
            windows: TimeWindows {
                stride: stride.unwrap_or(1),
                sampling_rate: sampling_rate.unwrap_or(1),
                ..TimeWindows::new(length?)
            },
            ahead: ahead.unwrap_or(1),
            horizon: horizon.unwrap_or(1),
        })
    }

    /// What `window` of CSV files does not go with.
    pub(super) fn check_window(&mut self, csv: &Csv) {
        let Some(window) = &csv.window else {
            return;
        };
        let of_rows = [
            ("text", !csv.text.is_empty()),
            ("category", !csv.category.is_empty()),
            ("inputs", !csv.inputs.value.is_empty()),
            ("features", !csv.features.value.is_empty()),
            ("weight", csv.weight.is_some()),
        ];
        for (key, _) in of_rows.iter().filter(|(_, is_there)| *is_there) {
            let message = format!("a window has numbers of several rows, and `{key}` is about one");
            self.problem(window.at, message, format!("remove `{key}`, or `window`"));
        }
        if csv.missing == Missing::Drop {
            self.problem(
                window.at,
                "`missing` is drop, and rows of a series that are left out make later ones follow earlier ones too soon",
                "fill what is missing: `missing: mean`, or with a number",
            );
        }
        if let Some(Located {
            value: Test::Split(_),
            at,
        }) = &csv.test
        {
            self.problem(
                *at,
                "`split` draws rows of a series by chance, and windows are of rows that follow one another",
                match csv.is_parquet {
                    true => "name files of their own: `test: {parquet: test.parquet}`",
                    false => "write `last: ROWS`, or name files of their own",
                },
            );
        }
        if window.horizon > 1 && csv.label_type == LabelType::Class {
            self.problem(
                window.at,
                "`horizon` asks for several labels, and `label_type` is class",
                "write `label_type: value`, or leave `horizon` out",
            );
        }
    }
}
