//! YAML text to a tree that knows its places.
//!
//! A strict subset: one document, keys that are scalars, no tags, no merge keys. Size, depth and the expansion of aliases are
//! limited, so that no file takes long or much memory. Scalars are read by the core schema of YAML 1.2 (`yes` is text).

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, StrInput};
use serde_json::{Map, Number, Value as Json};

use crate::problem::{Position, Problem, shown};

/// Most bytes of a file.
pub const MAX_BYTES: usize = 1 << 20;
/// Most levels of lists and mappings in one another.
const MAX_DEPTH: usize = 32;
/// Most weight of a tree with its aliases expanded; a node weighs `NODE` and the bytes of its text.
const MAX_WEIGHT: usize = 8 << 20;
const NODE: usize = 64;

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What it is.
    pub value: Value,
    /// Where it stands.
    pub at: Position,
}

/// What YAML can say.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Another number, which may be infinite or not a number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A mapping, in the order of the file; no key comes twice.
    Map(Vec<(Key, Node)>),
}

/// A key of a mapping, as it is written, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its text.
    pub name: String,
    /// Where it stands.
    pub at: Position,
}

impl Node {
    /// The value of a key, of a mapping that has it.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Self> {
        let Value::Map(entries) = &self.value else {
            return None;
        };
        let found = entries.iter().find(|(key, _)| key.name == name);
        found.map(|(_, node)| node)
    }

    /// The whole value as text: the same for all ways to write it.
    #[must_use]
    pub fn canonical(&self) -> String {
        match &self.value {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Float(value) => format!("{value:?}"),
            Value::Text(text) => format!("{text:?}"),
            Value::List(items) => {
                let items: Vec<String> = items.iter().map(Self::canonical).collect();
                format!("[{}]", items.join(","))
            }
            Value::Map(entries) => {
                let entry =
                    |(key, node): &(Key, Self)| format!("{:?}:{}", key.name, node.canonical());
                let mut entries: Vec<String> = entries.iter().map(entry).collect();
                entries.sort();
                format!("{{{}}}", entries.join(","))
            }
        }
    }

    /// The value as JSON; `None` where a number in it is not finite.
    #[must_use]
    pub fn to_json(&self) -> Option<Json> {
        Some(match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::from(*value),
            Value::Int(value) => Json::from(*value),
            Value::Float(value) => Json::Number(Number::from_f64(*value)?),
            Value::Text(text) => Json::from(text.as_str()),
            Value::List(items) => {
                let items: Option<Vec<Json>> = items.iter().map(Self::to_json).collect();
                Json::Array(items?)
            }
            Value::Map(entries) => {
                let entry = |(key, node): &(Key, Self)| Some((key.name.clone(), node.to_json()?));
                let entries: Option<Map<String, Json>> = entries.iter().map(entry).collect();
                Json::Object(entries?)
            }
        })
    }

    /// The value in a few words, for a message.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Null => "empty".into(),
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Float(value) => format!("{value:?}"),
            Value::Text(text) => format!("the text {}", shown(text)),
            Value::List(items) => format!("a list of {}", items.len()),
            Value::Map(entries) if entries.is_empty() => "an empty mapping".into(),
            Value::Map(_) => "a mapping".into(),
        }
    }
}

/// Reads one document. The list holds the mistakes after which reading went on.
///
/// # Errors
/// The text cannot be read at all.
pub fn parse(bytes: &[u8]) -> Result<(Node, Vec<Problem>), Problem> {
    read(bytes, Tree::default())
}

/// Like [`parse`], for files whose numbers may be words of a command: a number, `true` or `false` in another spelling than ours, such as
/// `1.10`, `007` or `True`, is text as it was written.
///
/// # Errors
/// The text cannot be read at all.
pub fn parse_verbatim(bytes: &[u8]) -> Result<(Node, Vec<Problem>), Problem> {
    let tree = Tree {
        verbatim: true,
        ..Tree::default()
    };
    read(bytes, tree)
}

