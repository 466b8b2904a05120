//! Values with where they come from: a file, flags above it, or a request.

use serde_json::Value as Json;

use phalanx_yaml::{Key, Node, Position, Problem, Value, parse_verbatim};

/// The line that stands for flags; the column is the flag's number.
const FLAGS: usize = 0;

/// A flag of the command line and what it sets.
#[derive(Debug, Clone, PartialEq)]
pub struct Flag {
    /// Its name with the dashes.
    pub name: String,
    /// The keys under which its value stands, from the top.
    pub path: Vec<&'static str>,
    /// The value.
    pub value: Value,
}

/// A job file, the flags above it, or a request.
#[derive(Debug, Clone)]
pub struct Source {
    name: Option<String>,
    root: Node,
    flags: Vec<String>,
    problems: Vec<Problem>,
}

impl Source {
    /// What flags alone say.
    #[must_use]
    pub fn empty() -> Self {
        Self::of_tree(None, map(Position::START), Vec::new())
    }

    /// A job file, named as the user did. Numbers reach the program as they are written.
    ///
    /// # Errors
    /// It is no YAML.
    pub fn of_file(name: &str, text: &[u8]) -> Result<Self, String> {
        let read = parse_verbatim(text).map_err(|problem| line_of(name, &problem));
        let (root, problems) = read?;
        Ok(Self::of_tree(Some(name.to_owned()), root, problems))
    }

    /// The body of a request.
    #[must_use]
    pub fn of_json(body: &Json) -> Self {
        Self::of_tree(None, node(body), Vec::new())
    }

    fn of_tree(name: Option<String>, root: Node, problems: Vec<Problem>) -> Self {
        Self {
            name,
            root,
            flags: Vec::new(),
            problems,
        }
    }

    /// Puts the value of a flag above what the file says.
    pub fn set(&mut self, flag: Flag) {
        let at = Position {
            line: FLAGS,
            column: self.flags.len(),
        };
        self.flags.push(flag.name);
        insert(&mut self.root, &flag.path, flag.value, at);
    }

    /// All of it as JSON, as a request has it.
    #[must_use]
    pub fn to_json(&self) -> Json {
        match self.root.to_json() {
            Some(Json::Null) | None => Json::Object(serde_json::Map::new()),
            Some(json) => json,
        }
    }

    /// Each value with its keys and where it comes from, in order.
    #[must_use]
    pub fn origins(&self) -> Vec<(String, String, String)> {
        let mut all = Vec::new();
        self.add_origins("", &self.root, &mut all);
        all
    }

    fn add_origins(&self, path: &str, node: &Node, all: &mut Vec<(String, String, String)>) {
        match &node.value {
            Value::Map(entries) if !entries.is_empty() => {
                for (key, node) in entries {
                    let dot = if path.is_empty() { "" } else { "." };
                    self.add_origins(&format!("{path}{dot}{}", key.name), node, all);
                }
            }
            Value::Null => {}
            _ => {
                let value = node
                    .to_json()
                    .map_or_else(String::new, |json| json.to_string());
                all.push((path.to_owned(), value, self.origin(node.at)));
            }
        }
    }

    /// The tree.
    pub(super) fn root(&self) -> &Node {
        &self.root
    }

    /// Mistakes in the form of the file, after which reading went on.
    pub(super) fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The flag of a place, if the value there is a flag's.
    pub(super) fn flag(&self, at: Position) -> Option<&str> {
        let flag = (at.line == FLAGS).then(|| self.flags.get(at.column));
        flag.flatten().map(String::as_str)
    }

    /// Where a value comes from, for a person.
    #[must_use]
    pub fn origin(&self, at: Position) -> String {
        match (self.flag(at), &self.name) {
            (Some(flag), _) => flag.to_owned(),
            (None, Some(name)) => format!("{name}:{}", at.line),
            (None, None) => "the request".to_owned(),
        }
    }

    /// The mistakes as text, a line each, in the order of the file.
    pub(super) fn describe(&self, mut problems: Vec<Problem>) -> String {
        problems.sort_by_key(|problem| (problem.at.line == FLAGS, problem.at));
        let lines = problems
            .iter()
            .map(|problem| match (self.flag(problem.at), &self.name) {
                (Some(flag), _) => format!("{flag}: {}; {}", problem.message, problem.next),
                (None, Some(name)) => line_of(name, problem),
                (None, None) => format!("{}; {}", problem.message, problem.next),
            });
        lines.collect::<Vec<_>>().join("\n")
    }
}

fn line_of(name: &str, problem: &Problem) -> String {
    let Position { line, column } = problem.at;
    format!(
        "{name}:{line}:{column}: {}; {}",
        problem.message, problem.next
    )
}

