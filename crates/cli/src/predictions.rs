//! Predictions as lines of text.

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
/// First comes the `file` of a row where rows have `names`; `class` is the name or, where `classes` has none, the index of the
/// greatest score, first among equals, where the label is a class and a row has several scores; it is empty where none of them is a
/// number. Then come the scores. Where a row is one number, it is `value`. JSON has no NaN and no infinity: they are null.
#[must_use]
pub fn lines(
    outputs: &HostTensor,
    classes: Option<&[String]>,
    names: Option<&[String]>,
    format: Format,
) -> String {
    let values = outputs.f32s();
    let width = row_width(outputs);
    // Names of another number of classes name nothing.
    let classes = classes.map(|classes| if classes.len() == width { classes } else { &[] });
    let mut text = match format {
        Format::Csv => header(width, classes, names.is_some()),
        Format::Jsonl => String::new(),
    };
    for (i, row) in values.chunks(width.max(1)).enumerate() {
        let name = names.and_then(|names| names.get(i));
        let line = match format {
            Format::Csv => csv(name, row, classes),
            Format::Jsonl => object(name, row, classes).to_string(),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// How many rows have no score that is a number.
#[must_use]
pub fn without_scores(outputs: &HostTensor) -> usize {
    let values = outputs.f32s();
    let rows = values.chunks(row_width(outputs).max(1));
    rows.filter(|row| row.iter().all(|score| score.is_nan()))
        .count()
}

fn row_width(outputs: &HostTensor) -> usize {
    let all: usize = outputs.dims().iter().product();
    all.checked_div(outputs.rows()).unwrap_or_default()
}

fn header(width: usize, classes: Option<&[String]>, names: bool) -> String {
    let mut columns = Vec::new();
    if names {
        columns.push("file".to_owned());
    }
    if width == 1 {
        columns.push("value".into());
    } else {
        columns.extend(classes.map(|_| "class".into()));
        columns.extend((0..width).map(|index| quoted(&format!("score_{}", class(index, classes)))));
    }
    columns.join(",") + "\n"
}

fn csv(name: Option<&String>, row: &[f32], classes: Option<&[String]>) -> String {
    let mut fields: Vec<String> = name.map(|name| quoted(name)).into_iter().collect();
    if classes.is_some() && row.len() > 1 {
        let best = greatest(row).map(|best| class(best, classes));
        fields.push(quoted(&best.unwrap_or_default()));
    }
    fields.extend(row.iter().map(ToString::to_string));
    fields.join(",")
}

/// The name of a class, or its number.
fn class(index: usize, classes: Option<&[String]>) -> String {
    let name = classes.and_then(|classes| classes.get(index));
    name.map_or_else(|| index.to_string(), String::clone)
}

/// A field of CSV.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn object(name: Option<&String>, row: &[f32], classes: Option<&[String]>) -> Value {
    let scores: Vec<f64> = row.iter().map(|value| shortest(*value)).collect();
    let mut object = match &scores[..] {
        [value] => json!({ "value": value }),
        _ if classes.is_some_and(|classes| !classes.is_empty()) => {
            let best = greatest(row).map(|best| class(best, classes));
            json!({ "class": best, "scores": scores })
        }
        _ if classes.is_some() => json!({ "class": greatest(row), "scores": scores }),
        _ => json!({ "scores": scores }),
    };
    if let Some(name) = name {
        object["file"] = json!(name);
    }
    object
}

/// The f64 that is written with the digits of an f32: 0.1 and not 0.10000000149.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::NAN)
}

/// The place of the greatest score that is a number, if there is one.
fn greatest(row: &[f32]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (index, value) in row.iter().enumerate() {
        let is_greater = best.is_none_or(|best| *value > row[best]);
        if !value.is_nan() && is_greater {
            best = Some(index);
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
        assert_eq!(lines(&outputs, Some(&[]), None, Format::Csv), csv);
        let json =
            "{\"class\":1,\"scores\":[0.25,0.5,0.5]}\n{\"class\":2,\"scores\":[null,-1.0,1e-8]}\n";
        assert_eq!(lines(&outputs, Some(&[]), None, Format::Jsonl), json);
    }

    #[test]
    fn scores_that_are_no_numbers_tell_no_class() {
        let outputs = HostTensor::new([2, 2], &[f32::NAN, f32::NAN, f32::NAN, 0.5]);
        assert_eq!(without_scores(&outputs), 1);
        let csv = "class,score_0,score_1\n,NaN,NaN\n1,NaN,0.5\n";
        assert_eq!(lines(&outputs, Some(&[]), None, Format::Csv), csv);
        let names = ["cat".to_owned(), "dog".to_owned()];
        for (classes, dog) in [(&[][..], "1"), (&names[..], "\"dog\"")] {
            let json = format!(
                "{{\"class\":null,\"scores\":[null,null]}}\n{{\"class\":{dog},\"scores\":[null,0.5]}}\n"
            );
            assert_eq!(lines(&outputs, Some(classes), None, Format::Jsonl), json);
        }
    }

    #[test]
    fn classes_with_names_are_named() {
        let outputs = HostTensor::new([1, 2], &[0.25f32, 0.75]);
        let names = ["cat".to_owned(), "dog, wet".to_owned()];
        let csv = "class,score_cat,\"score_dog, wet\"\n\"dog, wet\",0.25,0.75\n";
        assert_eq!(lines(&outputs, Some(&names), None, Format::Csv), csv);
        let json = "{\"class\":\"dog, wet\",\"scores\":[0.25,0.75]}\n";
        assert_eq!(lines(&outputs, Some(&names), None, Format::Jsonl), json);
        let other = lines(&outputs, Some(&names[..1]), None, Format::Csv);
        assert_eq!(other, "class,score_0,score_1\n1,0.25,0.75\n");
    }

    #[test]
    fn images_come_with_their_files() {
        let outputs = HostTensor::new([2, 2], &[0.25f32, 0.75, 1.0, 0.0]);
        let names = ["a/b.jpg".to_owned(), "x, \"y\".png".to_owned()];
        let csv = "file,class,score_0,score_1\na/b.jpg,1,0.25,0.75\n\"x, \"\"y\"\".png\",0,1,0\n";
        assert_eq!(lines(&outputs, Some(&[]), Some(&names), Format::Csv), csv);
        let json = lines(&outputs, Some(&[]), Some(&names), Format::Jsonl);
        let first = "{\"class\":1,\"file\":\"a/b.jpg\",\"scores\":[0.25,0.75]}";
        assert_eq!(json.lines().next(), Some(first));
    }

    #[test]
    fn one_number_a_row_is_a_value_and_others_are_scores() {
        let one = HostTensor::new([2, 1], &[0.5f32, 2.0]);
        assert_eq!(lines(&one, Some(&[]), None, Format::Csv), "value\n0.5\n2\n");
        assert_eq!(
            lines(&one, None, None, Format::Jsonl),
            "{\"value\":0.5}\n{\"value\":2.0}\n"
        );
        assert_eq!(
            lines(
                &HostTensor::new([2], &[0.5f32, 2.0]),
                None,
                None,
                Format::Csv
            ),
            "value\n0.5\n2\n"
        );
        let image = HostTensor::new([1, 2, 2], &[1.0f32, 2.0, 3.0, 4.0]);
        assert_eq!(
            lines(&image, None, None, Format::Csv),
            "score_0,score_1,score_2,score_3\n1,2,3,4\n"
        );
        let none = HostTensor::new([0, 2], &[] as &[f32]);
        assert_eq!(lines(&none, None, None, Format::Jsonl), "");
    }
}