fn read(bytes: &[u8], mut tree: Tree) -> Result<(Node, Vec<Problem>), Problem> {
    let text = text_of(bytes)?;
    for event in Parser::<StrInput<'_>>::new_from_str(text) {
        let (event, span) = event.map_err(|error| syntax(&error))?;
        tree.take(event, position(&span.start))?;
    }
    match tree.root {
        Some(root) => Ok((root, tree.problems)),
        None => Err(Problem::new(
            Position::START,
            "the file is empty",
            "docs/train-yaml.md has a training file to start from, docs/jobs.md a job file",
        )),
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, Problem> {
    if bytes.len() > MAX_BYTES {
        return Err(Problem::new(
            Position::START,
            format!(
                "the file has {} bytes, expected at most {MAX_BYTES}",
                bytes.len()
            ),
            "check that this is the right file",
        ));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        let column = 1 + before
            .iter()
            .rev()
            .take_while(|&&byte| byte != b'\n')
            .count();
        Problem::new(
            Position { line, column },
            "the file is not utf-8 text",
            "save it as utf-8, or check that this is the right file",
        )
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

fn syntax(error: &ScanError) -> Problem {
    let at = position(error.marker());
    if error.info().contains("recursion limit") {
        return too_deep(at);
    }
    let next = if error.info().contains("tabs") {
        "indent with spaces"
    } else {
        "check the indentation, quotes and brackets here and on the line above"
    };
    Problem::new(at, format!("this is not yaml: {}", error.info()), next)
}

fn too_deep(at: Position) -> Problem {
    Problem::new(
        at,
        format!("lists and mappings are more than {MAX_DEPTH} deep"),
        "check the brackets and the indentation, and write less within one another",
    )
}

fn position(marker: &Marker) -> Position {
    Position {
        line: marker.line().max(1),
        column: marker.col() + 1,
    }
}

/// The tree while it grows.
#[derive(Default)]
struct Tree {
    /// Whether scalars in another spelling than ours are text.
    verbatim: bool,
    root: Option<Node>,
    open: Vec<OpenNode>,
    anchors: HashMap<usize, (Node, usize)>,
    weight: usize,
    documents: usize,
    problems: Vec<Problem>,
}

/// A list or mapping that has not ended.
struct OpenNode {
    at: Position,
    anchor: usize,
    /// Weight of the tree when it started.
    weight: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map {
        entries: Vec<(Key, Node)>,
        seen: HashSet<String>,
        key: Option<Key>,
    },
}

impl Tree {
    fn take(&mut self, event: Event<'_>, at: Position) -> Result<(), Problem> {
        match event {
            Event::DocumentStart(_) => self.start_document(at),
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_tag(tag.is_some(), at);
                if self.awaits_key() {
                    return self.take_key(&text, at);
                }
                let value = match style {
                    ScalarStyle::Plain if !self.verbatim => plain(&text),
                    ScalarStyle::Plain => verbatim(&text),
                    _ => Value::Text(text.into_owned()),
                };
                let before = self.weight;
                self.grow(NODE + weight_of(&value), at)?;
                self.add(Node { value, at }, anchor, before)
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), at);
                self.open(Content::List(Vec::new()), anchor, at)
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), at);
                self.open(
                    Content::Map {
                        entries: Vec::new(),
                        seen: HashSet::new(),
                        key: None,
                    },
                    anchor,
                    at,
                )
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => self.expand(anchor, at),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn start_document(&mut self, at: Position) -> Result<(), Problem> {
        self.documents += 1;
        match self.documents {
            1 => Ok(()),
            _ => Err(Problem::new(
                at,
                "a second document starts here",
                "keep one document in the file (remove the line `---`)",
            )),
        }
    }

    fn refuse_tag(&mut self, tagged: bool, at: Position) {
        if tagged {
            self.problems.push(Problem::new(
                at,
                "tags such as `!!str` are not read",
                "remove the tag; put text in quotes",
            ));
        }
    }

    fn awaits_key(&self) -> bool {
        matches!(
            self.open.last(),
            Some(OpenNode {
                content: Content::Map { key: None, .. },
                ..
            })
        )
    }

    fn take_key(&mut self, text: &str, at: Position) -> Result<(), Problem> {
        if text.is_empty() {
            return Err(Problem::new(
                at,
                "a key is empty",
                "write a name before the colon",
            ));
        }
        if text == "<<" {
            return Err(Problem::new(
                at,
                "merge keys (`<<`) are not read",
                "write the settings out",
            ));
        }
        self.grow(NODE + text.len(), at)?;
        if let Some(OpenNode {
            content: Content::Map { key, .. },
            ..
        }) = self.open.last_mut()
        {
            *key = Some(Key {
                name: text.to_owned(),
                at,
            });
        }
        Ok(())
    }

    fn open(&mut self, content: Content, anchor: usize, at: Position) -> Result<(), Problem> {
        if self.awaits_key() {
            return Err(Problem::new(
                at,
                "a key is a list or a mapping, expected a name",
                "put the key in quotes, or check the brackets",
            ));
        }
        if self.open.len() == MAX_DEPTH {
            return Err(too_deep(at));
        }
        let weight = self.weight;
        self.grow(NODE, at)?;
        self.open.push(OpenNode {
            at,
            anchor,
            weight,
            content,
        });
        Ok(())
    }

    fn close(&mut self) -> Result<(), Problem> {
        let Some(OpenNode {
            at,
            anchor,
            weight,
            content,
        }) = self.open.pop()
        else {
            return Ok(());
        };
        let value = match content {
            Content::List(items) => Value::List(items),
            Content::Map { entries, .. } => Value::Map(entries),
        };
        self.add(Node { value, at }, anchor, weight)
    }

    /// Puts a finished node in its place. `before` is the weight of the tree without it.
    fn add(&mut self, node: Node, anchor: usize, before: usize) -> Result<(), Problem> {
        if anchor != 0 {
            self.grow(self.weight - before, node.at)?;
            self.anchors
                .insert(anchor, (node.clone(), self.weight - before));
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(Content::List(items)) => items.push(node),
            Some(Content::Map { entries, seen, key }) => {
                let Some(key) = key.take() else {
                    return Err(Problem::new(
                        node.at,
                        "a value has no key",
                        "check the indentation",
                    ));
                };
                if seen.insert(key.name.clone()) {
                    entries.push((key, node));
                } else {
                    let message = format!("the key {} is given twice", shown(&key.name));
                    self.problems
                        .push(Problem::new(key.at, message, "remove one of the two"));
                }
            }
        }
        Ok(())
    }

    fn expand(&mut self, anchor: usize, at: Position) -> Result<(), Problem> {
        if self.awaits_key() {
            return Err(Problem::new(
                at,
                "a key is an alias, expected a name",
                "write the name out",
            ));
        }
        let Some(&(_, weight)) = self.anchors.get(&anchor) else {
            return Err(Problem::new(
                at,
                "an alias stands inside the value that it names",
                "write the value out",
            ));
        };
        let before = self.weight;
        // Weighed before it is copied.
        self.grow(weight, at)?;
        let (node, _) = &self.anchors[&anchor];
        let node = node.clone();
        if self.open.len() + depth(&node) > MAX_DEPTH {
            return Err(too_deep(at));
        }
        self.add(node, 0, before)
    }

    fn grow(&mut self, weight: usize, at: Position) -> Result<(), Problem> {
        self.weight = self.weight.saturating_add(weight);
        if self.weight > MAX_WEIGHT {
            return Err(Problem::new(
                at,
                "the file holds too much, or its aliases expand to too much",
                "write less, and use fewer aliases (`*name`)",
            ));
        }
        Ok(())
    }
}

fn depth(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Map(entries) => {
            1 + entries
                .iter()
                .map(|(_, node)| depth(node))
                .max()
                .unwrap_or(0)
        }
        _ => 0,
    }
}

