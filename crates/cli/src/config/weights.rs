//! The column of the weights of rows, a key of CSV files.

use super::inputs::shown_column;
use super::reader::Reader;
use super::texts::is_label;
use super::{Column, Csv, Located};

impl Reader {
    /// The column of the weights has no other use.
    pub(super) fn check_weight(&mut self, csv: &Csv) {
        let Some(Located { value, at }) = &csv.weight else {
            return;
        };
        let shown = shown_column(value);
        if let (Column::Name(_), Some(false)) = (value, csv.header) {
            let message = format!("`weight` is the column named {shown}, and `header` is false");
            let next = "give the position of the column, from 0, or set `header: true`";
            self.problem(*at, message, next);
        }
        let is_one = |columns: &[Column]| columns.contains(value);
        let mut texts = csv.text.iter();
        let uses = [
            ("label", is_label(&csv.label.value, value)),
            ("columns` or `inputs", is_one(&csv.columns)),
            ("one_hot", is_one(&csv.one_hot.value)),
            ("text", texts.any(|text| text.column.value == *value)),
        ];
        if let Some((key, _)) = uses.into_iter().find(|(_, is_used)| *is_used) {
            let message =
                format!("the column {shown} is the `weight` of rows, and `{key}` names it");
            self.problem(*at, message, "leave it out of one of them");
        }
    }
}