fn map(at: Position) -> Node {
    let value = Value::Map(Vec::new());
    Node { value, at }
}

fn insert(node: &mut Node, path: &[&'static str], value: Value, at: Position) {
    let Some((first, rest)) = path.split_first() else {
        node.value = value;
        place(node, at);
        return;
    };
    if !matches!(node.value, Value::Map(_)) {
        *node = map(Position::START);
    }
    let Value::Map(entries) = &mut node.value else {
        return;
    };
    let found = entries.iter().position(|(key, _)| key.name == *first);
    let index = found.unwrap_or_else(|| {
        let name = (*first).to_owned();
        // A mapping is no flag's: what it lacks is not the mistake of the flag that made it.
        entries.push((Key { name, at }, map(Position::START)));
        entries.len() - 1
    });
    insert(&mut entries[index].1, rest, value, at);
}

/// Gives all of a value this place.
fn place(node: &mut Node, at: Position) {
    node.at = at;
    match &mut node.value {
        Value::List(items) => items.iter_mut().for_each(|item| place(item, at)),
        Value::Map(entries) => {
            for (key, node) in entries {
                key.at = at;
                place(node, at);
            }
        }
        _ => {}
    }
}

/// The tree of a JSON value, which has no places.
fn node(json: &Json) -> Node {
    let value = match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Value::Int(whole),
            (None, Some(value)) => Value::Float(value),
            (None, None) => Value::Text(number.to_string()),
        },
        Json::String(text) => Value::Text(text.clone()),
        Json::Array(items) => Value::List(items.iter().map(node).collect()),
        Json::Object(entries) => {
            let entry = |(name, value): (&String, &Json)| {
                let (name, at) = (name.clone(), Position::START);
                (Key { name, at }, node(value))
            };
            Value::Map(entries.iter().map(entry).collect())
        }
    };
    let at = Position::START;
    Node { value, at }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;

    #[test]
    fn numbers_reach_the_program_as_they_are_written() {
        let file = "trainingInput:
  args: [--rate, 1.10, 00501, 0x1F, 1e22, -0.0, .inf, True, 3, 0.5]
  useChiefInTfConfig: False
phalanx: {program: echo, restarts: 07, env: {VERSION: 2.0}}
";
        let source = Source::of_file("job", file.as_bytes()).unwrap();
        let args = [
            "--rate", "1.10", "00501", "0x1F", "1e22", "-0.0", ".inf", "True", "3", "0.5",
        ];
        // By the way of the daemon, too.
        for source in [Source::of_json(&source.to_json()), source] {
            let spec = Spec::read(&source).unwrap();
            assert_eq!(spec.args, args);
            assert_eq!(spec.ours.env["VERSION"], "2.0");
            assert_eq!((spec.ours.restarts, spec.chief), (7, false));
        }
    }

    #[test]
    fn each_part_of_a_flags_value_is_of_the_flag() {
        let mut source = Source::of_file("job.yaml", b"labels: {team: vision}\n").unwrap();
        let entry = Node {
            value: Value::Text("b".into()),
            at: Position::START,
        };
        let key = Key {
            name: "a".into(),
            at: Position::START,
        };
        source.set(Flag {
            name: "--labels".into(),
            path: vec!["labels"],
            value: Value::Map(vec![(key, entry)]),
        });
        let (path, value, origin) = source.origins().remove(0);
        assert_eq!(
            (path.as_str(), value.as_str(), origin.as_str()),
            ("labels.a", "\"b\"", "--labels")
        );
    }

    #[test]
    fn the_entry_that_is_no_text_is_named() {
        let file = "trainingInput: {args: [a, [b], c]}
phalanx: {env: {A: x, B: {}}}
";
        let source = Source::of_file("job.yaml", file.as_bytes()).unwrap();
        let why = Spec::read(&source).unwrap_err();
        for said in [
            "job.yaml:1:27: trainingInput.args[1] is a list of 1, expected text",
            "job.yaml:2:26: phalanx.env.B is an empty mapping, expected text",
        ] {
            assert!(why.contains(said), "{why}");
        }
    }

    #[test]
    fn times_that_no_clock_has_are_refused() {
        let read = |time: &str| {
            let job =
                serde_json::json!({"trainingInput": {"scheduling": {"maxRunningTime": time}}});
            Spec::read(&Source::of_json(&job))
        };
        assert!(read("315360000s").is_ok());
        let why = read("18446744073709552s").unwrap_err();
        assert!(why.contains("from 1s to 315360000s"), "{why}");
    }
}