fn weight_of(value: &Value) -> usize {
    if let Value::Text(text) = value {
        text.len()
    } else {
        0
    }
}

/// The value of an unquoted scalar.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN),
        _ => {}
    }
    let (sign, digits) = match text.as_bytes()[0] {
        b'-' => (-1.0, &text[1..]),
        b'+' => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    if [".inf", ".Inf", ".INF"].contains(&digits) {
        return Value::Float(sign * f64::INFINITY);
    }
    whole(text, digits)
        .or_else(|| decimal(text, digits))
        .unwrap_or_else(|| Value::Text(text.to_owned()))
}

/// The value of an unquoted scalar whose text is not to change.
fn verbatim(text: &str) -> Value {
    let value = plain(text);
    let spelled = match &value {
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        _ => return value,
    };
    if spelled == text {
        value
    } else {
        Value::Text(text.to_owned())
    }
}

fn whole(text: &str, digits: &str) -> Option<Value> {
    let radix = |prefix, radix| {
        let digits = text
            .strip_prefix(prefix)
            .filter(|digits| !digits.starts_with(['+', '-']))?;
        i64::from_str_radix(digits, radix).ok().map(Value::Int)
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return radix("0x", 16).or_else(|| radix("0o", 8));
    }
    text.parse().ok().map(Value::Int)
}

