//! Predictions as lines of text.

use std::fmt::Write;

use clap::ValueEnum;
use phalanx::data::HostTensor;
use serde_json::{Value, json};

/// How predictions are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A header and a line for each row
    Csv,
    /// A JSON object a line
    Jsonl,
}

/// Writes a line for each row of `outputs`, `[rows, ..]`.
///
/// `class` is the index of the greatest score, first among equals, where the label is a class and a row has several scores;
/// then come the scores. Where a row is one number, it is `value`. JSON has no NaN and no infinity: they are null.
#[must_use]
pub fn lines(outputs: &HostTensor, classes: bool, format: Format) -> String {
    let rows = outputs.rows();
    let values = outputs.f32s();
    let width = values.len().checked_div(rows).unwrap_or_default();
    let mut text = match format {
        Format::Csv => header(width, classes),
        Format::Jsonl => String::new(),
    };
    for row in values.chunks(width.max(1)) {
        let line = match format {
            Format::Csv => csv(row, classes),
            Format::Jsonl => object(row, classes).to_string(),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

fn header(width: usize, classes: bool) -> String {
    if width == 1 {
        return "value\n".into();
    }
    let mut text = if classes {
        "class,".to_owned()
    } else {
        String::new()
    };
    for index in 0..width {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}score_{index}");
    }
    text + "\n"
}

fn csv(row: &[f32], classes: bool) -> String {
    let scores: Vec<String> = row.iter().map(ToString::to_string).collect();
    match row {
        [_, _, ..] if classes => format!("{},{}", greatest(row), scores.join(",")),
        _ => scores.join(","),
    }
}

fn object(row: &[f32], classes: bool) -> Value {
    let scores: Vec<f64> = row.iter().map(|value| shortest(*value)).collect();
    match &scores[..] {
        [value] => json!({ "value": value }),
        _ if classes => json!({ "class": greatest(row), "scores": scores }),
        _ => json!({ "scores": scores }),
    }
}

/// The f64 that is written with the digits of an f32: 0.1 and not 0.10000000149.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::NAN)
}

fn greatest(row: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in row.iter().enumerate() {
        if *value > row[best] || row[best].is_nan() {
            best = index;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_come_with_their_scores() {
        let outputs = HostTensor::new([2, 3], &[0.25f32, 0.5, 0.5, f32::NAN, -1.0, 1e-8]);
        let csv = "class,score_0,score_1,score_2\n1,0.25,0.5,0.5\n2,NaN,-1,0.00000001\n";
        assert_eq!(lines(&outputs, true, Format::Csv), csv);
        let json =
            "{\"class\":1,\"scores\":[0.25,0.5,0.5]}\n{\"class\":2,\"scores\":[null,-1.0,1e-8]}\n";
        assert_eq!(lines(&outputs, true, Format::Jsonl), json);
    }

    #[test]
    fn one_number_a_row_is_a_value_and_others_are_scores() {
        let one = HostTensor::new([2, 1], &[0.5f32, 2.0]);
        assert_eq!(lines(&one, true, Format::Csv), "value\n0.5\n2\n");
        assert_eq!(
            lines(&one, false, Format::Jsonl),
            "{\"value\":0.5}\n{\"value\":2.0}\n"
        );
        assert_eq!(
            lines(&HostTensor::new([2], &[0.5f32, 2.0]), false, Format::Csv),
            "value\n0.5\n2\n"
        );
        let image = HostTensor::new([1, 2, 2], &[1.0f32, 2.0, 3.0, 4.0]);
        assert_eq!(
            lines(&image, false, Format::Csv),
            "score_0,score_1,score_2,score_3\n1,2,3,4\n"
        );
        let none = HostTensor::new([0, 2], &[] as &[f32]);
        assert_eq!(lines(&none, false, Format::Jsonl), "");
    }
}
