//! The check of the language: no type name has two meanings inside a crate, and documentation, of the code and in pages, says what it
//! means in words that are read once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::source::{RustFile, rust_files};
use crate::workspace::{Package, Workspace};

/// Phrases that stand for a number or a noun that should be there itself.
const PHRASES: [&str; 7] = [
    "so many",
    "so long",
    "that of",
    "those of",
    "is told",
    "are told",
    "of one's own",
];

const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

pub(crate) fn check(workspace: &Workspace) -> Result<String, String> {
    let mut problems = Vec::new();
    let mut types = 0;
    for package in workspace.ours() {
        let files = rust_files(package.folder())?;
        let known = type_names(&files);
        types += known.len();
        problems.extend(two_meanings(workspace, package, &known));
        let in_tests = |file: &&RustFile| {
            file.path
                .components()
                .any(|part| part.as_os_str() == "tests")
        };
        for file in files.iter().filter(|file| !in_tests(file)) {
            let path = workspace.relative(&file.path).display();
            problems.extend(phrases(&file.text).map(|(line, phrase)| {
                format!("{path}:{line}: documentation with \"{phrase}\"; name the number or the noun instead")
            }));
        }
    }
    for path in pages(workspace)? {
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let shown = workspace.relative(&path).display();
        for (index, line) in text.lines().enumerate() {
            problems.extend(phrase(line).map(|phrase| {
                format!(
                    "{shown}:{}: \"{phrase}\"; name the number or the noun instead",
                    index + 1
                )
            }));
        }
    }
    if problems.is_empty() {
        Ok(format!("{types} types"))
    } else {
        Err(problems.join("\n"))
    }
}

/// The places where each type of a crate is defined, outside tests and layouts of C headers, which are named as in the header.
fn type_names(files: &[RustFile]) -> BTreeMap<&str, Vec<String>> {
    let mut known: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| is_source(&file.path)) {
        for (line, text) in file.code() {
            if let Some(name) = type_name(text) {
                let place = format!("{}:{line}", file.path.display());
                known.entry(name).or_default().push(place);
            }
        }
    }
    known
}

pub(crate) fn is_source(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let in_source = path.components().any(|part| part.as_os_str() == "src");
    in_source && !name.starts_with("sys") && !name.ends_with("tests.rs")
}

/// The name of the type that a line defines. Associated types are indented.
pub(crate) fn type_name(line: &str) -> Option<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let item = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let item = item.strip_prefix("unsafe ").unwrap_or(item);
    let (keyword, rest) = item.split_once(' ')?;
    let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
    (KEYWORDS.contains(&keyword) && end > 0).then(|| &rest[..end])
}

fn two_meanings(
    workspace: &Workspace,
    package: &Package,
    known: &BTreeMap<&str, Vec<String>>,
) -> Vec<String> {
    let root = format!("{}/", workspace.root.display());
    known
        .iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(name, places)| {
            let places = places.join(" and ").replace(&root, "");
            format!(
                "`{name}` is two types of {}: {places}; name each by what it is for",
                package.name
            )
        })
        .collect()
}

/// The lines of documentation that have one of the [`PHRASES`].
fn phrases(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let line = line.trim_start();
        let comment = line
            .strip_prefix("///")
            .or_else(|| line.strip_prefix("//!"))?;
        Some((index + 1, phrase(comment)?))
    })
}

/// The one of the [`PHRASES`] that a line has.
fn phrase(line: &str) -> Option<&'static str> {
    let spaced = line.replace([',', '.', ';', ':', ')', '('], " ");
    let spaced = format!(" {spaced} ");
    let is_in = |phrase: &&str| spaced.contains(&format!(" {phrase} "));
    PHRASES.into_iter().find(is_in)
}

/// The pages that people read: of the root, and of `docs`.
fn pages(workspace: &Workspace) -> Result<Vec<PathBuf>, String> {
    let mut pages = Vec::new();
    for folder in ["", "docs", "docs/decisions"] {
        let folder = workspace.root.join(folder);
        let entries = std::fs::read_dir(&folder)
            .map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
        let paths = entries.flatten().map(|entry| entry.path());
        pages.extend(paths.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    pages.sort();
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found() {
        let lines = [
            ("pub(crate) struct Two<T>(T);", Some("Two")),
            ("pub enum Three {", Some("Three")),
            ("type Four<'a> = &'a str;", Some("Four")),
            ("pub unsafe trait Five {}", Some("Five")),
            ("    type Item = usize;", None),
            ("fn structure() {}", None),
            ("use a::{struct_, b};", None),
        ];
        for (line, name) in lines {
            assert_eq!(type_name(line), name, "{line}");
        }
    }

    #[test]
    fn a_name_of_two_files_is_found_and_tests_are_left_out() {
        let file = |path: &str| RustFile {
            path: path.into(),
            text: "struct Plan;\n#[cfg(test)]\nstruct InTest;\n".into(),
        };
        let files = [
            "src/a.rs",
            "src/b.rs",
            "src/sys.rs",
            "src/b_tests.rs",
            "tests/c.rs",
        ]
        .map(file);
        let known = type_names(&files);
        assert_eq!(known.keys().collect::<Vec<_>>(), [&"Plan"]);
        assert_eq!(known["Plan"], ["src/a.rs:1", "src/b.rs:1"]);
    }

    #[test]
    fn phrases_are_found_in_documentation_only() {
        let text = "/// The rows of a batch, so many.\n// so many\nlet a = \"so many\";\n    /// Not sold: those offered.\n//! Those of, that of\n";
        assert_eq!(
            phrases(text).collect::<Vec<_>>(),
            [(1, "so many"), (5, "that of")]
        );
    }
}
