//! The keys `delimiter` and `decimal` of CSV files.

use phalanx_yaml::{Node, Value};

use super::reader::{Reader, Section, text};

impl Reader {
    /// What stands between fields, and before decimals, which is another character.
    pub(super) fn csv_characters(&mut self, section: &Section<'_>) -> (char, char) {
        let delimiter = self.value(section, "delimiter", delimiter).unwrap_or(',');
        let decimal = self.value(section, "decimal", decimal).unwrap_or('.');
        if decimal == delimiter
            && let Some(node) = section.node("decimal")
        {
            let message = "`decimal` is a comma, and so is `delimiter`, which parts fields";
            self.problem(
                node.at,
                message,
                "write `delimiter: \";\"`, or what the file has",
            );
        }
        (delimiter, decimal)
    }
}

/// A tab is the one control character with a use here.
fn delimiter(node: &Node) -> Option<char> {
    let Value::Text(text) = &node.value else {
        return None;
    };
    let mut characters = text.chars();
    let only = characters.next().filter(|_| characters.next().is_none())?;
    let is_part_of_a_field = only.is_ascii_alphanumeric() || "+-.\"".contains(only);
    let is_visible = only.is_ascii_graphic() || only == ' ' || only == '\t';
    (is_visible && !is_part_of_a_field).then_some(only)
}

/// A point or a comma.
fn decimal(node: &Node) -> Option<char> {
    match text(node)? {
        "." => Some('.'),
        "," => Some(','),
        _ => None,
    }
}
