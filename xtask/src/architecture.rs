//! The check of `docs/ARCHITECTURE.md`: what it names exists, and no crate or module directory is left out.
//!
//! What stands in backticks is checked, outside fenced blocks: `a/b` and `a.rs` are paths from the root,
//! `a/b.rs: c` a definition in a file, `C`, `c()` and `a::c` a definition anywhere or a folder of the root, and
//! `phalanx-graph` a package. Anything else with a space or a sign in it is taken for a command or code.

use std::collections::BTreeSet;
use std::path::Path;

use crate::source::{RustFile, definitions, rust_files};
use crate::workspace::{Package, Workspace};

/// Where the architecture is written, from the root.
pub(crate) const PATH: &str = "docs/ARCHITECTURE.md";

/// The top-level folders that hold files in several languages.
const TOP: [&str; 7] = [
    "bench", "crates", "docs", "examples", "fuzz", "tests", "xtask",
];

pub(crate) fn check(workspace: &Workspace) -> Result<String, String> {
    let text = read(workspace)?;
    let mut files = rust_files(&workspace.root.join("crates"))?;
    files.extend(rust_files(&workspace.root.join("xtask"))?);
    let packages = workspace.ours().map(|package| package.name.as_str());
    let defined = files.iter().flat_map(|file| definitions(&file.text));
    let known: BTreeSet<&str> = packages.chain(defined).collect();
    let spans = spans(&text);
    let mut problems: Vec<String> = spans
        .iter()
        .filter_map(|&(line, span)| {
            let problem = missing(&workspace.root, &known, span)?;
            Some(format!("{PATH}:{line}: `{span}`: {problem}"))
        })
        .collect();
    let named: BTreeSet<&str> = spans
        .iter()
        .map(|(_, span)| span.trim_end_matches('/'))
        .collect();
    for folder in folders(workspace, &files) {
        if !named.contains(folder.as_str()) {
            problems.push(format!(
                "{PATH}: does not name `{folder}`; say there what it holds"
            ));
        }
    }
    if problems.is_empty() {
        Ok(format!("{} names", spans.len()))
    } else {
        Err(problems.join("\n"))
    }
}

/// The text of the document.
pub(crate) fn read(workspace: &Workspace) -> Result<String, String> {
    std::fs::read_to_string(workspace.root.join(PATH)).map_err(|error| {
        format!("cannot read {PATH}: {error}; it describes the workspace and must be there")
    })
}

/// What stands in backticks, with the line's number.
fn spans(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut spans = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            spans.extend(
                line.split('`')
                    .skip(1)
                    .step_by(2)
                    .map(|span| (index + 1, span)),
            );
        }
    }
    spans
}

/// What is wrong with a name, if it names nothing.
fn missing(root: &Path, known: &BTreeSet<&str>, span: &str) -> Option<String> {
    if let Some((path, name)) = span.split_once(": ") {
        return match std::fs::read_to_string(root.join(path)) {
            Err(error) => Some(format!("cannot read {path} ({error}); correct the path")),
            Ok(text) if definitions(&text).any(|defined| defined == name) => None,
            Ok(_) => Some(format!("{path} defines no {name}; correct the name")),
        };
    }
    if is_path(span) {
        let absent = !root.join(span).exists();
        return absent.then(|| "there is no such file or folder; correct the path".to_owned());
    }
    let name = span
        .trim_end_matches("()")
        .rsplit("::")
        .next()
        .unwrap_or_default();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let is_known = || known.contains(span) || known.contains(name) || root.join(span).exists();
    (is_name && !is_known()).then(|| "nothing of this name is defined; correct it".to_owned())
}

fn is_path(span: &str) -> bool {
    let is_path_character = |c: char| c.is_alphanumeric() || "._-/".contains(c);
    let is_file = || Path::new(span).extension().is_some();
    !span.starts_with('/')
        && span.chars().all(is_path_character)
        && (span.contains('/') || is_file())
}

/// The folders that must be named: the top ones, the packages' and the modules'.
fn folders(workspace: &Workspace, files: &[RustFile]) -> BTreeSet<String> {
    let top = TOP.iter().filter(|name| workspace.root.join(name).is_dir());
    let packages = workspace.ours().map(Package::folder);
    let modules = files.iter().filter_map(|file| file.path.parent());
    let is_module = |folder: &&Path| {
        folder.components().any(|part| part.as_os_str() == "src") && !folder.ends_with("src")
    };
    packages
        .chain(modules.filter(is_module))
        .map(|folder| workspace.relative(folder).display().to_string())
        .chain(top.map(|&name| name.to_owned()))
        .collect()
}

/// The rows of the tables whose header holds all of `columns`: those cells, in that order.
pub(crate) fn rows<'t, const N: usize>(text: &'t str, columns: [&str; N]) -> Vec<[&'t str; N]> {
    let mut places: Option<[usize; N]> = None;
    let mut rows = Vec::new();
    for line in text.lines() {
        let cells = line
            .trim()
            .strip_prefix('|')
            .and_then(|line| line.strip_suffix('|'));
        let Some(cells) = cells.map(|cells| cells.split('|').map(str::trim).collect::<Vec<_>>())
        else {
            places = None;
            continue;
        };
        match places {
            None => {
                let found = columns.map(|column| cells.iter().position(|cell| *cell == column));
                places = found
                    .iter()
                    .all(Option::is_some)
                    .then(|| found.map(Option::unwrap_or_default));
            }
            Some(places)
                if places.iter().all(|&place| place < cells.len())
                    && !cells[0].starts_with('-') =>
            {
                rows.push(places.map(|place| cells[place]));
            }
            Some(_) => {}
        }
    }
    rows
}

/// The names in backticks in a cell of a table.
pub(crate) fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = rust_files(root).unwrap();
        let mut known: BTreeSet<&str> = BTreeSet::from(["phalanx-graph"]);
        known.extend(files.iter().flat_map(|file| definitions(&file.text)));
        let missing = |span| missing(root, &known, span).is_some();
        for span in [
            "src/main.rs",
            "src",
            "src/",
            "Cargo.toml",
            "src/check.rs: command",
            "RustFile",
            "rust_files()",
            "Workspace::load",
            "phalanx-graph",
            "cargo xtask check",
            "--skip",
            "f32[2]",
            "crate -> other",
        ] {
            assert!(!missing(span), "{span} is reported");
        }
        for span in [
            "src/none.rs",
            "None.toml",
            "src/check.rs: nothing",
            "src/none.rs: run",
            "Nowhere",
            "nowhere()",
            "a::b",
        ] {
            assert!(missing(span), "{span} is not reported");
        }
    }

    #[test]
    fn fenced_blocks_are_no_names() {
        let text = "`a` and `b`\n```text\n`c`\n```\n`d`\n";
        assert_eq!(spans(text), [(1, "a"), (1, "b"), (5, "d")]);
    }

    #[test]
    fn tables_are_found_by_their_columns() {
        let text = "| a | b | c |\n|---|---|---|\n| 1 | 2 | 3 |\n\n| a | c |\n|---|---|\n| 4 | 5 |\n\n| b |\n|---|\n| 6 |\n";
        assert_eq!(rows(text, ["c", "a"]), [["3", "1"], ["5", "4"]]);
        assert_eq!(names("`x`, `y` and more"), ["x", "y"]);
    }
}