fn decimal(text: &str, digits: &str) -> Option<Value> {
    let starts = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    let allowed = digits
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    let has_digit = digits.bytes().any(|byte| byte.is_ascii_digit());
    if !(starts && allowed && has_digit) {
        return None;
    }
    text.parse().ok().map(Value::Float)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn read(text: &str) -> Node {
        let (node, problems) = parse(text.as_bytes()).unwrap();
        assert_eq!(problems, []);
        node
    }

    fn refused(text: &str) -> String {
        match parse(text.as_bytes()) {
            Err(problem) => format!(
                "{}:{} {}",
                problem.at.line, problem.at.column, problem.message
            ),
            Ok((_, problems)) => format!("{problems:?}"),
        }
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        let cases = [
            ("~", Value::Null),
            ("true", Value::Bool(true)),
            ("yes", Value::Text("yes".into())),
            ("-12", Value::Int(-12)),
            ("0x1F", Value::Int(31)),
            ("0o17", Value::Int(15)),
            ("1e-3", Value::Float(0.001)),
            (".5", Value::Float(0.5)),
            ("1.", Value::Float(1.0)),
            ("-.inf", Value::Float(f64::NEG_INFINITY)),
            ("99999999999999999999", Value::Float(1e20)),
            ("1_000", Value::Text("1_000".into())),
            ("0x-5", Value::Text("0x-5".into())),
            ("e5", Value::Text("e5".into())),
            ("1.2.3", Value::Text("1.2.3".into())),
            ("inf", Value::Text("inf".into())),
            ("-", Value::Text("-".into())),
        ];
        for (text, value) in cases {
            assert_eq!(plain(text), value, "{text}");
        }
        assert_eq!(read("'12'").value, Value::Text("12".into()));
    }

    #[test]
    fn numbers_in_another_spelling_can_be_kept_as_text() {
        for text in [
            "1.10",
            "1.0",
            "007",
            "+5",
            "0x1F",
            "1e22",
            "-0.0",
            ".inf",
            "-.inf",
            ".nan",
            "True",
            "12345678901234567890123",
        ] {
            let (node, _) = parse_verbatim(text.as_bytes()).unwrap();
            assert_eq!(node.value, Value::Text(text.into()), "{text}");
        }
        for text in ["~", "true", "-12", "1.5", "0.001", "x"] {
            let (node, _) = parse_verbatim(text.as_bytes()).unwrap();
            assert_eq!(node.value, plain(text), "{text}");
        }
    }

    #[test]
    fn places_are_those_of_an_editor() {
        let Value::Map(entries) = read("\u{feff}a: 1\nb:\n  - x\n  - {c: 2}\n").value else {
            panic!()
        };
        assert_eq!(entries[0].1.at, Position { line: 1, column: 4 });
        assert_eq!(entries[1].0.at, Position { line: 2, column: 1 });
        let Value::List(items) = &entries[1].1.value else {
            panic!()
        };
        assert_eq!(items[0].at, Position { line: 3, column: 5 });
        let Value::Map(inner) = &items[1].value else {
            panic!()
        };
        assert_eq!(inner[0].0.at, Position { line: 4, column: 6 });
    }

    #[test]
    fn aliases_copy_and_cycles_are_refused() {
        let Value::Map(entries) = read("a: &x {n: 1}\nb: *x\n").value else {
            panic!()
        };
        assert_eq!(entries[0].1.value, entries[1].1.value);
        assert!(refused("a: &x [1, *x]").contains("inside the value"));
        assert!(refused("a: *nobody").contains("1:4"));
    }

    #[test]
    fn a_billion_laughs_and_deep_nests_are_refused_quickly() {
        let mut laughs = String::from("a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n");
        for level in 1..30 {
            let names = vec![format!("*a{}", level - 1); 9].join(", ");
            laughs.push_str(&format!("a{level}: &a{level} [{names}]\n"));
        }
        let long = format!(
            "a: &x {}\nb: [{}]",
            "y".repeat(500_000),
            vec!["*x"; 1000].join(",")
        );
        let start = Instant::now();
        for (text, part) in [
            (laughs, "expand to too much"),
            (long, "expand to too much"),
            ("[".repeat(500_000), "deep"),
            ("{a: ".repeat(200_000), "deep"),
            ("- ".repeat(500_000), "deep"),
            (
                (0..2000)
                    .map(|depth| format!("{}a:\n", " ".repeat(depth % 500 * 2)))
                    .collect(),
                "deep",
            ),
            ("a".repeat(2 << 20), "bytes"),
            ("- 1\n".repeat(250_000), "too much"),
        ] {
            let message = refused(&text);
            assert!(
                message.contains(part),
                "{part}: {}",
                &message[..message.len().min(300)]
            );
        }
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{:?}",
            start.elapsed()
        );
    }
}
