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

/// What a model gives of one output.
#[derive(Debug, Clone, Copy)]
pub struct Predicted<'a> {
    /// The name of the output, where a model has several; all it has is called after it.
    pub output: Option<&'a str>,
    /// `[rows, ..]`.
    pub values: &'a HostTensor,
    /// The names of the classes where the label is one, none where they are numbers; `None` where it is a value.
    pub classes: Option<&'a [String]>,
}

/// Writes a line for each row of the outputs.
///
/// First comes the `file` of a row where rows have `names`, then each output: `class`, the name or, where `classes` has none, the index of
/// the greatest score, first among equals, where the label is a class and a row has several scores; it is empty where none of them is a
/// number. Then come the scores. Where a row is one number, it is `value`. With names of outputs these are `NAME_class` and so on, and in
/// JSON an object of each name. JSON has no NaN and no infinity: they are null.
#[must_use]
pub fn lines(outputs: &[Predicted<'_>], names: Option<&[String]>, format: Format) -> String {
    let columns: Vec<Columns<'_>> = outputs.iter().map(Columns::new).collect();
    let mut text = match format {
        Format::Csv => {
            let file = names.map(|_| "file".to_owned());
            let fields = columns.iter().flat_map(Columns::header);
            file.into_iter().chain(fields).collect::<Vec<_>>().join(",") + "\n"
        }
        Format::Jsonl => String::new(),
    };
    let rows = outputs.first().map_or(0, |output| output.values.rows());
    for row in 0..rows {
        let name = names.and_then(|names| names.get(row));
        let line = match format {
            Format::Csv => {
                let file = name.map(|name| quoted(name));
                let fields = columns.iter().flat_map(|columns| columns.csv(row));
                file.into_iter().chain(fields).collect::<Vec<_>>().join(",")
            }
            Format::Jsonl => object(name, &columns, row).to_string(),
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

/// The numbers of an output, row by row.
struct Columns<'a> {
    output: Option<&'a str>,
    values: Vec<f32>,
    width: usize,
    classes: Option<&'a [String]>,
}

impl<'a> Columns<'a> {
    fn new(of: &Predicted<'a>) -> Self {
        let width = row_width(of.values);
        // Names of another number of classes name nothing.
        let named = |classes: &'a [String]| if classes.len() == width { classes } else { &[] };
        Self {
            output: of.output,
            values: of.values.f32s(),
            width,
            classes: of.classes.map(named),
        }
    }

    fn header(&self) -> Vec<String> {
        let mut columns = Vec::new();
        if self.width == 1 {
            columns.push("value".into());
        } else {
            columns.extend(self.classes.map(|_| "class".into()));
            let scores =
                (0..self.width).map(|index| format!("score_{}", class(index, self.classes)));
            columns.extend(scores);
        }
        let of_output = self
            .output
            .map_or_else(String::new, |output| format!("{output}_"));
        let columns = columns.into_iter();
        columns
            .map(|column| quoted(&format!("{of_output}{column}")))
            .collect()
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.width..(row + 1) * self.width]
    }

    fn csv(&self, row: usize) -> Vec<String> {
        let scores = self.row(row);
        let mut fields = Vec::new();
        if self.classes.is_some() && scores.len() > 1 {
            let best = greatest(scores).map(|best| class(best, self.classes));
            fields.push(quoted(&best.unwrap_or_default()));
        }
        fields.extend(scores.iter().map(ToString::to_string));
        fields
    }

    fn object(&self, row: usize) -> Value {
        let row = self.row(row);
        let scores: Vec<f64> = row.iter().map(|value| shortest(*value)).collect();
        match (&scores[..], self.classes) {
            ([value], _) => json!({ "value": value }),
            (_, Some([])) => json!({ "class": greatest(row), "scores": scores }),
            (_, Some(_)) => {
                let best = greatest(row).map(|best| class(best, self.classes));
                json!({ "class": best, "scores": scores })
            }
            (_, None) => json!({ "scores": scores }),
        }
    }
}

/// A row of all outputs: of one without a name, or of each under its name.
fn object(name: Option<&String>, outputs: &[Columns<'_>], row: usize) -> Value {
    let mut all = json!({});
    for columns in outputs {
        match columns.output {
            Some(output) => all[output] = columns.object(row),
            None => all = columns.object(row),
        }
    }
    if let Some(name) = name {
        all["file"] = json!(name);
    }
    all
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

    /// The lines of one output without a name.
    fn lines(
        values: &HostTensor,
        classes: Option<&[String]>,
        names: Option<&[String]>,
        format: Format,
    ) -> String {
        let output = None;
        super::lines(
            &[Predicted {
                output,
                values,
                classes,
            }],
            names,
            format,
        )
    }

    #[test]
    fn several_outputs_stand_side_by_side_under_their_names() {
        let kinds = HostTensor::new([2, 2], &[0.25f32, 0.75, 1.0, 0.0]);
        let sizes = HostTensor::new([2, 1], &[3.5f32, -1.0]);
        let names = ["cat".to_owned(), "dog".to_owned()];
        let outputs = [
            Predicted {
                output: Some("kind"),
                values: &kinds,
                classes: Some(&names),
            },
            Predicted {
                output: Some("size"),
                values: &sizes,
                classes: None,
            },
        ];
        let csv =
            "kind_class,kind_score_cat,kind_score_dog,size_value\ndog,0.25,0.75,3.5\ncat,1,0,-1\n";
        assert_eq!(super::lines(&outputs, None, Format::Csv), csv);
        let json = super::lines(&outputs, None, Format::Jsonl);
        let first = r#"{"kind":{"class":"dog","scores":[0.25,0.75]},"size":{"value":3.5}}"#;
        assert_eq!(json.lines().next(), Some(first));
    }

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
