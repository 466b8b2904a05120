//! The table that shows a model.

use std::fmt::Write;

use phalanx_graph::Shape;

use super::Variable;
use super::architecture::{ValueNames, value_names};
use super::layer::Body;
use super::model::{Call, Model, NamedLayer, Place};

/// The summary of a model in at most `columns` columns.
pub(super) fn summary(model: &Model, columns: usize) -> String {
    let names = value_names(model);
    let mut rows = vec![heading(model)];
    rows.extend(model.inputs.iter().map(|input| Row {
        layer: format!("{} (input)", input.name),
        shape: with_batch(&input.shape),
        params: "0".into(),
        inputs: String::new(),
    }));
    rows.extend(
        model
            .layers
            .iter()
            .enumerate()
            .map(|(i, entry)| row(model, &names, i, entry)),
    );
    let mut text = format!("Model: {}\n", model.name);
    text.push_str(&table(&rows, columns.max(60)));
    text.push_str(&totals(model.variables()));
    text
}

struct Row {
    layer: String,
    shape: String,
    params: String,
    inputs: String,
}

impl Row {
    fn cells(&self) -> [&str; 4] {
        [&self.layer, &self.shape, &self.params, &self.inputs]
    }
}

/// The last column is there when the model is not a plain stack.
fn heading(model: &Model) -> Row {
    let next = |(i, call): (usize, &Call)| call.inputs == [Place { node: i, output: 0 }];
    let stack = model.inputs.len() == 1 && model.calls.iter().enumerate().all(next);
    Row {
        layer: "Layer (kind)".into(),
        shape: "Output shape".into(),
        params: "Params".into(),
        inputs: if stack {
            String::new()
        } else {
            "Inputs".into()
        },
    }
}

fn row(model: &Model, names: &ValueNames, index: usize, entry: &NamedLayer) -> Row {
    let calls: Vec<(usize, &Call)> = model
        .calls
        .iter()
        .enumerate()
        .filter(|(_, call)| call.layer == index)
        .collect();
    let shapes = calls
        .first()
        .map(|&(call, _)| model.shapes[call].as_slice());
    let shapes: Vec<String> = shapes.unwrap_or_default().iter().map(traced).collect();
    let prefix = format!("{}/", entry.name);
    let own = model
        .variables()
        .iter()
        .filter(|variable| variable.name.starts_with(&prefix));
    let frozen = match &entry.body {
        Body::Layer {
            trainable: false, ..
        } => ", frozen",
        _ => "",
    };
    let sources = calls.iter().map(|(_, call)| {
        let names: Vec<String> = call.inputs.iter().map(|&place| names.of(place)).collect();
        names.join(", ")
    });
    Row {
        layer: format!("{} ({}{frozen})", entry.name, entry.body.kind()),
        shape: shapes.join(", "),
        params: grouped(own.map(|variable| variable.shape.len()).sum()),
        inputs: sources.collect::<Vec<_>>().join("; "),
    }
}

/// A shape whose first dim is the batch: `[batch, 8, 8, 16]`.
fn traced(shape: &Shape) -> String {
    let rest = Shape::new(shape.dtype, shape.dims.get(1..).unwrap_or_default());
    with_batch(&rest)
}

fn with_batch(example: &Shape) -> String {
    let sizes = example.dims.iter().map(ToString::to_string);
    let dims: Vec<String> = ["batch".to_owned()].into_iter().chain(sizes).collect();
    let dtype = match example.dtype {
        phalanx_graph::DType::F32 => "",
        other => other.name(),
    };
    format!("{dtype}[{}]", dims.join(", "))
}

/// Rows below one another in columns, numbers to the right; the first row is the heading.
fn table(rows: &[Row], columns: usize) -> String {
    let shown = if rows[0].inputs.is_empty() { 3 } else { 4 };
    let mut widths = [0; 4];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row.cells()) {
            *width = cell.chars().count().max(*width);
        }
    }
    let limits = [columns, 24, 14, columns / 4];
    let mut widths: [usize; 4] = std::array::from_fn(|i| widths[i].min(limits[i]));
    let gaps = 2 * (shown - 1);
    widths[0] = widths[0].min(columns - gaps - widths[1..shown].iter().sum::<usize>());
    let line = "━".repeat(widths[..shown].iter().sum::<usize>() + gaps) + "\n";
    let mut text = line.clone();
    for (i, row) in rows.iter().enumerate() {
        text.push_str(&wrapped(&row.cells()[..shown], &widths));
        if i == 0 {
            text.push_str(&line);
        }
    }
    text + &line
}

/// One row; cells wider than their column go on below.
fn wrapped(cells: &[&str], widths: &[usize; 4]) -> String {
    let folded: Vec<Vec<String>> = cells
        .iter()
        .zip(widths)
        .map(|(cell, &width)| fold(cell, width))
        .collect();
    let height = folded.iter().map(Vec::len).max().unwrap_or(1);
    let mut text = String::new();
    for line in 0..height {
        let mut out = String::new();
        for (i, lines) in folded.iter().enumerate() {
            let part = lines.get(line).map_or("", String::as_str);
            let gap = if i == 0 { "" } else { "  " };
            // Writing to a string cannot fail.
            let _ = match i {
                2 => write!(out, "{gap}{part:>0$}", widths[i]),
                _ => write!(out, "{gap}{part:<0$}", widths[i]),
            };
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
    text
}

/// A text in lines of `width` characters, broken at spaces where that is possible.
fn fold(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let letters: Vec<char> = word.chars().collect();
        let fits = |line: &String| line.chars().count() + word.trim_end().chars().count() <= width;
        if lines
            .last()
            .is_some_and(|line| !line.is_empty() && !fits(line))
        {
            lines.push(String::new());
        }
        for letter in letters {
            let full = lines
                .last()
                .is_some_and(|line| line.chars().count() >= width);
            if full && letter != ' ' {
                lines.push(String::new());
            }
            if let Some(line) = lines.last_mut() {
                line.push(letter);
            }
        }
    }
    lines
        .into_iter()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

fn totals(variables: &[Variable]) -> String {
    let part = |name: &str, wanted: &dyn Fn(&Variable) -> bool| {
        let own = || variables.iter().filter(|variable| wanted(variable));
        let count: usize = own().map(|variable| variable.shape.len()).sum();
        let bytes: usize = own().map(|variable| variable.shape.byte_len()).sum();
        let size = crate::bytes::format_bytes(bytes as u64);
        format!("{name:<22}{} ({size})\n", grouped(count))
    };
    let total = part("Params:", &|_| true);
    let trainable = part("Trainable params:", &|variable| variable.trainable);
    let fixed = part("Non-trainable params:", &|variable| !variable.trainable);
    format!("{total}{trainable}{fixed}")
}

/// A number with commas between thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
