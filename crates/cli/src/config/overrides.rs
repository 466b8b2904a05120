//! Values of the command line that take the place of those in a file: `--set fit.batch_size=64`.

use phalanx_yaml::{Key, Node, Value};
use phalanx_yaml::{Position, Problem, shown};

/// Sets the value that `text` names, `KEY.KEY=VALUE`. Keys that are not there are added; elements of lists are named by their
/// position from 0. The value is YAML. A mistake in it is reported at the place of what it replaces.
pub(super) fn apply(root: &mut Node, text: &str) -> Result<(), Problem> {
    let wrong = |at, why: String| {
        let next = "write it as in `--set fit.batch_size=64` or `--set model.0.dense.units=32`";
        Problem::new(at, format!("--set {}: {why}", shown(text)), next)
    };
    let Some((path, value)) = text.split_once('=') else {
        return Err(wrong(Position::START, "it has no `=`".into()));
    };
    let parsed = phalanx_yaml::parse(value.as_bytes());
    let (mut value, problems) =
        parsed.map_err(|problem| wrong(Position::START, problem.message))?;
    if let Some(problem) = problems.into_iter().next() {
        return Err(wrong(Position::START, problem.message));
    }
    let mut place = root;
    for key in path.split('.') {
        let at = place.at;
        place = child(place, key).ok_or_else(|| {
            wrong(
                at,
                format!("there is no place for {} in the file", shown(key)),
            )
        })?;
    }
    move_to(&mut value, place.at);
    *place = value;
    Ok(())
}

/// The value of a key or the element at a position; a key that is not there is added to its mapping.
fn child<'n>(node: &'n mut Node, key: &str) -> Option<&'n mut Node> {
    let at = node.at;
    if key.is_empty() {
        return None;
    }
    // A name without settings, as in `optimizer: adam`, is a mapping with nothing in it.
    match &mut node.value {
        Value::Null => node.value = Value::Map(Vec::new()),
        Value::Text(name) if name == key => {
            let empty = Node {
                value: Value::Map(Vec::new()),
                at,
            };
            node.value = Value::Map(vec![(
                Key {
                    name: key.to_owned(),
                    at,
                },
                empty,
            )]);
        }
        _ => {}
    }
    match &mut node.value {
        Value::List(items) => items.get_mut(key.parse::<usize>().ok()?),
        Value::Map(entries) => {
            let found = entries.iter().position(|(other, _)| other.name == key);
            let index = found.unwrap_or_else(|| {
                let name = key.to_owned();
                let empty = Node {
                    value: Value::Null,
                    at,
                };
                entries.push((Key { name, at }, empty));
                entries.len() - 1
            });
            entries.get_mut(index).map(|(_, node)| node)
        }
        _ => None,
    }
}

/// Gives a tree the place of what it replaces.
fn move_to(node: &mut Node, at: Position) {
    node.at = at;
    match &mut node.value {
        Value::List(items) => items.iter_mut().for_each(|item| move_to(item, at)),
        Value::Map(entries) => {
            for (key, node) in entries {
                key.at = at;
                move_to(node, at);
            }
        }
        _ => {}
    }
}
